/** One request and what came back: frames with their times, folded into choices as they come. */

/** @typedef {{token: string, logprob: number, bytes: number[]|null, top_logprobs?: any[]}} Entry */
/** @typedef {{id: string, type: string, name: string, arguments: string}} Call */
/** @typedef {"chunk"|"comment"|"done"|"error"|"body"|"broken"} FrameKind */
/** @typedef {{time: number, kind: FrameKind, text: string, json: any, lines: number, fields: string[]}} Frame */

class Choice {
  /** @param {number} index */
  constructor(index) {
    this.index = index;
    this.content = "";
    this.reasoning = "";
    this.refusal = "";
    /** @type {Call[]} */
    this.calls = [];
    /** @type {string|null} */
    this.finish = null;
    /** @type {Entry[]} */
    this.entries = [];
  }

  /** @param {any} delta of a chunk, or a message */
  add(delta) {
    if (typeof delta.content === "string") this.content += delta.content;
    else if (Array.isArray(delta.content)) this.content += delta.content.map((part) => part.text ?? "").join("");
    if (typeof delta.refusal === "string") this.refusal += delta.refusal;
    const reasoning = delta.reasoning_content ?? delta.reasoning;
    if (typeof reasoning === "string") this.reasoning += reasoning;
    (delta.tool_calls ?? []).forEach((part, place) => this.#addCall(part, part.index ?? place));
    if (delta.function_call) this.#addCall({ function: delta.function_call, type: "function" }, 0);
  }

  #addCall(part, place) {
    const call = (this.calls[place] ??= { id: "", type: "function", name: "", arguments: "" });
    if (part.id) call.id = part.id;
    if (part.type) call.type = part.type;
    const named = part.function ?? part.custom ?? {};
    call.name += named.name ?? "";
    call.arguments += named.arguments ?? named.input ?? "";
  }

  /** @param {any} logprobs */
  addEntries(logprobs) {
    this.entries.push(...(logprobs?.content ?? []), ...(logprobs?.refusal ?? []));
  }

  get isEmpty() {
    return !this.content && !this.reasoning && !this.refusal && !this.calls.length;
  }
}

export class Run {
  /** @param {{request: any, dialect: "openai"|"deepinfra", path: string}} sent */
  constructor({ request, dialect, path }) {
    this.request = request;
    this.dialect = dialect;
    this.path = path;
    this.stream = Boolean(request.stream);
    /** @type {"waiting"|"streaming"|"complete"|"stopped"|"failed"} */
    this.state = "waiting";
    this.began = performance.now();
    this.at = Date.now();
    this.status = 0;
    /** @type {Record<string, string>} */
    this.headers = {};
    /** @type {number|null} */
    this.headTime = null;
    /** @type {number|null} */
    this.firstText = null;
    /** @type {number|null} */
    this.endTime = null;
    /** @type {Frame[]} */
    this.frames = [];
    /** @type {Choice[]} */
    this.choices = [];
    this.id = this.model = this.tier = this.fingerprint = "";
    /** @type {any} */
    this.usage = null;
    /** @type {any} */
    this.moderation = null;
    /** @type {any} */
    this.error = null;
    /** @type {import("./rules.js").Finding[]|null} null until it has ended */
    this.findings = null;
    /** @type {Set<() => void>} */
    this.watchers = new Set();
  }

  /** @param {() => void} watcher called after each change @returns {() => void} ends it */
  watch(watcher) {
    this.watchers.add(watcher);
    return () => this.watchers.delete(watcher);
  }

  tell() {
    for (const watcher of this.watchers) watcher();
  }

  now() {
    return performance.now() - this.began;
  }

  get ended() {
    return this.state !== "waiting" && this.state !== "streaming";
  }

  get requestId() {
    return this.headers["x-request-id"] ?? "";
  }

  /** @returns {number|null} tokens per second after the first */
  get rate() {
    const tokens = this.usage?.completion_tokens;
    if (!tokens || tokens < 2 || this.firstText === null || this.endTime === null) return null;
    const seconds = (this.endTime - this.firstText) / 1000;
    return seconds > 0 ? (tokens - 1) / seconds : null;
  }

  /** @param {Response} response */
  head(response) {
    this.status = response.status;
    this.headTime = this.now();
    response.headers.forEach((value, name) => (this.headers[name] = value));
    if (response.ok) this.state = "streaming";
  }

  /** @param {import("./sse.js").SseEvent} event @param {number} time since the request */
  feed(event, time) {
    const { text, lines, fields } = event;
    /** @type {Frame} */
    const frame = { time, kind: "chunk", text, json: null, lines, fields };
    this.frames.push(frame);
    if (event.kind === "comment") frame.kind = "comment";
    else if (text === "[DONE]") frame.kind = "done";
    else this.#feedJson(frame);
  }

  /** @param {string} text a whole body @param {number} time */
  feedBody(text, time) {
    /** @type {Frame} */
    const frame = { time, kind: "body", text, json: null, lines: 1, fields: [] };
    this.frames.push(frame);
    this.#feedJson(frame);
  }

  #feedJson(frame) {
    try {
      frame.json = JSON.parse(frame.text);
    } catch {
      frame.kind = "broken";
      return;
    }
    const json = frame.json;
    if (json === null || typeof json !== "object" || Array.isArray(json)) frame.kind = "broken";
    else if (json.error) {
      if (frame.kind === "chunk") frame.kind = "error";
      this.error = typeof json.error === "object" ? json.error : { message: String(json.error) };
    } else this.#fold(json, frame.time);
  }

  #fold(json, time) {
    this.id ||= json.id ?? "";
    this.model ||= json.model ?? "";
    this.tier = json.service_tier ?? this.tier;
    this.fingerprint = json.system_fingerprint ?? this.fingerprint;
    if (json.usage) this.usage = json.usage;
    if (json.moderation) this.moderation = json.moderation;
    for (const part of Array.isArray(json.choices) ? json.choices : []) {
      if (!Number.isInteger(part.index) || part.index < 0 || part.index > 127) continue;
      for (let i = this.choices.length; i <= part.index; i++) this.choices.push(new Choice(i));
      const choice = this.choices[part.index];
      choice.add(part.delta ?? part.message ?? {});
      choice.addEntries(part.logprobs);
      if (this.firstText === null && !choice.isEmpty) this.firstText = time;
      if (part.finish_reason) choice.finish = part.finish_reason;
    }
  }

  /** @param {"complete"|"stopped"|"failed"} state @param {any} [error] */
  end(state, error) {
    this.state = state;
    this.endTime = this.now();
    if (error) this.error = error;
  }

  /** Tool calls of a choice that can be answered. @param {number} index @returns {Call[]} */
  openCalls(index) {
    const choice = this.choices[index];
    return this.state === "complete" && choice ? choice.calls.filter((call) => call?.id && call.name) : [];
  }

  /** What the browser's history keeps: no frames, no probabilities. */
  summary() {
    const { request, dialect, path, at, id, model, tier, usage, error, status, firstText, endTime } = this;
    const choices = this.choices.map(({ entries, ...kept }) => kept);
    const state = this.ended ? this.state : "stopped";
    return { request, dialect, path, at, id, model, tier, usage, error, status, firstText, endTime, choices, state };
  }

  /** @param {any} kept what `summary` gave @returns {Run} */
  static restore(kept) {
    const run = new Run(kept);
    const { choices, request, ...rest } = kept;
    Object.assign(run, rest);
    run.choices = choices.map((one) => Object.assign(new Choice(one.index), one));
    return run;
  }
}
