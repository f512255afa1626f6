// A model's text as elements: paragraphs, headings, code. A small part of Markdown, and never HTML.

import { copyButton, element } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^\s`]*)[^`]*$/;
const HEADING = /^#{1,6} +(.+?)[ #]*$/;
const INLINE = /(`[^`\n]+`|\*\*[^\s*](?:[^*\n]*[^\s*])?\*\*)/;

/** Cut text into {kind, text, language}; `kind` is "code", "heading" or "prose". A fence still open is code, too. */
export function segments(text) {
  const found = [];
  let prose = [];
  let code = null;
  const endProse = () => {
    if (prose.length) found.push({ kind: "prose", text: prose.join("\n") });
    prose = [];
  };
  for (const line of text.split("\n")) {
    const fence = FENCE.exec(line);
    if (code) {
      if (fence && fence[1].startsWith(code.fence) && !fence[2]) code = null;
      else code.lines.push(line);
    } else if (fence) {
      endProse();
      code = { kind: "code", language: fence[2], fence: fence[1], lines: [] };
      found.push(code);
    } else if (HEADING.test(line)) {
      endProse();
      found.push({ kind: "heading", text: HEADING.exec(line)[1] });
    } else if (line.trim() === "") {
      endProse();
    } else {
      prose.push(line);
    }
  }
  endProse();
  return found.map(({ kind, language = "", ...rest }) => ({ kind, language, text: rest.text ?? rest.lines.join("\n") }));
}

function inline(text) {
  return text.split(INLINE).map((part, index) => {
    if (index % 2 === 0) return part;
    return part[0] === "`" ? element("code", {}, part.slice(1, -1)) : element("strong", {}, part.slice(2, -2));
  });
}

function render({ kind, language, text }) {
  if (kind === "heading") return element("p", { className: "heading", dir: "auto" }, ...inline(text));
  if (kind === "prose") return element("p", { dir: "auto" }, ...inline(text));
  const head = element("figcaption", {}, element("span", {}, language || "text"), copyButton("Copy code", () => text));
  const scrolled = { tabIndex: 0, attributes: { "aria-label": `Code, ${language || "text"}` } };
  return element("figure", { className: "code" }, head, element("pre", scrolled, element("code", {}, text)));
}

/** Text that grows inside one element: what has not changed keeps its elements, and so a selection in it. */
export class GrowingText {
  #node;
  #shown = [];

  constructor(node) {
    this.#node = node;
  }

  show(text) {
    const wanted = segments(text);
    wanted.forEach((segment, index) => {
      const shown = this.#shown[index];
      if (shown && shown.kind === segment.kind && shown.language === segment.language && shown.text === segment.text) return;
      const made = render(segment);
      if (shown) this.#node.children[index].replaceWith(made);
      else this.#node.append(made);
    });
    while (this.#node.children.length > wanted.length) this.#node.lastElementChild.remove();
    this.#shown = wanted;
  }
}
