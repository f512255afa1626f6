// Server-sent events out of a response's body, for `EventSource` can send neither a body nor an API key.

/** The data of each event. An event that no empty line ends is left out, as the HTML standard says. */
export async function* serverSentEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      // A carriage return at the very end may be the first half of a line's end: it waits for the next piece.
      const lines = (rest + value).split(/\r\n|\n|\r(?=[^\n])/);
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
        if (line !== "") continue;
        if (data.length) yield data.join("\n");
        data = [];
      }
    }
  } finally {
    // Whoever stops reading closes the connection, so that the server aborts the request. After an abort the
    // cancellation fails with that same abort, which has been reported already.
    reader.cancel().catch(() => {});
  }
}
