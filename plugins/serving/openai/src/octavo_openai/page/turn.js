// One turn of the conversation on the page: what the user wrote and what the model answers. Must never know: requests.

import { Answer } from "./answer.js";
import { copyButton, element, setText } from "./dom.js";
import { GrowingText } from "./text.js";

const ENDINGS = {
  length: "cut off at the limit of tokens",
  tool_calls: "calls tools",
  content_filter: "cut off by a filter",
  abort: "ended by the server",
  error: "ended by an error",
};

export class Turn {
  answer = new Answer();

  #reasoning = element("div", { className: "text" });
  #thoughts = element("details", { className: "reasoning", hidden: true }, element("summary", {}, "Reasoning"), this.#reasoning);
  #content = element("div", { className: "text" });
  #tools = element("ul", { className: "tools", hidden: true, attributes: { "aria-label": "Tool calls" } });
  #problem = element("p", { className: "problem", hidden: true, attributes: { role: "alert" } });
  #facts = element("p", { className: "facts" });
  #copy = copyButton("Copy answer", () => this.answer.content || this.answer.reasoning);
  #retry = element("button", { type: "button", className: "quiet retry", hidden: true }, "Retry");
  #actions = element("div", { className: "actions" }, this.#copy, this.#retry, this.#facts);
  #reply = element("div", { className: "answer" });
  #growing = { reasoning: new GrowingText(this.#reasoning), content: new GrowingText(this.#content) };
  #frame = 0;
  #isBusy = true;

  constructor(prompt, model, retry) {
    this.prompt = prompt;
    this.#retry.addEventListener("click", retry);
    const name = element("h3", {}, model || "Model");
    this.#reply.append(name, this.#thoughts, this.#content, this.#tools, this.#problem, this.#actions);
    const asked = element("div", { className: "asked" }, element("h3", { className: "unseen" }, "You"));
    asked.append(element("p", { dir: "auto" }, prompt));
    this.node = element("article", { className: "turn" }, asked, this.#reply);
    this.#busy(true);
  }

  /** What this turn adds to the messages of later requests: nothing if no answer came. */
  get messages() {
    return this.answer.said ? [{ role: "user", content: this.prompt }, this.answer.message] : [];
  }

  /** Begin the answer anew. */
  restart() {
    this.answer = new Answer();
    this.#busy(true);
    this.#show();
  }

  /** Show the answer as it is by the next frame; many chunks may come between two frames. */
  update() {
    this.#frame ||= requestAnimationFrame(() => this.#show());
  }

  finish() {
    this.#busy(false);
    this.#show();
  }

  set last(isLast) {
    this.#retry.hidden = !isLast;
  }

  #busy(busy) {
    this.#isBusy = busy;
    // While it is busy, a screen reader waits; it then reads the whole answer, not each piece.
    this.#reply.setAttribute("aria-busy", String(busy));
    this.#actions.hidden = busy;
  }

  #show() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    const { answer } = this;
    const busy = this.#isBusy;
    this.#reply.dataset.waiting = String(busy && !answer.started);
    this.#thoughts.hidden = !answer.reasoning;
    this.#growing.reasoning.show(answer.reasoning);
    const silent = !busy && !answer.said && !answer.reasoning && !answer.problem;
    this.#content.classList.toggle("silent", silent);
    this.#growing.content.show(silent ? (answer.stopped ? "Stopped before the first token." : "The model ended without a word.") : answer.content);
    this.#showTools();
    this.#problem.hidden = !answer.problem;
    const left = answer.said ? "" : " This message is left out of the conversation.";
    setText(this.#problem, answer.problem ? answer.problem + left : "");
    this.#copy.hidden = !answer.content && !answer.reasoning;
    setText(this.#facts, this.#describe());
  }

  #showTools() {
    const calls = this.answer.toolCalls.filter(Boolean);
    this.#tools.hidden = !calls.length;
    this.#tools.replaceChildren(
      ...calls.map(({ function: { name, arguments: text } }) =>
        element("li", {}, element("strong", {}, name), element("code", {}, text)),
      ),
    );
  }

  #describe() {
    const { usage, tokensPerSecond, timeToFirstToken, finishReason, stopped, problem } = this.answer;
    const cached = usage?.prompt_tokens_details?.cached_tokens;
    const facts = [];
    if (stopped) facts.push("stopped");
    else if (!problem && ENDINGS[finishReason]) facts.push(ENDINGS[finishReason]);
    if (usage) facts.push(`${usage.completion_tokens} tokens`);
    if (tokensPerSecond) facts.push(`${tokensPerSecond.toFixed(1)} tokens/s`);
    if (timeToFirstToken !== null) facts.push(`first after ${timeToFirstToken.toFixed(2)} s`);
    if (usage) facts.push(`prompt ${usage.prompt_tokens} tokens` + (cached ? `, ${cached} from the cache` : ""));
    return facts.join(" · ");
  }
}
