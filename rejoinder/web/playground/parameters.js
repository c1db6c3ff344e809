/** The request's parameters, as a table: who knows them, their range, their default. */

/**
 * @typedef {object} Parameter
 * @property {string} name as on the wire; a dot leads into an object
 * @property {string} group
 * @property {"number"|"integer"|"text"|"choice"|"flag"|"lines"|"integers"|"json"|"area"} kind
 * @property {"openai"|"deepinfra"} [only]
 * @property {Record<string, string>} [names] another name in a dialect
 * @property {number} [min]
 * @property {number} [max]
 * @property {Record<string, number>} [maxIn] another maximum in a dialect
 * @property {boolean} [above] the minimum itself is not allowed, in DeepInfra's dialect
 * @property {string[]} [options]
 * @property {Record<string, string[]>} [optionsIn]
 * @property {number} [step]
 * @property {string} [hint] shown while it is empty: the default
 * @property {string} help
 */

/** @type {Parameter[]} */
export const PARAMETERS = [
  { name: "temperature", group: "Sampling", kind: "number", min: 0, max: 2, step: 0.1, hint: "1", help: "0 takes the likeliest token each time; higher is bolder." },
  { name: "top_p", group: "Sampling", kind: "number", min: 0, max: 1, step: 0.05, above: true, hint: "1", help: "Only the likeliest tokens that add up to this probability." },
  { name: "top_k", group: "Sampling", kind: "integer", only: "deepinfra", min: 0, max: 999, hint: "0 (off)", help: "Only so many of the likeliest tokens." },
  { name: "min_p", group: "Sampling", kind: "number", only: "deepinfra", min: 0, max: 1, step: 0.01, hint: "0 (off)", help: "Drops tokens below this share of the likeliest one's probability." },
  { name: "frequency_penalty", group: "Sampling", kind: "number", min: -2, max: 2, step: 0.1, hint: "0", help: "Lowers tokens by how often the answer has them." },
  { name: "presence_penalty", group: "Sampling", kind: "number", min: -2, max: 2, step: 0.1, hint: "0", help: "Lowers tokens that the answer has at all." },
  { name: "repetition_penalty", group: "Sampling", kind: "number", only: "deepinfra", min: 0.01, max: 5, step: 0.05, hint: "1", help: "Divides the odds of tokens of the prompt and the answer." },
  { name: "seed", group: "Sampling", kind: "integer", hint: "random", help: "The same seed gives the same answer, as far as it can." },
  { name: "logit_bias", group: "Sampling", kind: "json", only: "openai", hint: '{"1234": -100}', help: "Added to tokens' logits, by token id; ±100 forces or bans." },

  { name: "max_tokens", group: "Output", kind: "integer", names: { openai: "max_completion_tokens" }, min: 1, max: 1000000, hint: "the model's", help: "The most tokens of an answer, reasoning included." },
  { name: "n", group: "Output", kind: "integer", min: 1, max: 128, maxIn: { deepinfra: 4 }, hint: "1", help: "How many answers, side by side." },
  { name: "stop", group: "Output", kind: "lines", hint: "one a line", help: "Texts that end the answer; they are not part of it. \\n in a line is a line break." },
  { name: "stop_token_ids", group: "Output", kind: "integers", only: "deepinfra", hint: "2, 32000", help: "Tokens that end the answer." },
  { name: "logprobs", group: "Output", kind: "flag", help: "Probabilities of the tokens: fills the view Tokens." },
  { name: "top_logprobs", group: "Output", kind: "integer", min: 0, max: 20, hint: "0", help: "How many alternatives for each token. Needs logprobs." },
  { name: "stream", group: "Output", kind: "flag", help: "Shows the answer as it is made." },
  { name: "include_usage", group: "Output", kind: "flag", help: "Counts of tokens at the end of a stream (stream_options)." },
  { name: "continuous_usage_stats", group: "Output", kind: "flag", only: "deepinfra", help: "Counts on every chunk (stream_options)." },
  { name: "include_obfuscation", group: "Output", kind: "flag", only: "openai", help: "Pads chunks, so that their size tells nothing (stream_options)." },

  { name: "service_tier", group: "Model", kind: "choice", options: ["auto", "default", "flex", "priority"], optionsIn: { deepinfra: ["flex", "priority"] }, help: "What the answer costs and how long it waits." },

  { name: "reasoning_effort", group: "Reasoning", kind: "choice", options: ["none", "minimal", "low", "medium", "high", "xhigh", "max"], optionsIn: { deepinfra: ["none", "low", "medium", "high", "xhigh"] }, help: "How long a model may think, where it can." },
  { name: "verbosity", group: "Reasoning", kind: "choice", only: "openai", options: ["low", "medium", "high"], help: "How long the answer should be." },
  { name: "chat_template_kwargs", group: "Reasoning", kind: "json", only: "deepinfra", hint: '{"enable_thinking": false}', help: "Given to the chat template." },

  { name: "tool_choice", group: "Tools", kind: "text", hint: "auto, none, required, or a name", help: "Whether the model must call, and what." },
  { name: "parallel_tool_calls", group: "Tools", kind: "choice", only: "openai", options: ["true", "false"], help: "Whether several calls may be made at once." },

  { name: "response_format", group: "Answer format", kind: "choice", options: ["text", "json_object", "json_schema"], optionsIn: { deepinfra: ["text", "json_object", "json_schema", "regex"] }, help: "What the answer must look like." },
  { name: "strict", group: "Answer format", kind: "choice", options: ["true", "false"], help: "json_schema: whether the schema is enforced to the letter." },
  { name: "regex", group: "Answer format", kind: "text", only: "deepinfra", hint: "[0-9]{4}", help: "Used with the format regex." },

  { name: "store", group: "More", kind: "flag", only: "openai", help: "Keeps the answer on the server: see Stored." },
  { name: "metadata", group: "More", kind: "json", only: "openai", hint: '{"topic": "demo"}', help: "Up to 16 short texts by name, kept with a stored answer." },
  { name: "moderation", group: "More", kind: "flag", only: "openai", help: "Scores the question and the answer." },
  { name: "prediction", group: "More", kind: "area", only: "openai", hint: "a draft of the answer", help: "What most of the answer will be: makes it faster where it is right." },
  { name: "prompt_cache_key", group: "More", kind: "text", hint: "", help: "Keeps requests with the same beginning together." },
  { name: "safety_identifier", group: "More", kind: "text", only: "openai", hint: "", help: "Who your user is, hashed." },
  { name: "user", group: "More", kind: "text", hint: "", help: "The older name of the two above." },
];

