/** The token view: every token coloured by its probability; one chosen shows its alternatives. */

import { el, oncePerFrame } from "./dom.js";
import { count, hex, percent, visible } from "./format.js";
import { store } from "./store.js";

const MAX_A_FRAME = 200;
const SENTINEL = -9000;
/** Least probability of each shade; the first one has no colour. */
const SHADES = [0.9, 0.7, 0.5, 0.3, 0.15, 0.05, 0];

/** @param {number} logprob @returns {number} */
export function shade(logprob) {
  const probability = Math.exp(logprob);
  return SHADES.findIndex((least) => probability >= least);
}

/** Where the chosen token is among the alternatives, from 1; null where it is not listed. */
export function rankOf(entry) {
  const place = (entry.top_logprobs ?? []).findIndex((one) => one.token === entry.token && String(one.bytes) === String(entry.bytes));
  return place < 0 ? null : place + 1;
}

/** @param {HTMLElement} panel @param {{turnOn: () => void}} actions */
export function tokens(panel, actions) {
  const summary = el("div.row.token-summary");
  const list = el("div.tokens", { role: "listbox", "aria-label": "Tokens of the answer", tabIndex: 0 });
  const legend = el("div.legend", { "aria-hidden": "true" }, "likely ", ...SHADES.map((_, place) => el(`span.p${place}`, {}, " ")), " surprising");
  const detail = el("div.token-detail", { "aria-live": "polite" });
  const empty = el("div.empty");
  panel.append(empty, summary, legend, list, detail);
  const view = new TokenView(list, detail, summary);
  let unwatch = () => {};

  const paint = oncePerFrame(() => {
    const { run, choice } = store.state;
    const entries = run?.choices[choice]?.entries ?? [];
    const has = entries.length > 0;
    for (const part of [summary, legend, list, detail]) part.hidden = !has;
    empty.hidden = has;
    if (has) {
      view.show(entries, run);
      if (view.isBehind) paint();
    } else empty.replaceChildren(...explain(run, actions));
  });
  store.on(["run", "choice"], () => {
    unwatch();
    const { run } = store.state;
    if (run) unwatch = run.watch(paint);
    view.reset();
    paint();
  });
}

function* explain(run, actions) {
  if (!run) return yield el("p", {}, "The tokens of an answer appear here, coloured by how likely each was.");
  if (run.request.logprobs) {
    if (run.state === "failed") return yield el("p", {}, "There are no tokens: the request failed.");
    if (!run.ended) return yield el("p", {}, "Waiting for tokens.");
    const calls = run.choices.some((choice) => choice.calls.length);
    return yield el("p", {}, run.frames.length ? (calls ? "This answer is a call; its tokens have no probabilities." : "This answer came without probabilities.") : "Probabilities are not kept in the history. Regenerate the answer to see them.");
  }
  yield el("p", {}, "This request did not ask for probabilities.");
  yield el("button.primary", { type: "button", on: { click: actions.turnOn } }, "Ask for them from now on");
}

