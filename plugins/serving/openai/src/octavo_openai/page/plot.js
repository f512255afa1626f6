// A plot of one rate over the last two minutes, as steps: each reading is the mean since the one before it.

import { element, setText, svg } from "./dom.js";
import { rate, WINDOW } from "./numbers.js";

const HEIGHT = 56;

export class Plot {
  #name;
  #value = element("strong", {}, "0.0");
  #peak = element("span", { className: "peak" });
  #area = svg("path", { class: "area" });
  #line = svg("path", { class: "line", "vector-effect": "non-scaling-stroke" });
  #drawing = svg("svg", { viewBox: `0 0 ${WINDOW} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" }, this.#area, this.#line);

  constructor(name, kind) {
    this.#name = name;
    const head = element("p", { className: "plot-head" }, element("span", {}, name), this.#value, this.#peak);
    const axis = element("p", { className: "axis", attributes: { "aria-hidden": "true" } });
    axis.append(element("span", {}, "2 min ago"), element("span", {}, "now"));
    this.node = element("div", { className: "plot", dataset: { kind } }, head, this.#drawing, axis);
  }

  /** `steps` are {from, to, value} in seconds, oldest first; `now` is the right edge. */
  show(steps, now) {
    const peak = Math.max(0, ...steps.map(({ value }) => value));
    const latest = steps.at(-1)?.value ?? 0;
    setText(this.#value, rate(latest));
    setText(this.#peak, peak ? `peak ${rate(peak)}` : "");
    this.#drawing.setAttribute("aria-label", `${this.#name}: ${rate(latest)} tokens per second now, at most ${rate(peak)} in two minutes`);
    // A little room above the highest step, and a scale that is never zero.
    const y = (value) => (HEIGHT - 1 - (value / Math.max(peak * 1.08, 1)) * (HEIGHT - 2)).toFixed(2);
    const x = (second) => Math.max(0, WINDOW - (now - second)).toFixed(2);
    const points = steps.flatMap(({ from, to, value }) => [`${x(from)},${y(value)}`, `${x(to)},${y(value)}`]);
    this.#line.setAttribute("d", points.length ? `M${points.join("L")}` : "");
    this.#area.setAttribute("d", points.length ? `M${x(steps[0].from)},${HEIGHT}L${points.join("L")}L${WINDOW},${HEIGHT}Z` : "");
  }
}
