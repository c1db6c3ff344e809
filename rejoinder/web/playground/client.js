/** The server's API, as this page needs it. */

import { breathe } from "./dom.js";
import { SseReader } from "./sse.js";
import { Run } from "./run.js";
import { check } from "./rules.js";

const PREFIXES = { openai: "v1", deepinfra: "v1/openai" };

/** What the server said no with. */
export class ApiError extends Error {
  /** @param {number} status @param {any} error */
  constructor(status, error) {
    super(error?.message ?? `HTTP ${status}`);
    this.status = status;
    this.error = error;
  }
}

/** @param {string} key @returns {Record<string, string>} */
function headers(key) {
  return key ? { authorization: `Bearer ${key}` } : {};
}

/** @param {string} path @param {string} key @param {RequestInit} [init] @returns {Promise<any>} */
export async function fetchJson(path, key, init = {}) {
  const more = init.body ? { "content-type": "application/json" } : {};
  const response = await fetch(path, { ...init, headers: { ...headers(key), ...more } });
  const text = await response.text();
  let json = null;
  try {
    json = JSON.parse(text);
  } catch {
    json = { error: { message: text.slice(0, 300) } };
  }
  if (!response.ok) throw new ApiError(response.status, json.error);
  return json;
}

/** @param {"openai"|"deepinfra"} dialect @returns {string} */
export function completionsPath(dialect) {
  return `${PREFIXES[dialect]}/chat/completions`;
}

/**
 * What is served under which prefix. A server may pin one dialect for both; its list tells.
 * @param {string} key
 */
export async function fetchModels(key) {
  const lists = await Promise.all([fetchJson("v1/models", key), fetchJson("v1/openai/models", key)]);
  const models = new Map();
  for (const list of lists) {
    for (const row of list.data) models.set(row.id, { ...models.get(row.id), id: row.id, metadata: row.metadata ?? models.get(row.id)?.metadata, root: row.root });
  }
  const spoken = lists.map((list) => (list.data.some((row) => row.metadata) ? "deepinfra" : "openai"));
  const dialects = [...new Set(spoken)].map((name) => ({ name, prefix: PREFIXES[spoken[0] === name ? "openai" : "deepinfra"] }));
  return { models: [...models.values()], dialects };
}

/**
 * Sends a request; the run is told of everything that comes back, and ends in every case.
 * @param {Run} run @param {string} key @param {AbortSignal} signal
 */
export async function complete(run, key, signal) {
  try {
    const response = await fetch(run.path, {
      method: "POST",
      headers: { ...headers(key), "content-type": "application/json" },
      body: JSON.stringify(run.request),
      signal,
    });
    run.head(response);
    run.tell();
    if (response.ok && (response.headers.get("content-type") ?? "").startsWith("text/event-stream")) {
      await readStream(run, response);
    } else {
      run.feedBody(await response.text(), run.now());
      if (!response.ok) run.error ??= { message: run.frames.at(-1)?.text.slice(0, 500) || "The answer was empty." };
    }
    run.end(run.error ? "failed" : "complete");
  } catch (error) {
    if (signal.aborted) run.end("stopped");
    else run.end("failed", { message: explain(error), type: "connection" });
  }
  run.tell();
  if (run.state !== "stopped") run.findings = await check(run);
  run.tell();
}

/** @param {Run} run @param {Response} response */
async function readStream(run, response) {
  const reader = response.body.getReader();
  const events = new SseReader();
  for (;;) {
    const { done, value } = await reader.read();
    const time = run.now();
    for (const event of done ? events.flush() : events.feed(value)) {
      run.feed(event, time);
      await breathe();
    }
    run.tell();
    if (done) break;
  }
  if (!run.frames.some((frame) => frame.kind === "done") && !run.error) {
    run.error = { message: "The connection ended before the answer did: there was no [DONE].", type: "connection" };
  }
}

/** @param {any} error @returns {string} */
function explain(error) {
  if (String(error).includes("decode")) return "The stream is not valid UTF-8.";
  return "The server cannot be reached, or it closed the connection.";
}
