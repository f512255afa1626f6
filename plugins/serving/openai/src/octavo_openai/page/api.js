// Requests to the server that served this page: addresses, the API key, and what went wrong in words.
// Must never know: what is shown.

import { serverSentEvents } from "./sse.js";

const STORED_KEY = "octavo-api-key";

export const apiKey = {
  get: () => sessionStorage.getItem(STORED_KEY),
  set: (key) => sessionStorage.setItem(STORED_KEY, key),
};

/** A request that failed. `message` is for the user; `status` is 0 if no answer came; `retryAfter` in seconds or null. */
export class ServerError extends Error {
  constructor(message, status = 0, retryAfter = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/** The answer to a GET, or to a POST of `body`. Raises `ServerError`, or `AbortError` after `signal`. */
export async function call(path, { body, signal } = {}) {
  const headers = {};
  if (apiKey.get()) headers["Authorization"] = `Bearer ${apiKey.get()}`;
  if (body) headers["Content-Type"] = "application/json";
  let response;
  try {
    // Relative to the page, so that a proxy may serve it under a prefix.
    response = await fetch(new URL(path, document.baseURI), {
      method: body ? "POST" : "GET",
      body: body && JSON.stringify(body),
      cache: "no-store",
      headers,
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server does not answer. Is octavo serve still running?");
  }
  if (!response.ok) throw await failure(response);
  return response;
}

/** The chunks of a streamed chat completion. Raises `ServerError`, or `AbortError` after `signal`. */
export async function* streamChat(request, signal) {
  const body = { ...request, stream: true, stream_options: { include_usage: true } };
  const response = await call("v1/chat/completions", { body, signal });
  try {
    for await (const data of serverSentEvents(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ServerError(sentence(chunk.error.message ?? "The request failed", chunk.error.param));
      yield chunk;
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ServerError) throw error;
    if (error instanceof SyntaxError) throw new ServerError("The server sent something that is no JSON.");
    throw new ServerError("The connection broke off. Is octavo serve still running?");
  }
  throw new ServerError("The connection ended before the answer did. Is octavo serve still running?");
}

async function failure(response) {
  const text = await response.text();
  let told = "";
  try {
    const { error } = JSON.parse(text);
    told = sentence(error.message, error.param);
    if (error.param && !told.includes(error.param)) told = `${error.param}: ${told}`;
  } catch {
    told = response.headers.get("Content-Type")?.startsWith("text/plain") ? sentence(text) : "";
  }
  const retryAfter = secondsOf(response.headers.get("Retry-After"));
  return new ServerError(inWords(response, told, retryAfter), response.status, retryAfter);
}

function inWords({ status, statusText }, told, retryAfter) {
  const wait = retryAfter === null ? "a little later" : retryAfter === 1 ? "in a second" : `in ${retryAfter} seconds`;
  if (status === 401) return apiKey.get() ? "The server does not accept this API key." : "The server asks for an API key.";
  if (status === 429) return `${told || "The server has as many requests as it takes."} Try again ${wait}.`;
  if (status === 503) return `${told || "The server cannot take requests now."} Try again ${wait}.`;
  return told || `The server answered ${status} ${statusText}`.trim() + ".";
}

/** Of a `Retry-After` header, which has seconds or a date (RFC 9110, section 10.2.3). */
function secondsOf(value) {
  if (value === null) return null;
  const seconds = /^\d+$/.test(value) ? Number(value) : Math.ceil((Date.parse(value) - Date.now()) / 1000);
  return Number.isNaN(seconds) ? null : Math.max(1, seconds);
}

/** The server's message with a capital and a full stop; the name of a field of the request stays as it is. */
function sentence(text, field) {
  const [first] = text.split(" ", 1);
  const begun = /^[a-z]+$/.test(first) && first !== field ? first[0].toUpperCase() + text.slice(1) : text;
  return /[.!?]$/.test(begun) || !begun ? begun : `${begun}.`;
}
