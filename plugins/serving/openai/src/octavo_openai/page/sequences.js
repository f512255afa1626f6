// The table of live sequences.

import { element, setText } from "./dom.js";
import { count } from "./numbers.js";

/** A table longer than this serves nobody; a line says how many are left out. */
const MOST_ROWS = 64;
const COLUMNS = ["Request", "State", "Prompt", "Tokens", "Blocks", "Preempted"];

export class SequenceTable {
  #body = element("tbody");
  #rest = element("p", { className: "small" });
  #table = element("table");
  #rows = [];

  constructor(node) {
    const heads = COLUMNS.map((name) => element("th", { scope: "col" }, name));
    this.#table.append(element("thead", {}, element("tr", {}, ...heads)), this.#body);
    node.append(this.#table, this.#rest);
  }

  show(sequences) {
    const shown = sequences.slice(0, MOST_ROWS);
    this.#table.hidden = !shown.length;
    while (this.#rows.length > shown.length) this.#rows.pop().node.remove();
    while (this.#rows.length < shown.length) this.#rows.push(new Row(this.#body));
    shown.forEach((sequence, index) => this.#rows[index].show(sequence));
    const left = sequences.length - shown.length;
    setText(this.#rest, shown.length ? (left ? `and ${count(left)} more` : "") : "None: the engine is idle.");
  }
}

class Row {
  #cells = COLUMNS.map((name, index) => element(index ? "td" : "th", index ? {} : { scope: "row" }));
  #state = element("span", { className: "state" });
  #progress = element("progress");
  #prompt = element("span");

  constructor(body) {
    this.#cells[1].append(this.#state);
    this.#cells[2].append(this.#progress, this.#prompt);
    this.node = element("tr", {}, ...this.#cells);
    body.append(this.node);
  }

  show({ request, state, prompt_tokens: prompt, tokens, computed, blocks, preemptions }) {
    const [name, , , all, held, preempted] = this.#cells;
    const done = Math.min(computed, prompt);
    setText(name, request.length > 8 ? `…${request.slice(-6)}` : request);
    name.title = request;
    this.#state.dataset.state = state;
    setText(this.#state, state);
    this.#progress.max = Math.max(prompt, 1);
    this.#progress.value = done;
    this.#progress.setAttribute("aria-label", `${done} of ${prompt} prompt tokens computed`);
    setText(this.#prompt, done < prompt ? `${count(done)} / ${count(prompt)}` : count(prompt));
    setText(all, count(tokens));
    setText(held, count(blocks));
    setText(preempted, preemptions ? `${preemptions}×` : "–");
  }
}
