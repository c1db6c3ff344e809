/** The request as code: curl, Python, JavaScript; and as the model reads it. Keys are named, never written. */

import { fetchJson } from "./client.js";
import { copyButton, el } from "./dom.js";
import { count } from "./format.js";
import { store } from "./store.js";

const VARIABLE = "REJOINDER_API_KEY";

/** @param {any} body @param {string} base the URL up to the dialect's prefix @returns {string} */
export function curl(body, base) {
  const json = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  return `curl ${body.stream ? "-N " : ""}${base}/chat/completions \\\n  -H "Authorization: Bearer $${VARIABLE}" \\\n  -H "Content-Type: application/json" \\\n  -d '${json}'\n`;
}

/** What openai's Python client has no argument for goes into extra_body. */
const UNKNOWN_TO_SDK = new Set(["top_k", "min_p", "repetition_penalty", "stop_token_ids", "chat_template_kwargs", "continue_final_message", "reasoning", "moderation"]);

/** @param {any} value @param {number} depth @returns {string} a Python literal */
export function python(value, depth = 0) {
  const inner = "    ".repeat(depth + 1);
  const outer = "    ".repeat(depth);
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  if (Array.isArray(value)) {
    if (!value.length) return "[]";
    return `[\n${value.map((one) => `${inner}${python(one, depth + 1)},\n`).join("")}${outer}]`;
  }
  const members = Object.entries(value);
  if (!members.length) return "{}";
  return `{\n${members.map(([name, one]) => `${inner}${JSON.stringify(name)}: ${python(one, depth + 1)},\n`).join("")}${outer}}`;
}

/** @param {any} body @param {string} base @returns {string} */
export function pythonCode(body, base) {
  const known = Object.entries(body).filter(([name]) => !UNKNOWN_TO_SDK.has(name) && /^[a-z_]+$/.test(name));
  const extra = Object.fromEntries(Object.entries(body).filter(([name]) => UNKNOWN_TO_SDK.has(name) || !/^[a-z_]+$/.test(name)));
  const argumentsText = known.map(([name, value]) => `    ${name}=${python(value, 1)},\n`).join("");
  const extraText = Object.keys(extra).length ? `    extra_body=${python(extra, 1)},\n` : "";
  const use = body.stream
    ? 'for chunk in answer:\n    for choice in chunk.choices:\n        print(choice.delta.content or "", end="", flush=True)\n'
    : "print(answer.choices[0].message.content)\n";
  return `import os\n\nfrom openai import OpenAI\n\nclient = OpenAI(base_url="${base}", api_key=os.environ.get("${VARIABLE}", "none"))\nanswer = client.chat.completions.create(\n${argumentsText}${extraText})\n${use}`;
}

/** @param {any} body @param {string} base @returns {string} */
export function javascriptCode(body, base) {
  const json = JSON.stringify(body, null, 2).replace(/^( *)"([A-Za-z_]\w*)":/gm, "$1$2:");
  const use = body.stream
    ? 'for await (const chunk of answer) {\n  process.stdout.write(chunk.choices[0]?.delta?.content ?? "");\n}\n'
    : "console.log(answer.choices[0].message.content);\n";
  return `import OpenAI from "openai";\n\nconst client = new OpenAI({\n  baseURL: "${base}",\n  apiKey: process.env.${VARIABLE} ?? "none",\n});\nconst answer = await client.chat.completions.create(${json});\n${use}`;
}

/** What the model reads: the request as the chat template spells it. */
async function rendered(body, prefix) {
  try {
    const { prompt, tokens } = await fetchJson(`${prefix}/apply-template`, store.state.key, { method: "POST", body: JSON.stringify(body) });
    return { note: `What the model reads: ${count(tokens.length)} tokens.`, text: prompt };
  } catch (error) {
    return { note: "The prompt is not known here.", text: error.message };
  }
}

const LANGUAGES = { curl: ["curl", curl], python: ["Python", pythonCode], javascript: ["JavaScript", javascriptCode], prompt: ["Prompt", null] };

/** @param {HTMLElement} panel @param {{draft: () => {body: any, prefix: string}}} source */
export function code(panel, source) {
  let language = "curl";
  const pre = el("pre.code-block", { tabIndex: 0, "aria-label": "The request as code" });
  const heading = el("p.hint");
  const buttons = Object.entries(LANGUAGES).map(([name, [label]]) => el("button.small", { type: "button", "aria-pressed": String(name === language), data: { language: name } }, label));
  const bar = el("div.row", { role: "group", "aria-label": "Language" }, ...buttons, el("span.grow"), copyButton(() => pre.textContent));
  panel.append(bar, heading, pre);
  let drawn = 0;
  const draw = async () => {
    if (panel.hidden) return;
    const mine = ++drawn;
    const { run } = store.state;
    const { body, prefix } = run ? { body: run.request, prefix: run.path.replace("/chat/completions", "") } : source.draft();
    heading.textContent = run ? "The request of the answer that is inspected." : "The next request.";
    pre.classList.remove("wrapped");
    const spell = LANGUAGES[language][1];
    if (spell) return void (pre.textContent = spell(body, new URL(prefix, document.baseURI).href));
    const { note, text } = await rendered(body, prefix);
    if (mine !== drawn) return;
    heading.textContent = note;
    pre.textContent = text;
    pre.classList.add("wrapped");
  };
  bar.addEventListener("click", (event) => {
    const chosen = event.target.closest("[data-language]");
    if (!chosen) return;
    language = chosen.dataset.language;
    for (const button of buttons) button.setAttribute("aria-pressed", String(button === chosen));
    draw();
  });
  store.on(["run", "settings", "turns"], draw);
  new MutationObserver(draw).observe(panel, { attributes: true, attributeFilter: ["hidden"] });
}
