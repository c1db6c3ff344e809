/** The settings pane: a control for each parameter that the chosen dialect has. */

import { byId, el } from "./dom.js";
import { EXAMPLE_QUESTION, EXAMPLE_SCHEMA, EXAMPLE_TOOLS, jsonEditor, schemaFaults, toolFaults } from "./editors.js";
import { count } from "./format.js";
import { GROUPS, PARAMETERS, applies, fault, maximumOf, optionsOf, wireName } from "./parameters.js";
import { parsed } from "./request.js";
import { DEFAULT_SETTINGS, store } from "./store.js";

const OPEN = new Set(["Model", "Sampling", "Output"]);
const DIALECTS = { openai: "OpenAI", deepinfra: "DeepInfra" };

/** @param {HTMLElement} panel */
export function settings(panel) {
  let shown = "";
  const opened = new Set(OPEN);
  const draw = () => {
    const { dialect } = store.state.settings;
    if (dialect === shown) return badges(panel);
    shown = dialect;
    panel.replaceChildren(...GROUPS.map((name) => group(name, opened)), footer(() => ((shown = ""), draw())));
    badges(panel);
  };
  store.on(["settings", "models", "dialects"], draw);
}

/** How many parameters of each group are set: seen while the group is closed. */
function badges(panel) {
  const { settings } = store.state;
  for (const box of panel.querySelectorAll("details[data-group]")) {
    const set = PARAMETERS.filter((one) => one.group === box.dataset.group && applies(one, settings.dialect) && settings.values[one.name] !== undefined).length;
    const more = (box.dataset.group === "Tools" && settings.tools ? 1 : 0) + (box.dataset.group === "More" && settings.extra ? 1 : 0);
    box.querySelector(".badge").textContent = set + more ? String(set + more) : "";
  }
  const model = panel.querySelector("#about-model");
  if (model) model.replaceChildren(...aboutModel());
  for (const input of panel.querySelectorAll("[data-parameter]")) if (input !== document.activeElement) input.dispatchEvent(new CustomEvent("sync"));
  panel.querySelector("#p-schema")?.dispatchEvent(new CustomEvent("judge"));
}

function group(name, opened) {
  const { dialect } = store.state.settings;
  const fields = PARAMETERS.filter((one) => one.group === name && applies(one, dialect)).map(control);
  if (name === "Model") fields.unshift(modelField(), dialectField(), ...[el("div.about", { id: "about-model" })]), fields.push(systemField());
  if (name === "Tools") fields.unshift(toolsField());
  if (name === "Answer format") fields.push(schemaField());
  if (name === "More") fields.push(extraField());
  const box = el("details.group", { open: opened.has(name), data: { group: name } }, el("summary", {}, name, el("span.badge", { "aria-label": "set" })), el("div.fields", {}, ...fields));
  box.addEventListener("toggle", () => (box.open ? opened.add(name) : opened.delete(name)));
  return box;
}

// ---------------------------------------------------------------- one parameter

/** @param {import("./parameters.js").Parameter} parameter */
function control(parameter) {
  const { dialect, values } = store.state.settings;
  const id = `p-${parameter.name}`;
  const name = wireName(parameter, dialect);
  const value = values[parameter.name];
  const set = (next) => store.setValue(parameter.name, next);
  if (parameter.kind === "flag") {
    const sync = () => (box.checked = Boolean(store.state.settings.values[parameter.name]));
    const box = el("input", { id, type: "checkbox", checked: Boolean(value), data: { parameter: name }, on: { sync, change: () => set(box.checked ? true : undefined) } });
    return el("label.check.wide", { title: parameter.help }, box, el("code", {}, name));
  }
  const note = el("span.note", { id: `${id}-note` });
  const input = inputFor(parameter, id, value, dialect);
  input.setAttribute("aria-describedby", `${id}-note`);
  const wide = ["lines", "json", "area", "integers"].includes(parameter.kind) || parameter.name === "tool_choice" || parameter.name === "regex";
  const judge = () => {
    const next = readInput(parameter, input);
    const wrong = next === undefined ? "" : fault(parameter, next, dialect);
    input.setAttribute("aria-invalid", String(Boolean(wrong)));
    note.textContent = wrong;
    return [next, wrong];
  };
  input.addEventListener("input", () => {
    const [next, wrong] = judge();
    if (!wrong) set(next);
  });
  input.dataset.parameter = name;
  input.addEventListener("sync", () => {
    const now = store.state.settings.values[parameter.name];
    if (input.getAttribute("aria-invalid") === "true") return;
    input.value = now === undefined ? "" : shownValue(parameter, now);
  });
  judge();
  return el(wide ? "div.field.wide" : "div.field", { title: parameter.help }, el("label", { for: id }, el("code", {}, name)), input, note);
}

