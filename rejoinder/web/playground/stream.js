/** The stream view: times, usage, broken rules, and every frame as it came. */

import { copyButton, el, oncePerFrame } from "./dom.js";
import { count, duration, money } from "./format.js";
import { rulesFor } from "./rules.js";
import { store } from "./store.js";
import { timeline, timesOf } from "./timeline.js";
import { VirtualList } from "./virtual.js";

const ROW_HEIGHT = 26;

/** @param {HTMLElement} panel */
export function stream(panel) {
  const empty = el("div.empty", {}, el("p", {}, "What the server sends appears here, frame by frame, with the time of each."));
  const top = el("div.stream-top");
  const detail = el("div.frame-detail", { hidden: true });
  const list = new VirtualList({
    label: "Frames",
    rowHeight: ROW_HEIGHT,
    render: (place) => frameRow(store.state.run.frames, place),
    onChoose: (place) => showFrame(detail, store.state.run.frames, place),
  });
  const frames = el("section", { "aria-label": "Frames" }, el("div.row", {}, el("h3.grow", {}, "Frames"), copyButton(() => store.state.run?.frames.map(raw).join("") ?? "", "Copy all")), list.element, detail);
  const body = el("div", { hidden: true }, top, frames);
  panel.append(empty, body);
  let unwatch = () => {};
  const paint = oncePerFrame(() => {
    const { run } = store.state;
    body.hidden = !run;
    empty.hidden = Boolean(run);
    if (!run || panel.hidden) return;
    const choose = (place) => list.choose(place);
    top.replaceChildren(times(run), timeline(run), rules(run, choose), usage(run), identity(run));
    frames.hidden = !run.frames.length;
    list.resize(run.frames.length);
  });
  store.on(["run"], () => {
    unwatch();
    const { run } = store.state;
    if (run) unwatch = run.watch(paint);
    detail.hidden = true;
    list.clear();
    paint();
  });
  new MutationObserver(paint).observe(panel, { attributes: true, attributeFilter: ["hidden"] });
}

/** A frame as the bytes were. */
function raw(frame) {
  if (frame.kind === "body") return frame.text;
  return frame.kind === "comment" ? `: ${frame.text}\n\n` : `data: ${frame.text}\n\n`;
}

function tile(name, value, title) {
  return el("div.tile", { title: title ?? "" }, el("dt", {}, name), el("dd", {}, value));
}

function times(run) {
  const { first, total, median, p95, longest } = timesOf(run);
  const tiles = run.stream
    ? [
        tile("first text", duration(first), "From sending the request to the first text of the answer, seen from this page"),
        tile("total", duration(total)),
        tile("tokens/s", run.rate ? run.rate.toFixed(1) : "–", "After the first token"),
        tile("gap, median", duration(median), "Between frames; frames of one network read share a time"),
        tile("gap, 95 %", duration(p95)),
        tile("gap, longest", duration(longest)),
      ]
    : [tile("head", duration(run.headTime)), tile("total", duration(total))];
  return el("dl.tiles", {}, ...tiles);
}

function rules(run, choose) {
  const box = el("section.rules", { "aria-label": "Rules of the contract" });
  if (!run.ended) return box;
  const number = rulesFor(run).length;
  if (!run.findings) box.append(el("p.hint", {}, run.state === "stopped" ? "Rules are checked on answers that were not stopped." : run.frames.length ? "Checking rules." : "Frames are not kept in the history."));
  else if (!number) box.append(el("p.hint", {}, "The rules are about answers; this is an error."));
  else if (!run.findings.length) box.append(el("p.verdict.good", {}, `No rule broken: ${number} of the contract's rules were checked.`));
  else {
    box.append(el("h3", {}, `Broken rules (${new Set(run.findings.map(({ rule }) => rule)).size} of ${number} checked)`));
    box.append(el("ul.findings", {}, ...run.findings.map(({ rule, severity, title, message, frame }) =>
      el(`li.${severity}`, {}, el("strong", {}, rule), ` ${title}: ${message} `, frame === null ? null : el("button.quiet.small", { type: "button", on: { click: () => choose(frame) } }, `frame ${frame}`)))));
  }
  return box;
}

