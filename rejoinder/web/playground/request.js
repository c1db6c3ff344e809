/** Settings and turns become the body of a request. */

import { PARAMETERS, applies, optionsOf, wireName } from "./parameters.js";

/** Members that are not sent under their own name. */
const SPECIAL = new Set(["stream", "include_usage", "continuous_usage_stats", "include_obfuscation", "response_format", "strict", "regex", "tool_choice", "parallel_tool_calls", "moderation", "prediction", "logprobs", "top_logprobs"]);

/** @param {string} text @returns {any} undefined where it is no JSON */
export function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** @param {import("./store.js").Settings} settings @param {any[]} messages @returns {any} */
export function buildBody(settings, messages) {
  const { dialect, values } = settings;
  /** @type {Record<string, any>} */
  const body = { model: settings.model, messages };
  for (const parameter of PARAMETERS) {
    const value = values[parameter.name];
    if (value === undefined || SPECIAL.has(parameter.name) || !applies(parameter, dialect)) continue;
    if (parameter.kind === "choice" && !optionsOf(parameter, dialect).includes(value)) continue;
    body[wireName(parameter, dialect)] = parameter.kind === "json" ? parsed(value) : value;
  }
  addLogprobs(body, values);
  addTools(body, settings);
  addFormat(body, settings);
  if (dialect === "openai") {
    if (values.moderation) body.moderation = { model: "omni-moderation-latest" };
    if (values.prediction) body.prediction = { type: "content", content: values.prediction };
  }
  addStream(body, values, dialect);
  const extra = settings.extra ? parsed(settings.extra) : null;
  return extra && typeof extra === "object" ? { ...body, ...extra } : body;
}

function addLogprobs(body, values) {
  if (!values.logprobs) return;
  body.logprobs = true;
  if (values.top_logprobs) body.top_logprobs = values.top_logprobs;
}

function addTools(body, { tools, values, dialect }) {
  const given = tools ? parsed(tools) : undefined;
  if (!Array.isArray(given) || !given.length) return;
  body.tools = given;
  const choice = values.tool_choice;
  if (choice) body.tool_choice = ["auto", "none", "required"].includes(choice) ? choice : { type: "function", function: { name: choice } };
  if (values.parallel_tool_calls && dialect === "openai") body.parallel_tool_calls = values.parallel_tool_calls === "true";
}

function addFormat(body, { values, schema, dialect }) {
  const type = values.response_format;
  if (!type || (type === "regex" && dialect !== "deepinfra")) return;
  body.response_format = { type };
  if (type === "regex") body.response_format.regex = values.regex ?? "";
  if (type === "json_schema") {
    const given = parsed(schema || "{}");
    const name = typeof given?.title === "string" && /^[\w-]{1,64}$/.test(given.title) ? given.title : "answer";
    body.response_format.json_schema = { name, schema: given ?? {} };
    if (values.strict) body.response_format.json_schema.strict = values.strict === "true";
  }
}

function addStream(body, values, dialect) {
  if (!values.stream) return;
  body.stream = true;
  const options = {};
  if (values.include_usage) {
    if (dialect === "openai") options.include_usage = true;
  } else if (dialect === "deepinfra") options.include_usage = false;
  if (values.continuous_usage_stats && dialect === "deepinfra") options.continuous_usage_stats = true;
  if (values.include_obfuscation && dialect === "openai") options.include_obfuscation = true;
  if (Object.keys(options).length) body.stream_options = options;
}

/**
 * The messages that a conversation comes to. Failed answers and empty ones are left out.
 * @param {import("./store.js").Turn[]} turns @param {string} system @param {string} dialect
 * @returns {any[]}
 */
export function messagesOf(turns, system, dialect) {
  const messages = system.trim() ? [{ role: "system", content: system }] : [];
  for (const turn of turns) {
    if (turn.role === "user") messages.push({ role: "user", content: turn.content });
    else if (turn.role === "tool") messages.push({ role: "tool", tool_call_id: turn.callId, content: turn.content });
    else {
      const message = assistantMessage(turn, dialect);
      if (message) messages.push(message);
    }
  }
  return messages;
}

function assistantMessage({ run, chosen }, dialect) {
  const choice = run.choices[chosen];
  if (!choice || run.state === "failed") return null;
  const calls = run.openCalls(chosen).map(({ id, type, name, arguments: text }) =>
    type === "custom" ? { id, type, custom: { name, input: text } } : { id, type: "function", function: { name, arguments: text } },
  );
  if (choice.refusal && !choice.content) {
    const refusal = { type: "refusal", refusal: choice.refusal };
    return { role: "assistant", content: dialect === "openai" ? [refusal] : choice.refusal };
  }
  if (!choice.content && !calls.length) return null;
  const message = { role: "assistant", content: choice.content || null };
  if (dialect === "deepinfra" && message.content === null) message.content = "";
  if (dialect === "deepinfra" && choice.reasoning) message.reasoning_content = choice.reasoning;
  if (calls.length) message.tool_calls = calls;
  return message;
}
