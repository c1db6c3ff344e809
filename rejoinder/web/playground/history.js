/** Conversations that this browser keeps; the server never hears of them. */

import { el } from "./dom.js";
import { when } from "./format.js";
import { Run } from "./run.js";
import { read, store, write } from "./store.js";

const HISTORY = "rejoinder.history";
const MOST = 40;

/** @typedef {{id: string, at: number, title: string, turns: any[]}} Kept */

/** @returns {Kept[]} newest first */
function kept() {
  const list = read(localStorage, HISTORY);
  return Array.isArray(list) ? list : [];
}

/** The oldest go first when the browser's storage is full. @param {Kept[]} list */
function keep(list) {
  for (let number = Math.min(list.length, MOST); number >= 0; number--) {
    if (write(localStorage, HISTORY, list.slice(0, number))) return;
  }
}

/** Keeps the conversation of this moment. */
export function remember() {
  const { turns, conversation } = store.state;
  if (!turns.length) return;
  const title = turns.find((turn) => turn.role === "user")?.content.slice(0, 80) ?? "";
  const plain = turns.map((turn) => (turn.role === "assistant" ? { ...turn, run: turn.run.summary() } : turn));
  keep([{ id: conversation, at: Date.now(), title, turns: plain }, ...kept().filter((one) => one.id !== conversation)]);
}

/** @param {any[]} turns as they were kept @returns {import("./store.js").Turn[]} */
function restore(turns) {
  return turns.map((turn) => (turn.role === "assistant" ? { ...turn, run: Run.restore(turn.run) } : turn));
}

/** @param {HTMLElement} panel @param {{open: (turns: import("./store.js").Turn[], id: string) => void}} actions */
export function history(panel, actions) {
  const draw = () => {
    if (panel.hidden) return;
    const list = kept();
    if (!list.length) return panel.replaceChildren(el("div.empty", {}, el("p", {}, "Conversations are kept here, in this browser only.")));
    const clear = el("button.quiet.small", { type: "button" }, "Forget all");
    clear.addEventListener("click", () => {
      write(localStorage, HISTORY, null);
      draw();
    });
    panel.replaceChildren(el("ul.list", {}, ...list.map((one) => row(one))), el("div.row.end.footer", {}, clear));
  };
  const row = (one) => {
    const open = el("button.list-main", { type: "button" }, el("span.title", {}, one.title || "Untitled"), el("span.hint", {}, `${when(one.at)}, ${one.turns.length} turns`));
    open.addEventListener("click", () => actions.open(restore(one.turns), one.id));
    if (one.id === store.state.conversation) open.setAttribute("aria-current", "true");
    const forget = el("button.quiet.small", { type: "button", "aria-label": `Forget ${one.title}` }, "✕");
    forget.addEventListener("click", () => {
      keep(kept().filter((other) => other.id !== one.id));
      draw();
    });
    return el("li", {}, open, forget);
  };
  store.on(["turns", "running", "conversation"], draw);
  new MutationObserver(draw).observe(panel, { attributes: true, attributeFilter: ["hidden"] });
}