function usage(run) {
  if (!run.usage) return el("p.hint", {}, run.ended && run.state === "complete" ? "No usage came: turn include_usage on to see counts." : "");
  const { prompt_tokens: prompt, completion_tokens: completion, total_tokens: total, estimated_cost: cost } = run.usage;
  const input = run.usage.prompt_tokens_details ?? {};
  const output = run.usage.completion_tokens_details ?? {};
  const about = store.state.models.find((one) => one.id === run.request.model)?.metadata;
  const rows = [
    ["prompt", prompt],
    ["· from cache", input.cached_tokens],
    ["· written to cache", input.cache_write_tokens],
    ["completion", completion],
    ["· reasoning", output.reasoning_tokens],
    ["· accepted prediction", output.accepted_prediction_tokens || undefined],
    ["· rejected prediction", output.rejected_prediction_tokens || undefined],
    ["total", total],
  ].filter(([, value]) => value !== undefined);
  const price = cost ?? priced(run.usage, about?.pricing, run.tier);
  const priceRow = price === null ? [] : [el("tr", {}, el("th", { scope: "row" }, cost === undefined ? "cost, by the list" : "cost"), el("td.number", {}, money(price)))];
  return el("table.usage", {}, el("caption", {}, "Usage"), el("tbody", {}, ...rows.map(([name, value]) => el("tr", {}, el("th", { scope: "row" }, name), el("td.number", {}, count(value)))), ...priceRow));
}

/** What OpenAI's dialect does not say: the cost by the model's own prices. */
function priced(usage, pricing, tier) {
  if (!pricing || !(pricing.input_tokens || pricing.output_tokens)) return null;
  const { cached_tokens: cached = 0, cache_write_tokens: written = 0 } = usage.prompt_tokens_details ?? {};
  const input = pricing.input_tokens ?? 0;
  if (tier && tier !== "default") return null;
  return ((usage.prompt_tokens - cached - written) * input + cached * (pricing.cache_read_tokens ?? input) + written * (pricing.cache_write_tokens ?? input) + usage.completion_tokens * (pricing.output_tokens ?? 0)) / 1e6;
}

function identity(run) {
  const facts = [
    ["status", run.status || "none"],
    ["request id", run.requestId],
    ["completion", run.id],
    ["model", run.model],
    ["tier", run.tier],
    ["fingerprint", run.fingerprint],
    ["server time", run.headers["openai-processing-ms"] && `${run.headers["openai-processing-ms"]} ms to the head`],
    ["ignored", run.headers["x-ignored-parameters"]],
    ["flagged", run.moderation && moderationSummary(run.moderation)],
  ].filter(([, value]) => value);
  return el("dl.facts.identity", {}, ...facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, el("code", {}, String(value)))]));
}

function moderationSummary({ input, output }) {
  const half = (one) => (one?.type === "error" ? `error (${one.code})` : one?.results?.some((result) => result.flagged) ? "yes" : "no");
  return `question ${half(input)}, answer ${half(output)}`;
}

/** What a frame brings, in a few letters: one can see the shape of a stream by them. */
function kindOf({ kind, json }) {
  if (kind !== "chunk") return kind;
  const choice = json.choices?.[0];
  if (!choice) return json.usage ? "usage" : json.moderation ? "moderation" : "empty";
  const delta = choice.delta ?? {};
  if (choice.finish_reason) return "finish";
  if (delta.tool_calls) return "call";
  if (delta.reasoning_content) return "reasoning";
  if (delta.refusal) return "refusal";
  if (delta.content) return "text";
  return delta.role ? "role" : "chunk";
}

function gist(frame) {
  if (frame.kind !== "chunk") return frame.text;
  const choice = frame.json.choices?.[0];
  const delta = choice?.delta ?? {};
  if (choice?.finish_reason) return choice.finish_reason;
  const call = delta.tool_calls?.[0];
  if (call) return (call.function?.name ?? "") + (call.function?.arguments ?? "");
  const text = delta.content || delta.reasoning_content || delta.refusal;
  return text ? JSON.stringify(text) : frame.text;
}

function frameRow(frames, place) {
  const frame = frames[place];
  const kind = kindOf(frame);
  const gap = place ? frame.time - frames[place - 1].time : frame.time;
  return el("div.frame", {}, el("span.number", {}, String(place)), el("span.number", {}, duration(frame.time)), el("span.number.hint", {}, place ? `+${duration(gap)}` : ""), el(`span.kind.kind-${kind}`, {}, kind), el("code.gist", {}, gist(frame)));
}

function showFrame(detail, frames, place) {
  const frame = frames[place];
  const text = frame.json ? JSON.stringify(frame.json, null, 2) : frame.text;
  detail.hidden = false;
  detail.replaceChildren(el("div.row", {}, el("h4.grow", {}, `Frame ${place}, ${count(new TextEncoder().encode(frame.text).length)} bytes, after ${duration(frame.time)}`), copyButton(() => raw(frame))), el("pre", { tabIndex: 0 }, text));
}
