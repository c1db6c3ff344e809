/** The playground's composition root: wires the parts, sends requests, stops them. */

import { chat, waitingCalls } from "./chat.js";
import { ApiError, complete, completionsPath, fetchModels } from "./client.js";
import { code } from "./code.js";
import { byId } from "./dom.js";
import { count, duration } from "./format.js";
import { history, remember } from "./history.js";
import { buildBody, messagesOf } from "./request.js";
import { Run } from "./run.js";
import { findControl, settings } from "./settings.js";
import { store } from "./store.js";
import { stored } from "./stored.js";
import { stream } from "./stream.js";
import { tabs } from "./tabs.js";
import { theme } from "./theme.js";
import { tokens } from "./tokens.js";

const prompt = byId("prompt");
const keyDialog = byId("key-dialog");
/** @type {AbortController|null} */
let sending = null;
/** The models are being listed: nothing is sent before one is known. */
let listing = Promise.resolve();

function say(text) {
  byId("status").textContent = text;
}

function view(name) {
  document.body.dataset.view = name;
  for (const button of document.querySelectorAll(".views button")) button.setAttribute("aria-pressed", String(button.dataset.view === name));
}

function draftPrompt(text) {
  view("chat");
  prompt.value = text;
  prompt.focus();
  grow();
}

function grow() {
  prompt.style.height = "auto";
  prompt.style.height = `${Math.min(prompt.scrollHeight + 2, 240)}px`;
}

/** The next request, with what is in the composer. */
function nextRequest() {
  const { settings, turns, dialects } = store.state;
  const text = prompt.value.trim();
  const more = text ? [...turns, /** @type {const} */ ({ role: "user", content: text })] : turns;
  const body = buildBody(settings, messagesOf(more, settings.system, settings.dialect));
  const prefix = dialects.find((one) => one.name === settings.dialect)?.prefix;
  return { body, path: prefix ? `${prefix}/chat/completions` : completionsPath(settings.dialect) };
}

// ---------------------------------------------------------------- sending

function send() {
  const text = prompt.value.trim();
  if (!text || store.state.running) return;
  const calls = waitingCalls();
  if (calls) {
    say("The model waits for the result of its call.");
    return calls.focus();
  }
  prompt.value = "";
  grow();
  store.set({ turns: [...store.state.turns, { role: "user", content: text }] });
  goOn();
}

/** Sends the conversation as it is. */
async function goOn() {
  if (store.state.running) return;
  store.set({ running: true });
  await listing;
  const { settings } = store.state;
  const draft = prompt.value;
  prompt.value = "";
  const { body, path } = nextRequest();
  prompt.value = draft;
  const run = new Run({ request: body, dialect: settings.dialect, path });
  sending = new AbortController();
  store.set({ run, choice: 0, turns: [...store.state.turns, { role: "assistant", run, chosen: 0 }] });
  say("Waiting for the answer.");
  await complete(run, store.state.key, sending.signal);
  sending = null;
  store.set({ running: false, turns: [...store.state.turns] });
  remember();
  const tokens = run.usage?.completion_tokens;
  say({
    complete: `Answer complete${tokens ? `, ${count(tokens)} tokens` : ""}, after ${duration(run.endTime)}.`,
    stopped: "Stopped.",
    failed: `Failed: ${run.error?.message ?? ""}`,
  }[run.state]);
}

function stop() {
  sending?.abort();
}

// ---------------------------------------------------------------- wiring

function composer() {
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  prompt.addEventListener("input", grow);
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && store.state.running && !keyDialog.open) stop();
  });
  byId("stop").addEventListener("click", stop);
  byId("new-chat").addEventListener("click", () => {
    stop();
    store.set({ turns: [], run: null, choice: 0, conversation: crypto.randomUUID?.() ?? String(Math.random()) });
    draftPrompt("");
  });
  store.on(["running"], () => {
    const { running } = store.state;
    byId("send").hidden = running;
    byId("stop").hidden = !running;
    prompt.setAttribute("aria-busy", String(running));
  });
}

function askForKey() {
  byId("key").value = store.state.key;
  byId("key-remember").checked = store.keyIsKept;
  keyDialog.returnValue = "";
  keyDialog.showModal();
}

function keys() {
  byId("key-button").addEventListener("click", askForKey);
  keyDialog.addEventListener("close", () => {
    if (keyDialog.returnValue === "forget") store.setKey("", false);
    if (keyDialog.returnValue === "use") store.setKey(byId("key").value.trim(), byId("key-remember").checked);
    byId("key").value = "";
    if (keyDialog.returnValue) listing = loadModels();
  });
  // Enter in the field means "use": it would otherwise press the first button, which forgets.
  byId("key").addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    keyDialog.close("use");
  });
  store.on(["key"], () => byId("key-button").classList.toggle("set", Boolean(store.state.key)));
}

async function loadModels() {
  try {
    const { models, dialects } = await fetchModels(store.state.key);
    store.set({ models, dialects });
    const { model, dialect } = store.state.settings;
    const known = models.some((one) => one.id === model);
    const spoken = dialects.some((one) => one.name === dialect);
    store.configure({ model: known ? model : (models[0]?.id ?? ""), dialect: spoken ? dialect : dialects[0].name });
    say(`${models.length} ${models.length === 1 ? "model" : "models"} to choose from.`);
  } catch (error) {
    say(`The models could not be listed: ${error.message}`);
    if (error instanceof ApiError && error.status === 401) askForKey();
  }
}

function main() {
  theme(byId("theme-button"));
  composer();
  keys();
  for (const button of document.querySelectorAll(".views button")) button.addEventListener("click", () => view(button.dataset.view));
  const lists = document.querySelectorAll('[role="tablist"]');
  tabs(lists[0]);
  tabs(lists[1]);
  settings(byId("panel-parameters"));
  const inspect = (run, choice) => {
    if (run !== store.state.run || choice !== store.state.choice) store.set({ run, choice });
  };
  const actions = {
    goOn,
    inspect,
    look: (run, choice) => {
      inspect(run, choice);
      view("inspect");
    },
    showParameter: (param) => {
      view("settings");
      findControl(param);
    },
    askForKey,
    draft: draftPrompt,
  };
  chat(byId("transcript"), actions);
  tokens(byId("panel-tokens"), { turnOn: () => store.configure({ values: { ...store.state.settings.values, logprobs: true, top_logprobs: 5 } }) });
  stream(byId("panel-stream"));
  code(byId("panel-code"), { draft: () => ({ ...nextRequest(), prefix: nextRequest().path.replace("/chat/completions", "") }) });
  history(byId("panel-history"), {
    open: (turns, id) => {
      stop();
      const last = turns.findLast((turn) => turn.role === "assistant");
      store.set({ turns, conversation: id, run: last?.run ?? null, choice: last?.chosen ?? 0 });
      view("chat");
    },
  });
  stored(byId("panel-stored"));
  listing = loadModels();
}

main();
