// Making and changing elements. Text goes in as text only: nothing here, or anywhere on the page, parses HTML.

export const byId = (id) => document.getElementById(id);

/** An element with properties (`dataset` and `attributes` are merged, others set) and children (nodes or strings). */
export function element(tag, { dataset = {}, attributes = {}, ...properties } = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  Object.assign(made.dataset, dataset);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Set the text only where it differs, so that a selection and what a screen reader has read stay as they are. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** A button that copies what `text()` gives, and says so for a moment. */
export function copyButton(label, text) {
  const button = element("button", { type: "button", className: "quiet", attributes: { "aria-label": label } }, "Copy");
  button.addEventListener("click", async () => {
    setText(button, (await copy(text())) ? "Copied" : "Not copied");
    setTimeout(() => setText(button, "Copy"), 1500);
  });
  return button;
}

async function copy(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      return false; // the browser's user has forbidden it; the button says so
    }
  }
  // A page that came over plain HTTP from another machine has no clipboard object.
  const field = element("textarea", { value: text, className: "unseen" });
  document.body.append(field);
  const before = document.activeElement;
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  before?.focus();
  return copied;
}