export const GROUPS = ["Model", "Sampling", "Output", "Answer format", "Tools", "Reasoning", "More"];

/** @param {Parameter} parameter @param {string} dialect @returns {boolean} */
export function applies(parameter, dialect) {
  return !parameter.only || parameter.only === dialect;
}

/** @param {Parameter} parameter @param {string} dialect @returns {string} */
export function wireName(parameter, dialect) {
  return parameter.names?.[dialect] ?? parameter.name;
}

/** @param {Parameter} parameter @param {string} dialect @returns {string[]} */
export function optionsOf(parameter, dialect) {
  return parameter.optionsIn?.[dialect] ?? parameter.options ?? [];
}

/** @param {Parameter} parameter @param {string} dialect @returns {number|undefined} */
export function maximumOf(parameter, dialect) {
  return parameter.maxIn?.[dialect] ?? parameter.max;
}

/**
 * What is wrong with a value, or "".
 * @param {Parameter} parameter @param {any} value @param {string} dialect @returns {string}
 */
export function fault(parameter, value, dialect) {
  const { kind, min, above } = parameter;
  const max = maximumOf(parameter, dialect);
  if (kind === "number" || kind === "integer") {
    if (!Number.isFinite(value)) return "not a number";
    if (kind === "integer" && !Number.isInteger(value)) return "not a whole number";
    if (min !== undefined && value < min) return `at least ${min}`;
    if (above && dialect === "deepinfra" && value === min) return `more than ${min}`;
    if (max !== undefined && value > max) return `at most ${max}`;
  }
  if (kind === "json") {
    try {
      const json = JSON.parse(value);
      if (json === null || typeof json !== "object" || Array.isArray(json)) return "not a JSON object";
    } catch (error) {
      return `not JSON: ${String(error.message).split("\n")[0]}`;
    }
  }
  if (kind === "integers" && !value.every(Number.isInteger)) return "whole numbers, with commas between";
  if (parameter.name === "stop") {
    const most = dialect === "deepinfra" ? 16 : 4;
    if (value.length > most) return `at most ${most} lines`;
  }
  return "";
}
