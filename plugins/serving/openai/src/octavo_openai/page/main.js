// Wires the page: the chat, the engine beside it, the key, and on small screens which of the two is seen.

import { call, ServerError } from "./api.js";
import { Chat } from "./chat.js";
import { Engine } from "./engine.js";
import { askKey, startKey } from "./key.js";
import { pollWhileVisible } from "./poll.js";
import { startSettings } from "./settings.js";

const INTERVAL = 1000;
/** After each failure in a row it waits twice as long as before, up to this. */
const LONGEST_INTERVAL = 16000;

const engine = new Engine();
let interval = INTERVAL;

async function readStatus(signal) {
  try {
    const response = await call("status", { signal });
    const status = await response.json();
    chat.model = status.model;
    engine.show(status);
    interval = INTERVAL;
    return interval;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    const words = `This page cannot read what the server says of itself; load the page again. (${error.message})`;
    engine.showProblem(error instanceof ServerError ? error.message : words, error.status ? "Not ready" : "No connection");
    if (error.status === 401) return (await askKey()) ? 0 : null;
    if (error.retryAfter) return 1000 * error.retryAfter;
    const wait = interval;
    interval = Math.min(2 * interval, LONGEST_INTERVAL);
    return wait;
  }
}

const chat = new Chat(() => wake());
startSettings();
startKey(() => wake());
const wake = pollWhileVisible(readStatus);

for (const button of document.querySelectorAll(".views button")) {
  button.addEventListener("click", () => {
    document.body.dataset.view = button.dataset.view;
    for (const each of document.querySelectorAll(".views button")) {
      each.setAttribute("aria-pressed", String(each === button));
    }
  });
}
chat.focus();