/** A value as its input shows it. */
function shownValue({ kind }, value) {
  if (kind === "lines") return value.map(escaped).join("\n");
  return kind === "integers" ? value.join(", ") : String(value);
}

function inputFor(parameter, id, given, dialect) {
  const max = maximumOf(parameter, dialect);
  const value = given === undefined ? "" : shownValue(parameter, given);
  switch (parameter.kind) {
    case "choice":
      return el("select", { id }, el("option", { value: "" }, "not set"), ...optionsOf(parameter, dialect).map((one) => el("option", { value: one, selected: one === value }, one)));
    case "lines":
      return el("textarea.code", { id, rows: 2, placeholder: parameter.hint, value, spellcheck: false });
    case "json":
      return el("textarea.code", { id, rows: 2, placeholder: parameter.hint, value, spellcheck: false });
    case "area":
      return el("textarea", { id, rows: 3, placeholder: parameter.hint, value });
    case "integers":
      return el("input", { id, type: "text", placeholder: parameter.hint, value });
    case "text":
      return el("input", { id, type: "text", placeholder: parameter.hint, value, autocomplete: "off", spellcheck: false });
    default:
      return el("input", { id, type: "number", min: parameter.min, max, step: parameter.kind === "integer" ? 1 : "any", placeholder: parameter.hint, value });
  }
}

/** What an input says; undefined where it is empty. */
function readInput({ kind }, input) {
  const text = input.value;
  if (kind === "number" || kind === "integer") return text === "" && !input.validity.badInput ? undefined : Number(text || "x");
  if (text.trim() === "") return undefined;
  if (kind === "lines") return text.split("\n").filter(Boolean).map(unescaped);
  if (kind === "integers") return text.split(",").map((one) => Number(one.trim() || "x"));
  return text;
}

const escaped = (text) => text.replaceAll("\\", "\\\\").replaceAll("\n", "\\n").replaceAll("\t", "\\t");
const unescaped = (text) => text.replace(/\\([nt\\])/g, (_, char) => ({ n: "\n", t: "\t", "\\": "\\" })[char]);

// ---------------------------------------------------------------- fields with more to them

function modelField() {
  /** @type {any} */
  let listed = null;
  const sync = () => {
    const { settings, models } = store.state;
    if (listed !== models) select.replaceChildren(...(models.length ? models.map(({ id }) => el("option", { value: id }, id)) : [el("option", { value: "" }, "no models yet")]));
    listed = models;
    select.value = settings.model;
  };
  const select = el("select", { id: "p-model", data: { parameter: "model" }, on: { sync, change: () => store.configure({ model: select.value }) } });
  sync();
  return el("div.field.wide", {}, el("label", { for: "p-model" }, el("code", {}, "model")), select);
}

function* aboutModel() {
  const { settings, models } = store.state;
  const about = models.find((one) => one.id === settings.model)?.metadata;
  if (!about) return;
  if (about.description) yield el("p", {}, about.description);
  const { input_tokens: input, output_tokens: output } = about.pricing ?? {};
  if (about.context_length) yield el("span.fact", {}, `${count(about.context_length)} tokens of context`);
  yield el("span.fact", {}, input || output ? `$${input} in, $${output} out a million` : "free");
}

function dialectField() {
  const box = el("div");
  /** @type {any} */
  let listed = null;
  const sync = () => {
    const { settings, dialects } = store.state;
    if (listed === dialects) return;
    listed = dialects;
    const shown = dialects.length ? dialects : [{ name: settings.dialect, prefix: "" }];
    box.replaceChildren(...shown.map(({ name, prefix }) =>
      el("label", {}, el("input", { type: "radio", name: "dialect", value: name, checked: name === settings.dialect, on: { change: () => store.configure({ dialect: name }) } }), el("span", {}, DIALECTS[name], " ", el("small", {}, prefix && `/${prefix}`)))));
  };
  sync();
  return el("fieldset.segments.wide", { data: { parameter: "dialect" }, on: { sync } }, el("legend", {}, "Dialect"), box);
}

