// One answer of the model, put together from the chunks of a stream, with its times. Must never know: elements.

export class Answer {
  content = "";
  reasoning = "";
  /** As the API has them: {id, type, function: {name, arguments}}, by index. */
  toolCalls = [];
  usage = null;
  finishReason = null;
  /** Why it failed, or null. */
  problem = null;
  stopped = false;

  #asked = performance.now();
  #first = null;
  #last = null;

  add(chunk) {
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices?.find(({ index }) => index === 0);
    if (!choice) return;
    const { content, reasoning_content: reasoning, tool_calls: toolCalls } = choice.delta ?? {};
    this.content += content ?? "";
    this.reasoning += reasoning ?? "";
    for (const delta of toolCalls ?? []) this.#addToolCall(delta);
    if (content || reasoning || toolCalls?.length) {
      this.#last = performance.now();
      this.#first ??= this.#last;
    }
    this.finishReason = choice.finish_reason ?? this.finishReason;
  }

  #addToolCall({ index = 0, id, function: { name, arguments: text = "" } = {} }) {
    const call = (this.toolCalls[index] ??= { id: "", type: "function", function: { name: "", arguments: "" } });
    if (id) call.id = id;
    if (name) call.function.name = name;
    call.function.arguments += text;
  }

  /** Whether there is anything that the conversation can go on from. */
  get said() {
    return Boolean(this.content || this.toolCalls.length);
  }

  get started() {
    return this.#first !== null;
  }

  /** The message that a later request sends back. */
  get message() {
    const message = { role: "assistant", content: this.content };
    const toolCalls = this.toolCalls.filter(Boolean);
    return toolCalls.length ? { ...message, tool_calls: toolCalls } : message;
  }

  /** Seconds from asking to the first text. */
  get timeToFirstToken() {
    return this.started ? (this.#first - this.#asked) / 1000 : null;
  }

  /** Tokens per second after the first one; null where there is nothing to measure. */
  get tokensPerSecond() {
    const tokens = (this.usage?.completion_tokens ?? 0) - 1;
    const seconds = (this.#last - this.#first) / 1000;
    return tokens > 0 && seconds > 0 ? tokens / seconds : null;
  }
}
