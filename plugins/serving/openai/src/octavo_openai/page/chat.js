// The conversation: sending, stopping, trying again, clearing. Must never know: how an answer looks, what the engine does.

import { streamChat } from "./api.js";
import { byId, setText } from "./dom.js";
import { askKey } from "./key.js";
import { readSettings } from "./settings.js";
import { Turn } from "./turn.js";

export class Chat {
  /** Set as soon as the server has told it. */
  model = null;

  #turns = [];
  #abort = null;
  #welcome = byId("welcome");
  #conversation = byId("conversation");
  #prompt = byId("prompt");
  #send = byId("send");
  #atEnd = true;
  #top = 0;
  // Text arrives, code is folded out, the window changes: whoever reads the end goes on reading the end.
  #sizes = new ResizeObserver(() => this.#follow());
  #keyGiven;

  /** `keyGiven` is called once the user has given an API key, so that others who lack it can go on. */
  constructor(keyGiven) {
    this.#keyGiven = keyGiven;
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#abort) this.#abort.abort();
      else this.#submit();
    });
    byId("composer").addEventListener("keydown", (event) => this.#onKey(event));
    this.#prompt.addEventListener("input", () => this.#fit());
    byId("clear").addEventListener("click", () => this.#clear());
    for (const example of this.#welcome.querySelectorAll(".example")) {
      example.addEventListener("click", () => this.#say(example.textContent));
    }
    this.#conversation.addEventListener("scroll", () => this.#onScroll());
    this.#sizes.observe(this.#conversation);
  }

  /** Go to the message field, but not where that would bring up a keyboard over what there is to read. */
  focus() {
    if (!matchMedia("(pointer: coarse)").matches) this.#prompt.focus({ preventScroll: true });
  }

  #onKey(event) {
    if (event.key === "Escape" && this.#abort) this.#abort.abort();
    if (event.target !== this.#prompt || event.key !== "Enter" || event.shiftKey) return;
    // While a word is being composed (Japanese, Chinese), Enter chooses; it does not send. Safari tells by the code.
    if (event.isComposing || event.keyCode === 229) return;
    event.preventDefault();
    if (!this.#abort) this.#submit();
  }

  #submit() {
    const text = this.#prompt.value;
    if (!text.trim()) return this.#prompt.focus();
    if (!this.#say(text)) return;
    this.#prompt.value = "";
    this.#fit();
  }

  #say(text) {
    const settings = readSettings();
    if (!settings || this.#abort) return false;
    const turn = new Turn(text, this.model, () => this.#retry(turn));
    this.#welcome.remove();
    this.#conversation.append(turn.node);
    this.#sizes.observe(turn.node);
    this.#turns.push(turn);
    this.#atEnd = true;
    this.focus();
    this.#run(turn, settings);
    return true;
  }

  #retry(turn) {
    const settings = readSettings();
    if (!settings || this.#abort) return;
    turn.restart();
    this.focus();
    this.#run(turn, settings);
  }

  async #run(turn, settings) {
    const abort = new AbortController();
    this.#abort = abort;
    this.#showButtons();
    turn.update();
    setText(byId("announcement"), "");
    try {
      await this.#stream(turn, this.#request(turn, settings), abort.signal);
    } catch (error) {
      if (error.name === "AbortError") turn.answer.stopped = true;
      else turn.answer.problem = error.message;
    }
    this.#abort = null;
    turn.finish();
    this.#showButtons();
    if (!turn.answer.problem) setText(byId("announcement"), turn.answer.stopped ? "Stopped." : "The answer is complete.");
  }

  #request(turn, { fields, system }) {
    const before = this.#turns.slice(0, this.#turns.indexOf(turn)).flatMap(({ messages }) => messages);
    const first = system ? [{ role: "system", content: system }] : [];
    const request = { ...fields, messages: [...first, ...before, { role: "user", content: turn.prompt }] };
    return this.model ? { model: this.model, ...request } : request;
  }

  async #stream(turn, request, signal) {
    try {
      for await (const chunk of streamChat(request, signal)) {
        turn.answer.add(chunk);
        turn.update();
      }
    } catch (error) {
      if (error.status !== 401 || !(await askKey())) throw error;
      this.#keyGiven();
      turn.restart(); // the time in the dialog is not the model's
      await this.#stream(turn, request, signal);
    }
  }

  #clear() {
    this.#abort?.abort();
    for (const { node } of this.#turns) node.remove();
    this.#turns = [];
    this.#conversation.append(this.#welcome);
    this.#showButtons();
    this.focus();
  }

  #showButtons() {
    const action = this.#abort ? "stop" : "send";
    this.#send.dataset.action = action;
    setText(this.#send, action === "stop" ? "Stop" : "Send");
    byId("clear").disabled = !this.#turns.length;
    this.#turns.forEach((turn) => (turn.last = turn === this.#turns.at(-1)));
  }

  #onScroll() {
    const { scrollHeight, scrollTop, clientHeight } = this.#conversation;
    // Only going up leaves the end: it also moves away by itself, when text comes.
    if (scrollHeight - scrollTop - clientHeight < 40) this.#atEnd = true;
    else if (scrollTop < this.#top) this.#atEnd = false;
    this.#top = scrollTop;
  }

  #follow() {
    if (this.#atEnd) this.#conversation.scrollTop = this.#conversation.scrollHeight;
  }

  /** Let the field grow with its text; the style sheet sets the limit. */
  #fit() {
    this.#prompt.style.height = "auto";
    this.#prompt.style.height = `${this.#prompt.scrollHeight}px`;
  }
}
