// The blocks of one KV cache group as a map on a canvas: one cell for a block, or for several where there are many.

import { element, setText } from "./dom.js";
import { count } from "./numbers.js";

/** What a cell's letter means; the style sheet has a colour `--cell-<name>` for each. */
const CELLS = { s: "shared", u: "used", c: "cached", ".": "free" };
const TALLEST = 190;
const PITCHES = { least: 4, most: 13 };

export class BlockMap {
  #title = element("h4");
  #canvas = element("canvas", { attributes: { role: "img" } });
  #map = { cells: "" };
  #drawn = "";

  constructor() {
    this.node = element("div", { className: "block-map" }, this.#title, this.#canvas);
    new ResizeObserver(() => this.draw()).observe(this.node);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  show(map, name) {
    this.#map = map;
    const { total, block_size: size, per_cell: each, counts } = map;
    const facts = [`${count(total)} blocks of ${size} tokens`];
    if (each > 1) facts.push(`a cell is ${each} blocks`);
    setText(this.#title, (name ? [name, ...facts] : facts).join(" · "));
    const said = `${counts.shared} shared, ${counts.used} used by one sequence, ${counts.cached} free with cached content, ${counts.free} free`;
    this.#canvas.setAttribute("aria-label", `${name || "KV cache"}: ${said}`);
    this.draw();
  }

  draw() {
    const width = this.node.clientWidth;
    const { cells } = this.#map;
    const scale = devicePixelRatio || 1;
    const style = getComputedStyle(this.node);
    const colours = Object.fromEntries(Object.entries(CELLS).map(([cell, name]) => [cell, style.getPropertyValue(`--cell-${name}`)]));
    const state = [width, scale, Object.values(colours), cells].join();
    if (!width || !cells || state === this.#drawn) return; // unseen, or nothing new
    this.#drawn = state;
    const columns = Math.floor(width / fit(cells.length, width));
    const pitch = width / columns;
    const height = Math.ceil(cells.length / columns) * pitch;
    this.#canvas.width = Math.round(width * scale);
    this.#canvas.height = Math.round(height * scale);
    this.#canvas.style.height = `${height}px`;
    const context = this.#canvas.getContext("2d");
    const gap = Math.round((pitch >= 8 ? 2 : 1) * scale);
    const edge = (place) => Math.round(place * pitch * scale); // whole pixels of the screen, so that cells are sharp
    for (let index = 0; index < cells.length; index++) {
      const [column, row] = [index % columns, Math.floor(index / columns)];
      const [left, top] = [edge(column), edge(row)];
      context.fillStyle = colours[cells[index]];
      context.fillRect(left, top, edge(column + 1) - left - gap, edge(row + 1) - top - gap);
    }
  }
}

/** The largest pitch with which all cells stay within the height that a map may take. */
function fit(cells, width) {
  let pitch = PITCHES.most;
  while (pitch > PITCHES.least && Math.ceil(cells / Math.floor(width / pitch)) * pitch > TALLEST) pitch--;
  return pitch;
}
