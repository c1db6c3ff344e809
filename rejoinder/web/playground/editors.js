/** Editors of JSON that matter enough for checks while one types: tools, and the answer's schema. */

import { el } from "./dom.js";
import { parsed } from "./request.js";
import { lint } from "./schema.js";

export const EXAMPLE_TOOLS = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "The weather in a city now.",
      parameters: {
        type: "object",
        properties: { city: { type: "string" }, unit: { type: "string", enum: ["celsius", "fahrenheit"] } },
        required: ["city"],
        additionalProperties: false,
      },
    },
  },
];
export const EXAMPLE_QUESTION = "What is the weather in Oslo?";
export const EXAMPLE_RESULTS = { get_weather: '{"temperature": 4, "unit": "celsius", "sky": "light rain"}' };

export const EXAMPLE_SCHEMA = {
  title: "person",
  type: "object",
  properties: {
    name: { type: "string" },
    age: { type: "integer", minimum: 0 },
    languages: { type: "array", items: { type: "string" } },
  },
  required: ["name", "age", "languages"],
  additionalProperties: false,
};

/**
 * A text area that says what is wrong with its text while it is typed.
 * @param {{id: string, label: string, rows: number, hint: string, value: string, faults: (text: string) => string[], good: (text: string) => string, onInput: (text: string) => void}} options
 */
export function jsonEditor({ id, label, rows, hint, value, faults, good, onInput }) {
  const area = el("textarea.code", { id, rows, value, placeholder: hint, spellcheck: false, autocomplete: "off", "aria-describedby": `${id}-state` });
  const state = el("div.verdict", { id: `${id}-state`, role: "status" });
  const judge = () => {
    const text = area.value.trim();
    const found = text ? faults(text) : [];
    area.setAttribute("aria-invalid", String(found.length > 0));
    state.className = `verdict ${found.length ? "bad" : "good"}`;
    state.replaceChildren(...(text ? (found.length ? found.slice(0, 6).map((fault) => el("div", {}, fault)) : [good(text)]) : []));
  };
  area.addEventListener("input", () => {
    judge();
    onInput(area.value.trim());
  });
  area.addEventListener("judge", judge);
  judge();
  return {
    element: el("div.field.wide", {}, el("label", { for: id }, label), area, state),
    set: (text) => {
      area.value = text;
      judge();
      onInput(text);
    },
  };
}

/** @param {string} text @returns {string} "" where it is JSON */
function syntax(text) {
  try {
    JSON.parse(text);
    return "";
  } catch (error) {
    return `not JSON: ${String(error.message)}`;
  }
}

/** @param {string} text @returns {string[]} */
export function toolFaults(text) {
  const wrong = syntax(text);
  if (wrong) return [wrong];
  const tools = parsed(text);
  if (!Array.isArray(tools)) return ["not a list: put the tools into [ ]"];
  const faults = [];
  const names = new Set();
  tools.forEach((tool, place) => {
    const at = `tools[${place}]`;
    const kind = tool?.type ?? "function";
    const inner = tool?.[kind];
    if (!["function", "custom"].includes(kind)) return void faults.push(`${at}: type is "function" or "custom"`);
    if (!inner || typeof inner !== "object") return void faults.push(`${at}: "${kind}" is missing`);
    if (!/^[A-Za-z0-9_-]{1,64}$/.test(inner.name ?? "")) faults.push(`${at}: a name has 1 to 64 letters, digits, _ and -`);
    if (names.has(inner.name)) faults.push(`${at}: a second "${inner.name}"`);
    names.add(inner.name);
    if (inner.parameters) faults.push(...lint(inner.parameters, { strict: inner.strict === true }).map((fault) => `${at}: ${fault}`));
  });
  return faults;
}

/** @param {string} text @param {boolean} strict @returns {string[]} */
export function schemaFaults(text, strict) {
  const wrong = syntax(text);
  return wrong ? [wrong] : lint(parsed(text), { strict });
}
