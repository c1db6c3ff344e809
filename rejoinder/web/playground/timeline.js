/** When the frames of an answer came: the wait for the first, then the gaps between them. */

import { el, svg } from "./dom.js";
import { duration, quantile } from "./format.js";

const WIDTH = 600;
const HEIGHT = 92;
const BASE = 70;
const MAX_BARS = 300;

/** Gaps between frames that carry something, in ms. @param {import("./run.js").Run} run @returns {{at: number, gap: number}[]} */
export function gapsOf(run) {
  const frames = run.frames.filter((frame) => frame.kind === "chunk" && frame.json.choices?.length);
  return frames.slice(1).map((frame, place) => ({ at: frame.time, gap: frame.time - frames[place].time }));
}

/** @param {import("./run.js").Run} run */
export function timesOf(run) {
  const gaps = gapsOf(run).map(({ gap }) => gap).sort((a, b) => a - b);
  return {
    first: run.firstText,
    total: run.endTime,
    median: quantile(gaps, 0.5),
    p95: quantile(gaps, 0.95),
    longest: gaps.at(-1) ?? null,
  };
}

/** @param {import("./run.js").Run} run @returns {HTMLElement} */
export function timeline(run) {
  const end = run.endTime ?? run.now();
  const x = (time) => (time / Math.max(end, 1)) * WIDTH;
  const gaps = gapsOf(run);
  const longest = Math.max(1, ...gaps.map(({ gap }) => gap));
  const step = Math.max(1, Math.ceil(gaps.length / MAX_BARS));
  const parts = [];
  if (run.firstText !== null) {
    parts.push(svg("rect.wait", { x: 0, y: BASE - 10, width: x(run.firstText), height: 10 }));
    parts.push(svg("line.first", { x1: x(run.firstText), x2: x(run.firstText), y1: 6, y2: BASE }));
  }
  for (let place = 0; place < gaps.length; place += step) {
    const group = gaps.slice(place, place + step);
    const { at, gap } = group.reduce((worst, one) => (one.gap > worst.gap ? one : worst));
    const height = Math.max(1, (gap / longest) * (BASE - 22));
    parts.push(svg("line.gap", { x1: x(at), x2: x(at), y1: BASE - height, y2: BASE }));
  }
  for (const frame of run.frames) {
    if (frame.kind !== "chunk" && frame.kind !== "body") parts.push(svg(`circle.mark.${frame.kind}`, { cx: x(frame.time), cy: BASE, r: 3.5 }));
  }
  parts.push(svg("line.axis", { x1: 0, x2: WIDTH, y1: BASE, y2: BASE }));
  const times = timesOf(run);
  const label = `First text after ${duration(times.first)}, end after ${duration(end)}, longest gap ${duration(times.longest)}.`;
  const picture = svg("svg.timeline", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label, preserveAspectRatio: "none" }, ...parts);
  return el("figure.timeline-box", {}, picture, el("figcaption", {}, el("span", {}, "0"), el("span.hint", {}, gaps.length ? `bars: gaps, up to ${duration(longest)}` : ""), el("span", {}, duration(end))));
}
