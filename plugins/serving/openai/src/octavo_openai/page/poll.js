// Asking again and again, but only while the page can be seen: an idle server with a hidden page stays idle.

/**
 * Call `read(signal)` at once and then after as many milliseconds as it returned; null waits until `wake()`.
 * A hidden page withdraws the call and waits until it is seen. Returns `wake`, which calls at once.
 */
export function pollWhileVisible(read) {
  let timer = null;
  let abort = null;

  async function ask() {
    clearTimeout(timer);
    abort?.abort();
    if (document.visibilityState !== "visible") return;
    const mine = new AbortController();
    abort = mine;
    let wait;
    try {
      wait = await read(mine.signal);
    } catch (error) {
      if (error.name !== "AbortError") throw error;
      return; // whoever withdrew it has asked anew, or will
    }
    if (!mine.signal.aborted && wait !== null) timer = setTimeout(ask, wait);
  }

  document.addEventListener("visibilitychange", ask);
  ask();
  return ask;
}
