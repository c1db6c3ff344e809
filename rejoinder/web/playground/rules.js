/**
 * Some of the contract's rules (docs/conformance.md), checked on one answer as it came. Only rules
 * that one transcript can show; `rejoinder check` knows them all.
 */

import { breathe } from "./dom.js";

/** @typedef {{rule: string, severity: "error"|"warning", title: string, message: string, frame: number|null}} Finding */

/**
 * @typedef {object} Rule
 * @property {string} id
 * @property {string} title
 * @property {"openai"|"deepinfra"} [only]
 * @property {"warning"} [severity] an error where there is none
 * @property {"stream"|"body"} [form] both where there is none
 * @property {boolean} [whole] only for answers that came to their end without an error
 * @property {(seen: Transcript) => Iterable<string|[string, number]>} check what broke it, and where
 */

const FINISHES = {
  openai: ["stop", "length", "tool_calls", "content_filter", "function_call"],
  deepinfra: ["stop", "length", "tool_calls", "content_filter", "malformed_function_call"],
};

const KNOWN_FINISHES = new Set(Object.values(FINISHES).flat());

/** An answer as the rules look at it. */
class Transcript {
  /** @param {import("./run.js").Run} run */
  constructor(run) {
    this.run = run;
    this.dialect = run.dialect;
    this.request = run.request;
    this.n = run.request.n ?? 1;
    this.frames = run.frames;
    this.asksUsage = Boolean(run.request.stream_options?.include_usage ?? run.dialect === "deepinfra");
    /** @type {{json: any, at: number}[]} */
    this.chunks = [];
    /** @type {{choice: any, at: number}[]} */
    this.parts = [];
    run.frames.forEach((frame, at) => {
      if (frame.kind !== "chunk" && frame.kind !== "body") return;
      this.chunks.push({ json: frame.json, at });
      for (const choice of this.choices(frame.json)) this.parts.push({ choice, at });
    });
    this.last = this.chunks.at(-1) ?? null;
    this.hasError = run.frames.some((frame) => frame.kind === "error");
  }

  choices(json) {
    return Array.isArray(json.choices) ? json.choices.filter((choice) => choice && typeof choice === "object") : [];
  }

  /** @returns {Map<number, {choice: any, at: number}[]>} */
  get byIndex() {
    const parts = new Map();
    for (const part of this.parts) {
      const index = part.choice.index;
      if (!parts.has(index)) parts.set(index, []);
      parts.get(index).push(part);
    }
    Object.defineProperty(this, "byIndex", { value: parts });
    return parts;
  }

  /** Every entry of logprobs and its frame. @returns {[any, number][]} */
  get entries() {
    const entries = [];
    for (const { choice, at } of this.parts) {
      for (const half of ["content", "refusal"]) {
        for (const entry of choice.logprobs?.[half] ?? []) entries.push([entry, at]);
      }
    }
    Object.defineProperty(this, "entries", { value: entries });
    return entries;
  }
}

/** Chunks whose member differs from the first one's. Null is another rule's. */
function* differing(seen, name) {
  const first = seen.chunks.find(({ json }) => json[name] ?? false)?.json[name];
  for (const { json, at } of seen.chunks) {
    if ((json[name] ?? first) !== first) yield [`${name} is ${JSON.stringify(json[name])}, was ${JSON.stringify(first)}`, at];
  }
}

/** Texts that should have ended the answer, and are in it. */
function* stopped({ run, request }) {
  for (const stop of [request.stop ?? []].flat()) for (const choice of run.choices) if (stop && choice.content.includes(stop)) yield `choice ${choice.index} has ${JSON.stringify(stop)}`;
}

function* nulls(value, path) {
  if (value === null) yield path;
  else if (typeof value === "object") {
    for (const [key, child] of Object.entries(value)) {
      if (key !== "cache_control") yield* nulls(child, path ? `${path}.${key}` : key);
    }
  }
}

/** Every fragment of a call, in order. @returns {Generator<{fragment: any, index: number, at: number, choice: number}>} */
function* fragments(seen) {
  for (const { choice, at } of seen.parts) {
    for (const fragment of choice.delta?.tool_calls ?? []) yield { fragment, index: fragment.index, at, choice: choice.index };
  }
}

/** Whether bytes are bytes, and, where they are text, the token's. */
function spells(bytes, token) {
  if (bytes.some((byte) => !(Number.isInteger(byte) && byte >= 0 && byte < 256))) return false;
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(bytes)) === token;
  } catch {
    return true;
  }
}

