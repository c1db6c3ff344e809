/** Series over the window, drawn in SVG: lines, or areas on top of each other. */

import { el, svg } from "./dom.js";

const WIDTH = 600;
const HEIGHT = 130;
const COLOURS = 7;
const LEAST_STEPS = 24;

/**
 * @typedef {object} ChartOptions
 * @property {string} title
 * @property {"lines"|"stack"} kind
 * @property {(value: number) => string} format
 * @property {number} [least] the top of the scale is at least this
 * @property {Record<string, number>} [colours] of series that always look the same
 * @property {string} nothing said while there is nothing to draw
 * @property {(names: string[], values: Record<string, (number|null)[]>) => string} now the number that stands for all
 */

export class Chart {
  /** @param {ChartOptions} options */
  constructor(options) {
    this.options = options;
    this.now = el("span.now");
    this.picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": options.title });
    this.top = el("span.top");
    this.from = el("span");
    this.keys = el("div.keys");
    this.chart = el("div.chart", {}, this.picture, this.top);
    this.times = el("div.times", {}, this.from, el("span", {}, "now"));
    this.nothing = el("p.quiet-card", { hidden: true }, options.nothing);
    this.element = el("section.card", { "aria-label": options.title }, el("header", {}, el("h2", {}, options.title), this.now), this.chart, this.times, this.keys, this.nothing);
    this.picture.addEventListener("pointermove", (event) => this.#hover(event));
    this.picture.addEventListener("pointerleave", () => this.#drawKeys(-1));
  }

  /** @param {Record<string, (number|null)[]>} values by series, one a step @param {{steps: number, seconds: number}} window */
  draw(values, { steps: most, seconds }) {
    // A server that has just started fills the width; the window grows with it.
    const steps = Math.min(most, Math.max(LEAST_STEPS, ...Object.values(values).map((series) => series.length)));
    const names = Object.keys(values).filter((name) => values[name].some((value) => value));
    this.names = names;
    this.values = values;
    this.steps = steps;
    this.seconds = seconds;
    const has = names.length > 0;
    for (const part of [this.chart, this.times, this.keys, this.now]) part.hidden = !has;
    this.nothing.hidden = has;
    if (!has) return;
    this.now.textContent = this.options.now(names, values);
    const drawn = this.options.kind === "stack" ? stacked(names, values) : names.map((name) => values[name]);
    const length = drawn[0].length;
    const highest = Math.max(this.options.least ?? 0, ...drawn.flat().filter((value) => value !== null));
    const top = rounded(highest) || 1;
    this.top.textContent = this.options.format(top);
    this.x = (place) => WIDTH - ((length - 1 - place) / Math.max(1, steps - 1)) * WIDTH;
    const y = (value) => HEIGHT - (value / top) * (HEIGHT - 4);
    const grid = [0, 0.5, 1].map((share) => svg("line.grid", { x1: 0, x2: WIDTH, y1: y(top * share), y2: y(top * share) }));
    const paths = drawn.map((series, place) => {
      const colour = this.#colour(names[place], place);
      if (this.options.kind === "stack") return svg(`path.area.${colour}`, { d: band(series, drawn[place - 1] ?? series.map(() => 0), this.x, y) });
      return svg(`path.${colour}`, { d: line(series, this.x, y), "fill-opacity": 0 });
    });
    this.cursor = svg("line.hover", { x1: 0, x2: 0, y1: 0, y2: HEIGHT, visibility: "hidden" });
    this.picture.replaceChildren(...grid, ...paths, this.cursor);
    this.picture.setAttribute("aria-label", `${this.options.title}: now ${this.now.textContent}, scale to ${this.top.textContent}.`);
    this.#drawKeys(-1);
  }

  #colour(name, place) {
    return `s${this.options.colours?.[name] ?? place % COLOURS}`;
  }

  #drawKeys(place) {
    const at = (series) => (place < 0 ? series.findLast((value) => value !== null) : series[place]);
    this.keys.replaceChildren(...this.names.map((name, number) => {
      const value = at(this.values[name]);
      return el("span", {}, el(`i.${this.#colour(name, number)}`), `${name} `, el("b", {}, value === null || value === undefined ? "–" : this.options.format(value)));
    }));
    this.cursor.setAttribute("visibility", place < 0 ? "hidden" : "visible");
    if (place < 0) this.from.textContent = `${Math.round((this.steps * this.seconds) / 60)} min ago`;
  }

  #hover(event) {
    const box = this.picture.getBoundingClientRect();
    const length = this.values[this.names[0]].length;
    const share = (event.clientX - box.left) / box.width;
    const place = Math.round(length - 1 - (1 - share) * (this.steps - 1));
    if (place < 0 || place >= length) return this.#drawKeys(-1);
    this.#drawKeys(place);
    const x = String(this.x(place));
    this.cursor.setAttribute("x1", x);
    this.cursor.setAttribute("x2", x);
    const ago = (length - 1 - place) * this.seconds;
    this.from.textContent = ago < 90 ? `${ago} s ago` : `${(ago / 60).toFixed(1)} min ago`;
  }
}

/** Each series on top of those before it. */
function stacked(names, values) {
  const sums = [];
  for (const name of names) {
    const below = sums.at(-1);
    sums.push(values[name].map((value, place) => (value ?? 0) + (below ? below[place] : 0)));
  }
  return sums;
}

/** The area between a series and the one below it. */
function band(upper, lower, x, y) {
  const points = (series) => series.map((value, place) => `${x(place).toFixed(1)},${y(value).toFixed(1)}`);
  return `M${[...points(upper), ...points(lower).reverse()].join("L")}Z`;
}

/** A path with a gap of its own length where nothing was measured; lone points stay visible. */
function line(series, x, y) {
  let path = "";
  let open = false;
  series.forEach((value, place) => {
    if (value !== null) path += open ? `L${x(place).toFixed(1)},${y(value).toFixed(1)}` : `M${x(place).toFixed(1)},${y(value).toFixed(1)}h0.01`;
    open = value !== null;
  });
  return path;
}

/** The next number of 1, 2, 2.5, 5 times a power of ten. */
function rounded(value) {
  if (value <= 0) return 0;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}
