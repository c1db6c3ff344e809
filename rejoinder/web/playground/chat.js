/** The conversation: turns as they are said, several choices side by side, calls to answer. */

import { byId, copyButton, el, oncePerFrame } from "./dom.js";
import { EXAMPLE_RESULTS } from "./editors.js";
import { count, duration, money } from "./format.js";
import { parsed } from "./request.js";
import { grown, validate } from "./schema.js";
import { store } from "./store.js";

/**
 * @typedef {object} Actions
 * @property {() => void} goOn sends the conversation as it is
 * @property {(run: import("./run.js").Run, choice: number) => void} inspect
 * @property {(run: import("./run.js").Run, choice: number) => void} look inspects it where only one part of the page is shown
 * @property {(param: string) => void} showParameter
 * @property {() => void} askForKey
 * @property {(text: string) => void} draft puts a text into the composer
 */

/** @param {HTMLElement} transcript @param {Actions} actions */
export function chat(transcript, actions) {
  /** @type {Map<object, HTMLElement>} */
  const shown = new Map();
  let follow = true;
  transcript.addEventListener("scroll", () => {
    follow = transcript.scrollHeight - transcript.scrollTop - transcript.clientHeight < 60;
  }, { passive: true });
  const scroll = () => {
    if (follow) transcript.scrollTop = transcript.scrollHeight;
  };
  store.on(["turns"], () => {
    const { turns } = store.state;
    for (const [turn, element] of shown) {
      if (turns.includes(turn)) continue;
      element.remove();
      shown.delete(turn);
    }
    if (!turns.length) return transcript.replaceChildren(welcome(actions));
    transcript.querySelector(".welcome")?.remove();
    turns.forEach((turn, place) => {
      if (shown.has(turn)) return;
      const element = turnElement(turn, actions, scroll);
      shown.set(turn, element);
      transcript.insertBefore(element, transcript.children[place] ?? null);
      follow = true;
    });
    for (const element of shown.values()) element.dispatchEvent(new CustomEvent("turns"));
    scroll();
  });
}

function welcome(actions) {
  const ideas = ["Explain a KV cache in two sentences.", "Write a haiku about rain.", "Count from one to twenty in words."];
  return el("div.welcome", {},
    el("h2", {}, "Say something"),
    el("p", {}, "Then look inside the answer: its tokens and their alternatives, its frames and their times, what it cost."),
    el("div.ideas", {}, ...ideas.map((idea) => el("button.quiet", { type: "button", on: { click: () => actions.draft(idea) } }, idea))));
}

function turnElement(turn, actions, scroll) {
  if (turn.role === "user") return userTurn(turn, actions);
  if (turn.role === "tool") return el("article.turn.tool", {}, el("h3", {}, "Result of ", el("code", {}, turn.name)), el("pre", {}, turn.content));
  return assistantTurn(turn, actions, scroll);
}

function userTurn(turn, actions) {
  const edit = el("button.quiet.small", { type: "button", title: "Takes it back into the message box, and what came after away" }, "Edit");
  edit.addEventListener("click", () => {
    if (store.state.running) return;
    const { turns } = store.state;
    store.set({ turns: turns.slice(0, turns.indexOf(turn)) });
    actions.draft(turn.content);
  });
  return el("article.turn.user", {}, el("h3", {}, "You"), el("div.text", {}, turn.content), el("div.turn-actions", {}, edit));
}

// ---------------------------------------------------------------- an answer

function assistantTurn(turn, actions, scroll) {
  const { run } = turn;
  const columns = el("div.choices");
  const foot = el("div.turn-foot");
  const calls = el("div.calls");
  const element = el("article.turn.assistant", {}, el("h3", {}, run.request.model), columns, calls, foot);
  /** @type {ChoiceView[]} */
  const views = [];
  const paint = oncePerFrame(() => {
    while (views.length < run.choices.length) {
      const view = new ChoiceView(turn, views.length, actions);
      views.push(view);
      columns.append(view.element);
    }
    columns.classList.toggle("many", views.length > 1);
    element.dataset.state = run.state;
    for (const view of views) view.paint();
    if (run.ended) {
      foot.replaceChildren(...footOf(turn, actions));
      drawCalls();
    } else foot.replaceChildren(el("span.waiting", {}, run.state === "waiting" ? "Waiting for the first token" : "Arriving"));
    scroll();
  });
  const drawCalls = () => calls.replaceChildren(...openCalls(turn, actions));
  element.addEventListener("chosen", () => {
    for (const view of views) view.mark();
    drawCalls();
  });
  run.watch(paint);
  element.addEventListener("turns", () => run.ended && drawCalls());
  paint();
  return element;
}