function systemField() {
  const area = el("textarea", { id: "p-system", rows: 3, value: store.state.settings.system, placeholder: "How the model should behave", on: { input: () => store.configure({ system: area.value }) } });
  return el("div.field.wide", {}, el("label", { for: "p-system" }, "System prompt"), area);
}

function toolsField() {
  const editor = jsonEditor({
    id: "p-tools",
    label: "Tools, as JSON",
    rows: 6,
    hint: '[{"type": "function", "function": {"name": …}}]',
    value: store.state.settings.tools,
    faults: toolFaults,
    good: (text) => `${parsed(text).length === 1 ? "1 tool" : `${parsed(text).length} tools`}: ${parsed(text).map((tool) => (tool.function ?? tool.custom).name).join(", ")}`,
    onInput: (text) => store.configure({ tools: text }),
  });
  const example = el("button.quiet.small", { type: "button", id: "tools-example" }, "Weather example");
  example.addEventListener("click", () => {
    editor.set(JSON.stringify(EXAMPLE_TOOLS, null, 2));
    const prompt = byId("prompt");
    if (!prompt.value) prompt.value = EXAMPLE_QUESTION;
  });
  const clear = el("button.quiet.small", { type: "button", on: { click: () => editor.set("") } }, "No tools");
  editor.element.append(el("div.row", {}, example, clear));
  return editor.element;
}

function schemaField() {
  const editor = jsonEditor({
    id: "p-schema",
    label: "Schema of the answer (json_schema)",
    rows: 6,
    hint: '{"type": "object", …}',
    value: store.state.settings.schema,
    faults: (text) => schemaFaults(text, store.state.settings.values.strict === "true"),
    good: () => "The schema is well formed. Answers are checked against it as they arrive.",
    onInput: (text) => store.configure({ schema: text }),
  });
  const example = el("button.quiet.small", { type: "button", id: "schema-example" }, "Person example");
  example.addEventListener("click", () => {
    editor.set(JSON.stringify(EXAMPLE_SCHEMA, null, 2));
    store.setValue("response_format", "json_schema");
    byId("p-response_format").value = "json_schema";
  });
  editor.element.append(el("div.row", {}, example));
  return editor.element;
}

function extraField() {
  return jsonEditor({
    id: "p-extra",
    label: "Further members of the body",
    rows: 2,
    hint: '{"top_a": 0.2}',
    value: store.state.settings.extra,
    faults: (text) => (parsed(text) && typeof parsed(text) === "object" && !Array.isArray(parsed(text)) ? [] : ["not a JSON object"]),
    good: (text) => `Sent as they are: ${Object.keys(parsed(text)).join(", ") || "none"}`,
    onInput: (text) => store.configure({ extra: text }),
  }).element;
}

function footer(redraw) {
  const reset = el("button.quiet.small", { type: "button" }, "All settings as at first");
  reset.addEventListener("click", () => {
    const { model, dialect } = store.state.settings;
    store.configure({ ...structuredClone(DEFAULT_SETTINGS), model, dialect });
    redraw();
  });
  return el("div.row.end.footer", {}, reset);
}

/** Shows and focuses the control of a parameter that an error names. @param {string} param @returns {boolean} */
export function findControl(param) {
  const { dialect } = store.state.settings;
  const head = param.split(/[.[]/)[0];
  const special = { model: "p-model", tools: "p-tools", messages: "prompt", response_format: "p-response_format", stream_options: "p-include_usage" };
  const named = PARAMETERS.find((one) => wireName(one, dialect) === head || one.name === head || one.name === param.split(".").at(-1));
  const input = byId(param.startsWith("response_format.json_schema") ? "p-schema" : special[head] ?? (named ? `p-${named.name}` : ""));
  if (!input) return false;
  const box = input.closest("details");
  if (box) box.open = true;
  input.setAttribute("aria-invalid", "true");
  input.scrollIntoView({ block: "center" });
  input.focus();
  return true;
}