class TokenView {
  constructor(list, detail, summary) {
    this.list = list;
    this.detail = detail;
    this.summary = summary;
    this.reset();
    list.addEventListener("click", (event) => {
      const token = event.target.closest("[data-place]");
      if (token) this.choose(Number(token.dataset.place));
    });
    list.addEventListener("keydown", (event) => this.#key(event));
  }

  reset() {
    /** @type {import("./run.js").Entry[]} */
    this.entries = [];
    this.shown = 0;
    this.chosen = -1;
    this.sum = 0;
    this.list.replaceChildren();
    this.list.removeAttribute("aria-activedescendant");
    this.detail.replaceChildren(el("p.hint", {}, "Choose a token to see what else the model might have said. Arrow keys move; S goes to the next surprising one."));
  }

  get isBehind() {
    return this.shown < this.entries.length;
  }

  show(entries, run) {
    this.entries = entries;
    this.run = run;
    const batch = document.createDocumentFragment();
    const end = Math.min(entries.length, this.shown + MAX_A_FRAME);
    for (; this.shown < end; this.shown++) batch.append(this.#token(this.shown));
    this.list.append(batch);
    const mean = this.sum / this.shown;
    this.summary.replaceChildren(
      el("span.fact", {}, `${count(entries.length)} tokens`),
      el("span.fact", { title: "e to the mean surprise: how many equally likely tokens the model chose from, on average" }, `perplexity ${Math.exp(-mean).toFixed(2)}`),
      el("span.fact", { title: "Geometric mean" }, `mean probability ${percent(mean)}`),
    );
  }

  #token(place) {
    const { token, logprob } = this.entries[place];
    this.sum += Math.max(logprob, -20);
    const span = document.createElement("span");
    span.className = `p${shade(logprob)}`;
    span.setAttribute("role", "option");
    span.setAttribute("aria-selected", "false");
    span.id = `token-${place}`;
    span.dataset.place = String(place);
    span.textContent = token.includes("\n") ? token.replaceAll("\n", "↵\n") : token || "∅";
    return span;
  }

  choose(place) {
    if (!this.entries.length) return;
    this.list.children[this.chosen]?.setAttribute("aria-selected", "false");
    this.chosen = Math.max(0, Math.min(this.shown - 1, place));
    const token = this.list.children[this.chosen];
    token.setAttribute("aria-selected", "true");
    token.scrollIntoView({ block: "nearest" });
    this.list.setAttribute("aria-activedescendant", token.id);
    this.detail.replaceChildren(...this.#detail());
  }

  #key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -Infinity, End: Infinity }[event.key];
    if (step !== undefined) {
      event.preventDefault();
      this.choose(this.chosen < 0 ? 0 : this.chosen + step);
    } else if (event.key.toLowerCase() === "s" && !event.ctrlKey && !event.metaKey) {
      const next = this.entries.findIndex((entry, place) => place > this.chosen && Math.exp(entry.logprob) < 0.5);
      if (next >= 0 && next < this.shown) this.choose(next);
    }
  }

  *#detail() {
    const entry = this.entries[this.chosen];
    const rank = rankOf(entry);
    const top = entry.top_logprobs ?? [];
    const unknown = entry.logprob <= SENTINEL;
    yield el("h3", {}, el("code.token-name", {}, visible(entry.token)), el("span.hint", {}, `token ${this.chosen + 1} of ${this.entries.length}`));
    const facts = [
      ["probability", unknown ? "too small to be told" : percent(entry.logprob)],
      ["logprob", unknown ? `${entry.logprob}: not among the 20 most likely` : entry.logprob.toFixed(4)],
      ["rank", rank ?? (top.length ? `beyond ${top.length}` : "not asked for")],
      ["bytes", hex(entry.bytes)],
    ];
    yield el("dl.facts", {}, ...facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))]));
    if (!top.length) return yield el("p.hint", {}, "Set top_logprobs to see alternatives.");
    yield alternatives(entry, rank);
  }
}

/** @returns {HTMLElement} a table, with what is left for all other tokens as its last row */
function alternatives(entry, rank) {
  const top = entry.top_logprobs;
  const rest = 1 - top.reduce((sum, one) => sum + Math.exp(one.logprob), 0);
  const row = (kind, place, name, logprob, bytes) => {
    const bar = el("div.bar");
    bar.style.width = `${Math.min(100, Math.exp(logprob) * 100)}%`;
    return el(kind, {}, el("td.number", {}, place), el("th", { scope: "row" }, name), el("td.bar-cell", {}, bar), el("td.number", {}, percent(logprob)), el("td.number", {}, logprob <= SENTINEL ? "–" : logprob.toFixed(3)), el("td", {}, el("code.bytes", {}, bytes)));
  };
  const rows = top.map((one, place) => row(place + 1 === rank ? "tr.is-chosen" : "tr", String(place + 1), el("code.token-name", {}, visible(one.token)), one.logprob, hex(one.bytes)));
  if (rank === null) rows.push(row("tr.is-chosen", "–", el("code.token-name", {}, visible(entry.token)), entry.logprob, hex(entry.bytes)));
  if (rest > 0.00005) rows.push(row("tr.is-rest", "", el("span.hint", {}, "all others"), Math.log(rest), ""));
  const head = ["#", "token", el("span.unseen", {}, "bar"), "probability", "logprob", "bytes"].map((name) => el("th", { scope: "col" }, name));
  return el("div.table-box", { tabIndex: 0, role: "region", "aria-label": "Alternatives" }, el("table.alternatives", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows)));
}