const named = (fragment) => fragment.function ?? fragment.custom ?? {};

/** @type {Rule[]} */
export const RULES = [
  { id: "R1", title: "A stream is an event stream", form: "stream", *check({ run }) {
    if (!(run.headers["content-type"] ?? "").startsWith("text/event-stream")) yield `Content-Type is ${run.headers["content-type"] ?? "missing"}`;
  } },
  { id: "R2", title: "A unary answer is one JSON object", form: "body", *check({ run }) {
    if (!(run.headers["content-type"] ?? "").startsWith("application/json")) yield `Content-Type is ${run.headers["content-type"] ?? "missing"}`;
    if (run.frames.some((frame) => frame.kind === "broken")) yield "the body is no JSON object";
  } },
  { id: "R5", title: "One data line an event", severity: "warning", form: "stream", *check({ frames }) {
    for (const [at, frame] of frames.entries()) {
      if (frame.lines > 1) yield [`${frame.lines} data lines`, at];
      if (frame.fields.length) yield [`the field ${frame.fields.join(", ")}`, at];
    }
  } },
  { id: "R6", title: "Every payload is a JSON object", form: "stream", *check({ frames }) {
    for (const [at, frame] of frames.entries()) if (frame.kind === "broken") yield ["not a JSON object", at];
  } },
  { id: "R7", title: "[DONE] once, last", form: "stream", *check({ frames }) {
    const done = [...frames.entries()].filter(([, frame]) => frame.kind === "done");
    if (done.length !== 1) yield `[DONE] came ${done.length} times`;
    const after = frames.findIndex((frame, at) => done.length && at > done[0][0] && frame.kind !== "comment");
    if (after >= 0) yield ["an event after [DONE]", after];
  } },
  { id: "R8", title: "Comments are the only keep-alive", severity: "warning", form: "stream", *check({ frames }) {
    for (const [at, frame] of frames.entries()) {
      if (frame.kind === "comment" && frame.text.startsWith("{")) yield ["a comment holds JSON", at];
      if (frame.kind !== "comment" && frame.text === "") yield ["an event without data", at];
    }
  } },
  { id: "R12", title: "Streams are not cached", severity: "warning", form: "stream", *check({ run }) {
    if (!/no-cache|no-store/.test(run.headers["cache-control"] ?? "")) yield `Cache-Control is ${run.headers["cache-control"] ?? "missing"}`;
  } },
  { id: "R70", title: "n choices in order", form: "body", *check(seen) {
    const indices = seen.parts.map(({ choice }) => choice.index);
    if (indices.join() !== [...Array(seen.n).keys()].join()) yield `the indices are ${indices.join(", ") || "none"}`;
  } },
  { id: "R71", title: "A known finish reason", *check(seen) {
    for (const { choice, at } of seen.parts) {
      const reason = choice.finish_reason;
      if (reason !== undefined && reason !== null && !KNOWN_FINISHES.has(reason)) yield [`finish_reason ${JSON.stringify(reason)}`, at];
    }
  } },
  { id: "R72", title: "created is in seconds", *check({ chunks }) {
    const { json, at } = chunks[0] ?? {};
    if (json?.created !== undefined && (!Number.isInteger(json.created) || Math.abs(json.created - Date.now() / 1000) > 86400)) yield [`created is ${json.created}`, at];
  } },
  { id: "R77", title: "tool_calls means calls", whole: true, *check({ run }) {
    for (const choice of run.choices) {
      if (choice.finish === "tool_calls" && !choice.calls.length) yield `choice ${choice.index} ended with tool_calls and has none`;
    }
  } },
  { id: "R79", title: "No stop sequence in the text", form: "body", check: stopped },
  { id: "R87", title: "A unique id", *check({ chunks }) {
    for (const { json, at } of chunks.slice(0, 1)) if ("id" in json && (typeof json.id !== "string" || !json.id)) yield ["id is empty", at];
  } },
  { id: "R89", title: "No null in a chunk", only: "deepinfra", form: "stream", *check({ chunks }) {
    for (const { json, at } of chunks) for (const path of nulls(json, "")) yield [`${path} is null`, at];
  } },
  { id: "R90", title: "Each chunk has its head", only: "openai", form: "stream", *check({ chunks }) {
    for (const { json, at } of chunks) for (const name of ["id", "object", "created", "model", "choices"]) if (json[name] === undefined || json[name] === null) yield [`${name} is missing`, at];
  } },
  { id: "R91", title: "Each choice has its keys", only: "openai", form: "stream", *check({ parts }) {
    for (const { choice, at } of parts) for (const name of ["index", "delta", "finish_reason"]) if (!(name in choice)) yield [`${name} is missing`, at];
  } },
  { id: "R94", title: "object is chat.completion.chunk", form: "stream", *check({ chunks, dialect }) {
    for (const { json, at } of chunks) if (json.object !== "chat.completion.chunk" && (dialect === "openai" || "object" in json)) yield [`object is ${JSON.stringify(json.object)}`, at];
  } },
  { id: "R95", title: "One id", only: "openai", form: "stream", check: (seen) => differing(seen, "id") },
  { id: "R96", title: "One created", only: "openai", form: "stream", check: (seen) => differing(seen, "created") },
  { id: "R97", title: "One id and created", only: "deepinfra", form: "stream", *check(seen) {
    for (const name of ["id", "created"]) {
      yield* differing(seen, name);
      const without = seen.chunks.find(({ json }) => !(name in json));
      if (without && seen.chunks.some(({ json }) => name in json)) yield [`${name} is missing here and not elsewhere`, without.at];
    }
  } },
  { id: "R98", title: "One model", form: "stream", check: (seen) => differing(seen, "model") },
  { id: "R99", title: "One fingerprint and tier", only: "openai", severity: "warning", form: "stream", *check(seen) {
    yield* differing(seen, "system_fingerprint");
    yield* differing(seen, "service_tier");
  } },
  { id: "R100", title: "Choices appear in order", form: "stream", *check({ parts }) {
    let next = 0;
    for (const { choice, at } of parts) {
      if (choice.index > next) yield [`choice ${choice.index} appears before choice ${next}`, at];
      next = Math.max(next, choice.index + 1);
    }
  } },
  { id: "R101", title: "n choices", form: "stream", *check(seen) {
    for (const { choice, at } of seen.parts) if (!(choice.index >= 0 && choice.index < seen.n)) yield [`index ${choice.index} with n = ${seen.n}`, at];
    if (!seen.hasError && seen.byIndex.size < seen.n) yield `${seen.byIndex.size} choices with n = ${seen.n}`;
  } },
  { id: "R102", title: "The first delta has the role", form: "stream", *check({ byIndex }) {
    for (const [{ choice, at }] of byIndex.values()) if (choice.delta?.role !== "assistant") yield [`choice ${choice.index} opens with role ${JSON.stringify(choice.delta?.role)}`, at];
  } },
  { id: "R103", title: "The role comes once", form: "stream", *check({ byIndex }) {
    for (const parts of byIndex.values()) for (const { choice, at } of parts.slice(1)) if (choice.delta && "role" in choice.delta) yield [`choice ${choice.index} repeats its role`, at];
  } },
  { id: "R104", title: "One choice a chunk", severity: "warning", form: "stream", *check({ chunks }) {
    for (const { json, at } of chunks) if (json.choices?.length > 1) yield [`${json.choices.length} choices`, at];
  } },
  { id: "R105", title: "No choices only at the end", only: "openai", form: "stream", *check({ chunks }) {
    for (const { json, at } of chunks) if (json.choices?.length === 0 && !json.usage && !json.moderation) yield ["choices is empty without usage or moderation", at];
  } },
  { id: "R106", title: "choices is never empty", only: "deepinfra", form: "stream", *check({ chunks }) {
    for (const { json, at } of chunks) if (!json.choices?.length) yield ["choices is empty", at];
  } },
  { id: "R107", title: "One finish reason a choice", form: "stream", whole: true, *check({ byIndex }) {
    for (const [index, parts] of byIndex) {
      const number = parts.filter(({ choice }) => choice.finish_reason).length;
      if (number !== 1) yield `choice ${index} has ${number} finish reasons`;
    }
  } },
  { id: "R108", title: "Nothing after the finish", form: "stream", *check({ byIndex }) {
    for (const [index, parts] of byIndex) {
      const finish = parts.findIndex(({ choice }) => choice.finish_reason);
      const after = parts.find(({ choice }, place) => finish >= 0 && place > finish && !choice.finish_reason);
      if (after) yield [`choice ${index} goes on`, after.at];
    }
  } },
  { id: "R109", title: "The finish chunk has an empty delta", only: "openai", severity: "warning", form: "stream", *check({ parts }) {
    for (const { choice, at } of parts) if (choice.finish_reason && Object.keys(choice.delta ?? {}).length) yield ["the delta is not {}", at];
  } },
  { id: "R110", title: "One kind of payload a delta", form: "stream", *check({ parts }) {
    for (const { choice, at } of parts) {
      const kinds = ["content", "refusal", "reasoning_content", "tool_calls"].filter((name) => choice.delta?.[name]?.length);
      if (kinds.length > 1) yield [kinds.join(" and "), at];
    }
  } },
  { id: "R111", title: "Content or a refusal", only: "openai", *check({ run }) {
    for (const choice of run.choices) if (choice.content && choice.refusal) yield `choice ${choice.index} has both`;
  } },
  { id: "R113", title: "Reasoning first", only: "deepinfra", severity: "warning", form: "stream", *check({ byIndex }) {
    for (const [index, parts] of byIndex) {
      const said = parts.findIndex(({ choice }) => choice.delta?.content || choice.delta?.tool_calls);
      const late = parts.find(({ choice }, place) => said >= 0 && place > said && choice.delta?.reasoning_content);
      if (late) yield [`choice ${index} reasons after its answer began`, late.at];
    }
  } },
  { id: "R114", title: "No reasoning_content", only: "openai", form: "stream", *check({ parts }) {
    const found = parts.find(({ choice }) => choice.delta && "reasoning_content" in choice.delta);
    if (found) yield ["a delta has reasoning_content", found.at];
  } },
  { id: "R115", title: "No stop sequence in a stream", form: "stream", check: stopped },
  { id: "R116", title: "Fragments are whole characters", form: "stream", *check({ parts }) {
    for (const { choice, at } of parts) if (/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/.test(choice.delta?.content ?? "")) yield ["half a character", at];
  } },
  { id: "R119", title: "An error event, then [DONE]", form: "stream", *check({ frames }) {
    const error = frames.findIndex((frame) => frame.kind === "error");
    const next = frames.slice(error + 1).find((frame) => frame.kind !== "comment");
    if (error >= 0 && next?.kind !== "done") yield ["no [DONE] after the error", error];
  } },
  { id: "R120", title: "No invented finish", form: "stream", *check({ parts, hasError }) {
    const found = parts.find(({ choice }) => choice.finish_reason === "error");
    if (hasError && found) yield ["finish_reason error", found.at];
  } },
  { id: "R123", title: "No usage unless asked", only: "openai", form: "stream", *check({ chunks, asksUsage }) {
    const found = chunks.find(({ json }) => "usage" in json);
    if (!asksUsage && found) yield ["the key usage is there", found.at];
  } },
  { id: "R124", title: "Usage on the last chunk", only: "openai", form: "stream", whole: true, *check({ last, asksUsage }) {
    if (asksUsage && last && (!last.json.usage || last.json.choices?.length)) yield ["the last chunk is not the one with usage and no choices", last.at];
  } },
  { id: "R125", title: "Usage once", only: "openai", form: "stream", *check({ chunks, asksUsage, last }) {
    for (const { json, at } of chunks) if (asksUsage && json.usage && at !== last.at) yield ["usage before the last chunk", at];
  } },
  { id: "R126", title: "usage: null before", only: "openai", severity: "warning", form: "stream", *check({ chunks, asksUsage }) {
    const found = chunks.find(({ json }) => !("usage" in json));
    if (asksUsage && found) yield ["a chunk has no key usage", found.at];
  } },
  { id: "R127", title: "Usage with the finish", only: "deepinfra", form: "stream", whole: true, *check({ last, asksUsage }) {
    if (asksUsage && last && (!last.json.usage || !last.json.choices?.some((choice) => choice.finish_reason))) yield ["the last chunk lacks usage or a finish reason", last.at];
  } },
  { id: "R128", title: "include_usage:false", only: "deepinfra", form: "stream", *check({ chunks, asksUsage }) {
    const found = chunks.find(({ json }) => "usage" in json);
    if (!asksUsage && found) yield ["the key usage is there", found.at];
  } },
  { id: "R130", title: "Usage once", only: "deepinfra", form: "stream", whole: true, *check({ chunks, asksUsage, request }) {
    const number = chunks.filter(({ json }) => json.usage).length;
    if (asksUsage && !request.stream_options?.continuous_usage_stats && number > 1) yield `${number} chunks have usage`;
  } },
  { id: "R132", title: "Tool deltas have an index", form: "stream", *check(seen) {
    for (const { index, at } of fragments(seen)) if (!Number.isInteger(index)) yield [`index is ${JSON.stringify(index)}`, at];
  } },
  { id: "R133", title: "Calls are numbered 0, 1, 2 …", form: "stream", *check(seen) {
    const next = new Map();
    for (const { index, at, choice } of fragments(seen)) {
      const expected = next.get(choice) ?? 0;
      if (index > expected) yield [`call ${index} appears before call ${expected}`, at];
      next.set(choice, Math.max(expected, index + 1));
    }
  } },
  { id: "R134", title: "The opening of a call", form: "stream", *check(seen) {
    const open = new Set();
    for (const { fragment, index, at, choice } of fragments(seen)) {
      const key = `${choice}/${index}`;
      if (!open.has(key) && (!fragment.id || !fragment.type || !named(fragment).name)) yield ["no id, type or name", at];
      open.add(key);
    }
  } },
  { id: "R135", title: "Later fragments repeat nothing", form: "stream", *check(seen) {
    const open = new Set();
    for (const { fragment, index, at, choice } of fragments(seen)) {
      const key = `${choice}/${index}`;
      if (open.has(key) && (fragment.id || named(fragment).name)) yield ["id or name again", at];
      open.add(key);
    }
  } },
  { id: "R137", title: "One call after the other", severity: "warning", form: "stream", *check(seen) {
    const latest = new Map();
    for (const { index, at, choice } of fragments(seen)) {
      if (index < (latest.get(choice) ?? 0)) yield [`call ${index} goes on after ${latest.get(choice)} opened`, at];
      latest.set(choice, Math.max(index, latest.get(choice) ?? 0));
    }
  } },
  { id: "R138", title: "Call ids are unique", *check({ run }) {
    const ids = run.choices.flatMap((choice) => choice.calls.map((call) => call?.id));
    if (new Set(ids).size < ids.length) yield "an id came twice";
  } },
  { id: "R145", title: "Arguments are JSON objects", severity: "warning", whole: true, *check({ run }) {
    for (const choice of run.choices) {
      for (const call of choice.finish === "length" ? [] : choice.calls) {
        if (call?.type !== "function") continue;
        try {
          if (JSON.parse(call.arguments || "{}") === null) yield `${call.name}: null`;
        } catch {
          yield `${call.name}: no JSON`;
        }
      }
    }
  } },
  { id: "R147", title: "The other dialect's finish reason", *check(seen) {
    for (const { choice, at } of seen.parts) {
      const reason = choice.finish_reason;
      if (KNOWN_FINISHES.has(reason) && !FINISHES[seen.dialect].includes(reason)) yield [`finish_reason ${reason}`, at];
    }
  } },
  { id: "R151", title: "logprobs only when asked", only: "openai", *check({ parts, request }) {
    const found = parts.find(({ choice }) => choice.logprobs);
    if (!request.logprobs && found) yield ["logprobs were not asked for", found.at];
  } },
  { id: "R155", title: "logprobs are not positive", *check(seen) {
    for (const [entry, at] of seen.entries) if (!Number.isFinite(entry.logprob) || entry.logprob > 1e-6) yield [`${JSON.stringify(entry.token)}: ${entry.logprob}`, at];
  } },
  { id: "R158", title: "As many alternatives as asked", only: "openai", *check(seen) {
    const most = seen.request.top_logprobs ?? 0;
    for (const [entry, at] of seen.entries) if (entry.top_logprobs?.length > most) yield [`${entry.top_logprobs.length} of at most ${most}`, at];
  } },
  { id: "R159", title: "Alternatives are sorted", *check(seen) {
    for (const [entry, at] of seen.entries) if (entry.top_logprobs?.some((one, place, all) => place && one.logprob > all[place - 1].logprob)) yield [JSON.stringify(entry.token), at];
  } },
  { id: "R161", title: "Probabilities add up to one at most", *check(seen) {
    for (const [entry, at] of seen.entries) {
      const sum = (entry.top_logprobs ?? []).reduce((total, one) => total + Math.exp(one.logprob), 0);
      if (sum > 1.001) yield [`${JSON.stringify(entry.token)}: ${sum.toFixed(4)}`, at];
    }
  } },
  { id: "R162", title: "bytes are the token's", *check(seen) {
    for (const [entry, at] of seen.entries) {
      for (const { token, bytes } of [entry, ...(entry.top_logprobs ?? [])]) if (bytes && !spells(bytes, token)) yield [`${JSON.stringify(token)}: ${bytes.join(" ")}`, at];
    }
  } },
  { id: "R171", title: "total = prompt + completion", *check({ chunks }) {
    for (const { json, at } of chunks) {
      const [prompt, completion, total] = ["prompt_tokens", "completion_tokens", "total_tokens"].map((name) => json.usage?.[name]);
      if (Number.isInteger(prompt + completion + total) && prompt + completion !== total) yield [`${prompt} + ${completion} is not ${total}`, at];
    }
  } },
  { id: "R172", title: "Counters are whole and not negative", *check({ run }) {
    const { estimated_cost, ...usage } = run.usage ?? {};
    const values = [usage, usage.prompt_tokens_details ?? {}, usage.completion_tokens_details ?? {}].flatMap(Object.entries);
    for (const [name, value] of values) if (typeof value !== "object" && !(Number.isInteger(value) && value >= 0)) yield `${name} is ${value}`;
  } },
  { id: "R175", title: "Cached tokens are prompt tokens", *check({ run }) {
    const cached = run.usage?.prompt_tokens_details?.cached_tokens ?? 0;
    if (cached > (run.usage?.prompt_tokens ?? 0)) yield `${cached} cached of ${run.usage.prompt_tokens}`;
  } },
  { id: "R176", title: "Read or written", *check({ run }) {
    const { cached_tokens: cached = 0, cache_write_tokens: written = 0 } = run.usage?.prompt_tokens_details ?? {};
    const prompt = run.usage?.prompt_tokens ?? 0;
    if (cached <= prompt && cached + written > prompt) yield `${cached} cached and ${written} written of ${run.usage.prompt_tokens}`;
  } },
  { id: "R177", title: "Reasoning is part of the completion", only: "openai", *check({ run }) {
    const reasoning = run.usage?.completion_tokens_details?.reasoning_tokens ?? 0;
    if (reasoning > (run.usage?.completion_tokens ?? 0)) yield `${reasoning} of ${run.usage.completion_tokens}`;
  } },
  { id: "R178", title: "The parts of the completion", only: "openai", *check({ run }) {
    const { reasoning_tokens: a = 0, accepted_prediction_tokens: b = 0, rejected_prediction_tokens: c = 0 } = run.usage?.completion_tokens_details ?? {};
    const all = run.usage?.completion_tokens ?? 0;
    if (a <= all && a + b + c > all) yield `${a} + ${b} + ${c} of ${run.usage.completion_tokens}`;
  } },
  { id: "R209", title: "x-request-id", only: "openai", *check({ run }) {
    if (!run.requestId) yield "the header is missing";
  } },
];

