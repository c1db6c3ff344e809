/** The dashboard: asks `/dashboard/data` every few seconds and draws it. */

import { Chart } from "./chart.js";
import { byId, el } from "./dom.js";
import { count, duration, money } from "./format.js";
import { store } from "./store.js";
import { theme } from "./theme.js";

const number = (value) => (value >= 100 ? count(Math.round(value)) : value >= 10 ? value.toFixed(1) : String(Number(value.toFixed(2))));
const whole = (value) => count(Math.round(value));
const share = (value) => `${(value * 100).toFixed(value < 0.1 && value > 0 ? 1 : 0)} %`;
const last = (series) => series.findLast((value) => value !== null) ?? 0;
const sumNow = (format, unit = "") => (names, values) => format(names.reduce((sum, name) => sum + last(values[name]), 0)) + unit;
const sumAll = (names, values) => whole(names.reduce((sum, name) => sum + values[name].reduce((total, value) => total + value, 0), 0));
const ofSeries = (name, format) => (names, values) => (values[name] ? format(last(values[name])) : "–");

const KINDS = { prompt: 0, cached: 3, completion: 2, reasoning: 4 };
const TIERS = { default: 0, flex: 3, priority: 2 };
const ENDINGS = { ok: 5, error: 7, cancelled: 6 };

const CHARTS = [
  [new Chart({ title: "Tokens per second", colours: KINDS, kind: "stack", format: number, nothing: "No tokens in this window.", now: sumNow(number) }), (data) => data.tokens_per_second],
  [new Chart({ title: "Time to first token", kind: "lines", format: duration, nothing: "No answer began in this window.", now: ofSeries("p50", duration) }), (data) => data.first_token_ms],
  [new Chart({ title: "Time per output token", kind: "lines", format: duration, nothing: "No answer of two tokens in this window.", now: ofSeries("p50", duration) }), (data) => data.per_token_ms],
  [new Chart({ title: "Running sequences, by tier", colours: TIERS, kind: "stack", format: whole, least: 4, nothing: "Nothing ran.", now: sumNow(whole) }), (data) => data.running],
  [new Chart({ title: "Waiting sequences, by tier", colours: TIERS, kind: "stack", format: whole, least: 4, nothing: "Nothing waited.", now: sumNow(whole) }), (data) => data.waiting],
  [new Chart({ title: "KV cache cells in use", kind: "lines", format: share, least: 1, nothing: "No embedded engine, or its cache is empty.", now: sumNow(share) }), (data) => cellShares(data)],
  [new Chart({ title: "Prompt tokens from the prefix cache", kind: "lines", format: share, least: 1, nothing: "Nothing was prefilled by an embedded engine.", now: ofSeries("cached", share) }), (data) => ({ cached: data.prefix_hit_share })],
  [new Chart({ title: "Requests, by how they ended", colours: ENDINGS, kind: "stack", format: whole, least: 4, nothing: "No request ended.", now: sumAll }), (data) => data.requests],
  [new Chart({ title: "Errors, by code", kind: "stack", format: whole, least: 4, nothing: "No errors.", now: sumAll }), (data) => data.errors],
  [new Chart({ title: "Provider repairs, by kind", kind: "stack", format: whole, least: 4, nothing: "Nothing to repair.", now: sumAll }), (data) => data.repairs],
  [new Chart({ title: "Contract violations, by rule", kind: "stack", format: whole, least: 4, nothing: "No rule broken by checked answers.", now: sumAll }), (data) => data.violations],
];

/** Used cells as a share of all, by model. */
function cellShares(data) {
  return Object.fromEntries(Object.entries(data.cells_used).map(([model, used]) => [model, used.map((cells) => cells / data.cells_total[model])]));
}

/** @param {{account: string, requests: number, prompt_tokens: number, completion_tokens: number, cost_usd: number}[]} rows */
function costTable(rows) {
  const sorted = rows.toSorted((a, b) => b.cost_usd - a.cost_usd || b.completion_tokens - a.completion_tokens);
  const total = rows.reduce((sum, row) => sum + row.cost_usd, 0);
  const head = ["account", "requests", "prompt", "completion", "cost"].map((name) => el("th", { scope: "col" }, name));
  const body = sorted.map((row) => el("tr", {}, el("th", { scope: "row" }, row.account), ...[whole(row.requests), whole(row.prompt_tokens), whole(row.completion_tokens), money(row.cost_usd)].map((text) => el("td", {}, text))));
  return el("section.card", { "aria-label": "Cost by account" },
    el("header", {}, el("h2", {}, "Cost by account"), el("span.now", {}, money(total))),
    rows.length ? el("div.table-box", {}, el("table", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body))) : el("p.quiet-card", {}, "Nobody asked for anything."));
}

// ---------------------------------------------------------------- asking

const charts = byId("charts");
let costs = el("section.card");
let paused = false;
let waiting = 0;

async function update() {
  clearTimeout(waiting);
  let seconds = 5;
  try {
    const { key } = store.state;
    const response = await fetch("dashboard/data", { headers: key ? { authorization: `Bearer ${key}` } : {} });
    const data = await response.json();
    if (response.status === 401 || response.status === 403) return askForKey(data.error?.message ?? "");
    if (!response.ok) throw new Error(data.error?.message ?? `HTTP ${response.status}`);
    seconds = data.step_seconds;
    draw(data);
  } catch (error) {
    byId("state").textContent = `No data: ${error.message}. Trying again.`;
  }
  if (!paused) waiting = setTimeout(update, document.hidden ? 30000 : seconds * 1000);
}

function draw(data) {
  byId("key-form").hidden = true;
  charts.hidden = false;
  const window = { steps: Math.round(data.window_seconds / data.step_seconds), seconds: data.step_seconds };
  for (const [chart, pick] of CHARTS) chart.draw(pick(data), window);
  const table = costTable(data.cost);
  costs.replaceWith(table);
  costs = table;
  const at = data.ended_at.at(-1);
  byId("state").textContent = at ? `As of ${new Date(at * 1000).toLocaleTimeString()}` : "The first numbers come in a few seconds.";
}

function askForKey(reason) {
  charts.hidden = true;
  byId("key-form").hidden = false;
  byId("key-reason").textContent = reason;
  byId("state").textContent = "";
  byId("key").focus();
}

function main() {
  theme(byId("theme-button"));
  charts.append(...CHARTS.map(([chart]) => chart.element), costs);
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    store.setKey(byId("key").value.trim(), true);
    update();
  });
  byId("pause").addEventListener("click", () => {
    paused = !paused;
    byId("pause").setAttribute("aria-pressed", String(paused));
    byId("pause").textContent = paused ? "Go on" : "Pause";
    if (paused) clearTimeout(waiting);
    else update();
  });
  document.addEventListener("visibilitychange", () => document.hidden || paused || update());
  update();
}

main();