class ChoiceView {
  constructor(turn, index, actions) {
    this.turn = turn;
    this.choice = turn.run.choices[index];
    this.lengths = { reasoning: 0, content: 0, refusal: 0 };
    this.texts = {};
    this.thoughts = el("details.thoughts", { hidden: true }, el("summary", {}, "Reasoning ", el("span.size")), this.#text("reasoning"));
    this.refusal = el("div.refusal", { hidden: true }, el("strong", {}, "Refused"), this.#text("refusal"));
    this.calls = el("div.call-list");
    this.verdict = el("div.verdict", { hidden: true });
    this.head = el("div.choice-head", { hidden: true });
    this.element = el("section.choice", { "aria-label": `Answer ${index + 1}` }, this.head, this.thoughts, this.#text("content"), this.refusal, this.calls, this.verdict);
    this.element.addEventListener("click", () => actions.inspect(turn.run, index));
    if ((turn.run.request.n ?? 1) > 1) this.#drawHead(index);
    this.schema = turn.run.request.response_format?.json_schema?.schema;
    this.checked = -1;
  }

  #text(name) {
    this.texts[name] = document.createTextNode("");
    return el("div.text", {}, this.texts[name]);
  }

  #drawHead(index) {
    const radio = el("input", { type: "radio", name: `chosen-${this.turn.run.at}`, checked: this.turn.chosen === index });
    radio.addEventListener("change", () => {
      this.turn.chosen = index;
      this.element.dispatchEvent(new CustomEvent("chosen", { bubbles: true }));
    });
    this.head.hidden = false;
    this.head.append(el("label", { title: "The conversation goes on with this answer" }, radio, ` Answer ${index + 1}`), el("span.finish"));
    this.mark();
  }

  mark() {
    this.element.classList.toggle("chosen", this.turn.chosen === this.choice.index);
  }

  /** Only what is new is added: a frame costs the same at the end of a long answer as at its start. */
  paint() {
    const { choice, turn: { run } } = this;
    for (const name of ["reasoning", "content", "refusal"]) {
      const text = choice[name];
      if (text.length > this.lengths[name]) {
        this.texts[name].appendData(text.slice(this.lengths[name]));
        this.lengths[name] = text.length;
      }
    }
    this.thoughts.hidden = !choice.reasoning;
    if (choice.reasoning) this.thoughts.querySelector(".size").textContent = `${count(choice.reasoning.length)} characters`;
    this.refusal.hidden = !choice.refusal;
    if (choice.calls.length) this.calls.replaceChildren(...choice.calls.filter(Boolean).map(callCard));
    if (!this.head.hidden) this.head.querySelector(".finish").textContent = choice.finish ?? "";
    this.element.classList.toggle("empty", choice.isEmpty && run.ended);
    if (this.schema) this.#validate();
  }

  #validate() {
    const { choice, turn: { run } } = this;
    const state = choice.content.length * 2 + (run.ended ? 1 : 0);
    if (state === this.checked || !choice.content) return;
    this.checked = state;
    const found = grown(choice.content);
    const faults = found ? validate(found.value, this.schema, { partial: !run.ended }) : [{ path: "the answer", message: "is no JSON" }];
    if (run.ended && found && !found.complete) faults.unshift({ path: "the answer", message: "ends before its JSON does" });
    this.verdict.hidden = false;
    this.verdict.className = `verdict ${faults.length ? "bad" : "good"}`;
    const good = run.ended ? "Fits the schema" : "Fits the schema so far";
    this.verdict.replaceChildren(...(faults.length ? faults.slice(0, 5).map(({ path, message }) => el("div", {}, el("code", {}, path), ` ${message}`)) : [good]));
  }
}

function callCard(call) {
  const args = parsed(call.arguments);
  const text = args === undefined ? call.arguments : JSON.stringify(args, null, 2);
  return el("div.call", {}, el("div.call-name", {}, el("span", { "aria-hidden": "true" }, "ƒ "), el("code", {}, call.name || "…"), el("span.hint", {}, call.id)), el("pre", {}, text));
}

