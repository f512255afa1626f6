// The live engine beside the chat: what GET /status says, shown. Must never know: the conversation, when to ask.

import { BlockMap } from "./blocks.js";
import { byId, element, setText } from "./dom.js";
import { count, duration, percent, rate, Rates } from "./numbers.js";
import { Plot } from "./plot.js";
import { SequenceTable } from "./sequences.js";

export class Engine {
  #rates = new Rates();
  #plots = { generation: new Plot("Generated", "generation"), prompt: new Plot("Prompt", "prompt") };
  #maps = [];
  #sequences = new SequenceTable(byId("sequences"));
  #fixed = "";

  constructor() {
    byId("plots").append(...Object.values(this.#plots).map(({ node }) => node));
  }

  show(status) {
    this.showProblem(null);
    this.#rates.add(status);
    const running = status.sequences.filter(({ state }) => state === "running").length;
    this.#showTiles(status, running);
    this.#showPulse(status, running);
    for (const [name, plot] of Object.entries(this.#plots)) {
      const steps = this.#rates.intervals.map(({ from, to, [name]: value }) => ({ from, to, value }));
      plot.show(steps, this.#rates.now);
    }
    this.#showBlocks(status.blocks);
    this.#sequences.show(status.sequences);
    this.#showFixed(status);
  }

  /** Why nothing new can be shown, at length and for the head, or null. What was shown last stays, and looks old. */
  showProblem(message, inShort = "") {
    const node = byId("engine-problem");
    node.hidden = !message;
    setText(node, message ?? "");
    byId("engine").classList.toggle("old", Boolean(message));
    if (!message) return;
    byId("pulse").dataset.state = "lost";
    setText(byId("pulse"), inShort);
  }

  #showTiles({ sequences, totals, blocks, max_num_seqs: most }, running) {
    const waiting = sequences.length - running;
    const preparing = sequences.filter(({ state }) => state === "preparing").length;
    const sum = (name) => blocks.reduce((total, { counts }) => total + counts[name], 0);
    const [used, total] = [sum("used") + sum("shared"), blocks.reduce((all, map) => all + map.total, 0)];
    const { stop = 0, length = 0, abort = 0, error = 0 } = totals.finished;
    tile("running", count(running), `of ${count(most)} at most`);
    tile("waiting", count(waiting), preparing ? `${count(preparing)} preparing` : `${count(totals.preemptions)} preemptions`);
    tile("cache", percent(used, total), `${count(used)} of ${count(total)}`);
    tile("prefix", percent(totals.prefix_hits, totals.prefix_queries), `${count(totals.prefix_hits)} of ${count(totals.prefix_queries)}`);
    const drafted = `${count(totals.accepted_tokens)} of ${count(totals.draft_tokens)}`;
    tile("drafts", percent(totals.accepted_tokens, totals.draft_tokens), totals.draft_tokens ? drafted : "no drafts");
    const unwell = [abort && `${count(abort)} aborted`, error && `${count(error)} failed`].filter(Boolean).join(", ");
    tile("finished", count(stop + length + abort + error), unwell || "none failed");
  }

  #showPulse({ sequences, uptime, version }, running) {
    const pulse = byId("pulse");
    const { generation, prompt } = this.#rates.latest;
    pulse.dataset.state = sequences.length ? "busy" : "idle";
    pulse.title = `Octavo ${version}, up for ${duration(uptime)}`;
    const speed = generation || prompt ? ` · ${rate(generation || prompt)} tokens/s` : "";
    setText(pulse, sequences.length ? `${running} running${speed}` : "Idle");
  }

  #showBlocks(blocks) {
    while (this.#maps.length > blocks.length) this.#maps.pop().node.remove();
    while (this.#maps.length < blocks.length) {
      this.#maps.push(new BlockMap());
      byId("blocks").append(this.#maps.at(-1).node);
    }
    blocks.forEach((map, index) => this.#maps[index].show(map, blocks.length > 1 ? `Group ${index}` : ""));
  }

  /** What stays as it is while the server runs; made anew only for another server. */
  #showFixed({ model, version, description, plugins }) {
    const fixed = JSON.stringify([model, version, description, plugins]);
    if (fixed === this.#fixed) return;
    this.#fixed = fixed;
    setText(byId("model"), model);
    setText(byId("welcome-model"), model);
    document.title = `${model} · Octavo`;
    const facts = Object.entries({ ...description, octavo: version });
    byId("description").replaceChildren(
      ...facts.map(([name, value]) => element("div", {}, element("dt", {}, name.replaceAll("_", " ")), element("dd", {}, value))),
    );
    const brokenFirst = [...plugins].sort((a, b) => (a.state === "loaded") - (b.state === "loaded"));
    byId("plugins").replaceChildren(...brokenFirst.map(plugin));
  }
}

function tile(id, value, more) {
  setText(byId(id), value);
  setText(byId(`${id}-more`), more);
}

function plugin({ name, distribution, version, state, reason }) {
  const line = element("li", { dataset: { state } }, element("strong", {}, name));
  line.append(element("span", { className: "small" }, `${distribution} ${version}`), element("span", { className: "state" }, state));
  if (reason) line.append(element("p", { className: "reason" }, reason));
  return line;
}
