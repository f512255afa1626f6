// Numbers as a reader wants them, and the rates that two readings of the totals give.

/** How far back the plots look, in seconds. */
export const WINDOW = 120;

export const percent = (part, whole) => (whole > 0 ? `${((100 * part) / whole).toFixed(part && part < whole ? 1 : 0)}%` : "–");

export const count = (number) => number.toLocaleString("en");

export const rate = (number) => (number >= 100 ? count(Math.round(number)) : number.toFixed(1));

export function duration(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  const hours = Math.floor(seconds / 3600);
  return hours < 48 ? `${hours} h ${Math.floor((seconds % 3600) / 60)} min` : `${Math.floor(hours / 24)} days`;
}

/** Tokens per second between readings, on the server's clock; as far back as the plots look. */
export class Rates {
  /** {from, to, prompt, generation}: seconds of the server's uptime, tokens per second. Oldest first. */
  intervals = [];
  #before = null;

  add({ uptime, totals }) {
    const before = this.#before;
    this.#before = { uptime, totals };
    if (before && uptime < before.uptime) this.intervals = []; // another server: it counts from zero
    else if (before && uptime > before.uptime) {
      const per = (name) => (totals[name] - before.totals[name]) / (uptime - before.uptime);
      this.intervals.push({ from: before.uptime, to: uptime, prompt: per("prompt_tokens"), generation: per("generation_tokens") });
    }
    this.intervals = this.intervals.filter(({ to }) => to > uptime - WINDOW);
  }

  get now() {
    return this.#before?.uptime ?? 0;
  }

  get latest() {
    return this.intervals.at(-1) ?? { prompt: 0, generation: 0 };
  }
}
