// The settings of the requests, from the form's fields. An empty field leaves the choice to the model or the server.

import { byId } from "./dom.js";

const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];

/** The fields of the request and the system message; null, with the faulty field shown, if one makes no sense. */
export function readSettings() {
  const more = byId("more");
  more.setCustomValidity("");
  let fields = {};
  try {
    fields = parseFields(more.value);
  } catch (error) {
    more.setCustomValidity(error.message);
  }
  for (const name of NUMBERS) {
    const field = byId(name);
    if (field.value !== "") fields[name] = field.valueAsNumber;
  }
  const faulty = [...NUMBERS.map(byId), more].find((field) => !field.checkValidity());
  if (!faulty) return { fields, system: byId("system").value.trim() };
  showSettings(true);
  faulty.reportValidity();
  return null;
}

function parseFields(text) {
  if (!text.trim()) return {};
  let fields;
  try {
    fields = JSON.parse(text);
  } catch (error) {
    throw new Error(`This is no JSON: ${error.message}`);
  }
  if (fields && typeof fields === "object" && !Array.isArray(fields)) return fields;
  throw new Error('Write a JSON object, for example {"stop": ["END"]}');
}

function showSettings(shown) {
  byId("settings").hidden = !shown;
  byId("settings-button").setAttribute("aria-expanded", String(shown));
}

export function startSettings() {
  byId("settings-button").addEventListener("click", () => showSettings(byId("settings").hidden));
  byId("more").addEventListener("input", ({ target }) => target.setCustomValidity(""));
}