/** The form that answers calls by hand, under the answer that made them, while it is the last. */
function openCalls(turn, actions) {
  const { turns } = store.state;
  const calls = turn.run.openCalls(turn.chosen);
  if (!calls.length || turns.at(-1) !== turn) return [];
  const fields = calls.map((call, place) => {
    const id = `result-${turn.run.at}-${place}`;
    const area = el("textarea.code", { id, rows: 3, value: EXAMPLE_RESULTS[call.name] ?? "", placeholder: "What the function gives back", spellcheck: false });
    return { call, area, element: el("div.field.wide", {}, el("label", { for: id }, "Result of ", el("code", {}, call.name)), area) };
  });
  const form = el("form.answer-calls", { "aria-label": "Answer the calls" }, ...fields.map(({ element }) => element), el("div.row.end", {}, el("span.hint.grow", {}, "You are the function: say what it gives back."), el("button.primary", { type: "submit" }, "Answer and go on")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const empty = fields.find(({ area }) => !area.value.trim());
    if (empty) return empty.area.focus();
    const results = fields.map(({ call, area }) => ({ role: /** @type {const} */ ("tool"), callId: call.id, name: call.name, content: area.value }));
    store.set({ turns: [...store.state.turns, ...results] });
    actions.goOn();
  });
  return [form];
}

// ---------------------------------------------------------------- its end

function footOf(turn, actions) {
  const { run } = turn;
  const again = el("button.quiet.small", { type: "button" }, run.state === "failed" ? "Try again" : "Regenerate");
  again.addEventListener("click", () => {
    if (store.state.running) return;
    const { turns } = store.state;
    store.set({ turns: turns.slice(0, turns.indexOf(turn)) });
    actions.goOn();
  });
  const look = el("button.quiet.small", { type: "button", on: { click: () => actions.look(run, turn.chosen) } }, "Inspect");
  const copy = copyButton(() => run.choices[turn.chosen]?.content ?? "");
  const facts = run.state === "failed" ? [] : summaryOf(turn).map((text) => el("span.fact", {}, text));
  const card = run.error ? [errorCard(run, actions)] : [];
  return [...card, el("div.turn-actions", {}, ...facts, el("span.grow"), run.state === "failed" ? null : copy, look, again)];
}

function summaryOf({ run, chosen }) {
  const finish = run.choices[chosen]?.finish;
  const facts = [];
  if (run.state === "stopped") facts.push("stopped by you");
  else if (finish && finish !== "stop") facts.push(finish);
  if (run.usage) facts.push(`${count(run.usage.completion_tokens ?? 0)} tokens`);
  if (run.firstText !== null && run.stream) facts.push(`first after ${duration(run.firstText)}`);
  if (run.rate && run.stream) facts.push(`${run.rate.toFixed(1)} tokens/s`);
  else if (run.endTime !== null) facts.push(duration(run.endTime));
  if (run.usage?.estimated_cost) facts.push(money(run.usage.estimated_cost));
  return facts;
}

const ADVICE = {
  401: "Give a key of this server with the button API key.",
  402: "The budget of this key is spent.",
  403: "This key may not do that.",
  404: "Choose another model in the settings.",
  413: "The request is larger than the server takes.",
  429: "Too much at once, or a limit is used up. Wait a little, then try again.",
  503: "The server is starting, stopping, or without its engine.",
};

function errorCard(run, actions) {
  const { error, status } = run;
  const facts = [["type", error.type], ["code", error.code], ["param", error.param], ["request", run.requestId]].filter(([, value]) => value);
  const after = run.headers["retry-after"];
  const buttons = [];
  if (error.param) buttons.push(el("button.small", { type: "button", on: { click: () => actions.showParameter(error.param) } }, `Show ${error.param.split(/[.[]/)[0]}`));
  if (status === 401) buttons.push(el("button.small", { type: "button", on: { click: actions.askForKey } }, "API key"));
  const title = status >= 400 ? `Error ${status}` : run.frames.length ? "The answer broke off" : "No answer";
  return el("div.error", { role: "alert" },
    el("strong", {}, title),
    el("p", {}, error.message || "The server gave no reason."),
    ADVICE[status] ? el("p.hint", {}, ADVICE[status], after ? ` The server says: in ${after} s.` : "") : null,
    facts.length ? el("dl.facts", {}, ...facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))])) : null,
    buttons.length ? el("div.row", {}, ...buttons) : null);
}

/** The calls that wait for their results, if any: nothing else can be said before. */
export function waitingCalls() {
  const last = store.state.turns.at(-1);
  return last?.role === "assistant" && last.run.openCalls(last.chosen).length ? byId("transcript").querySelector(".answer-calls textarea") : null;
}