const MAX_OF_A_RULE = 3;

/** Rules that look at this run. @param {import("./run.js").Run} run @returns {Rule[]} */
export function rulesFor(run) {
  if (run.status !== 200) return [];
  const form = run.stream ? "stream" : "body";
  const whole = run.state === "complete";
  const isEvents = (run.headers["content-type"] ?? "").startsWith("text/event-stream");
  if (run.stream && !isEvents) return RULES.filter((rule) => rule.id === "R1");
  return RULES.filter((rule) => (!rule.only || rule.only === run.dialect) && (!rule.form || rule.form === form) && (!rule.whole || whole));
}

/**
 * Lets the browser paint between rules, so that a long answer stalls nothing.
 * @param {import("./run.js").Run} run one that has ended @returns {Promise<Finding[]>}
 */
export async function check(run) {
  const seen = new Transcript(run);
  const findings = [];
  for (const rule of rulesFor(run)) {
    await breathe();
    let number = 0;
    for (const found of rule.check(seen)) {
      const [message, frame] = Array.isArray(found) ? found : [found, null];
      if (number++ < MAX_OF_A_RULE) findings.push({ rule: rule.id, severity: rule.severity ?? "error", title: rule.title, message, frame });
    }
    if (number > MAX_OF_A_RULE) findings.push({ rule: rule.id, severity: rule.severity ?? "error", title: rule.title, message: `and ${number - MAX_OF_A_RULE} more`, frame: null });
  }
  return findings;
}
