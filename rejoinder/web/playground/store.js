/** The page's one store: its state, who listens, and what the browser keeps of it. */

/**
 * @typedef {object} Settings
 * @property {string} model
 * @property {"openai"|"deepinfra"} dialect
 * @property {string} system
 * @property {Record<string, any>} values parameters by name; what is absent is not sent
 * @property {string} tools JSON of the tools, "" for none
 * @property {string} schema JSON Schema of the answer
 * @property {string} extra further members of the body, as JSON
 */

/** @typedef {{role: "user", content: string} | {role: "assistant", run: import("./run.js").Run, chosen: number} | {role: "tool", callId: string, name: string, content: string}} Turn */

/**
 * @typedef {object} State
 * @property {Settings} settings
 * @property {Turn[]} turns
 * @property {import("./run.js").Run|null} run the one that is inspected
 * @property {number} choice the choice of it that is inspected
 * @property {boolean} running
 * @property {{id: string, dialects: string[], metadata?: any}[]} models
 * @property {{name: "openai"|"deepinfra", prefix: string}[]} dialects
 * @property {string} key
 * @property {string} conversation id in the history
 */

const SETTINGS = "rejoinder.settings";
const KEY = "rejoinder.key";

/** @type {Settings} */
export const DEFAULT_SETTINGS = {
  model: "",
  dialect: "openai",
  system: "",
  values: { stream: true, include_usage: true, logprobs: true, top_logprobs: 5 },
  tools: "",
  schema: "",
  extra: "",
};

/** @param {Storage} storage @param {string} name @returns {any} */
export function read(storage, name) {
  try {
    return JSON.parse(storage.getItem(name) ?? "null");
  } catch {
    return null;
  }
}

/** @param {Storage} storage @param {string} name @param {any} value @returns {boolean} */
export function write(storage, name, value) {
  try {
    if (value === null) storage.removeItem(name);
    else storage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

class Store {
  constructor() {
    const kept = read(localStorage, SETTINGS);
    /** @type {State} */
    this.state = {
      settings: { ...structuredClone(DEFAULT_SETTINGS), ...(kept ?? {}) },
      turns: [],
      run: null,
      choice: 0,
      running: false,
      models: [],
      dialects: [],
      key: read(sessionStorage, KEY) ?? "",
      conversation: crypto.randomUUID?.() ?? String(Math.random()),
    };
    /** @type {Map<string, Set<() => void>>} */
    this.listeners = new Map();
  }

  /** @param {(keyof State)[]} names @param {() => void} listener called once now, and at changes */
  on(names, listener) {
    for (const name of names) {
      if (!this.listeners.has(name)) this.listeners.set(name, new Set());
      this.listeners.get(name).add(listener);
    }
    listener();
  }

  /** @param {Partial<State>} changes */
  set(changes) {
    Object.assign(this.state, changes);
    const told = new Set();
    for (const name of Object.keys(changes)) {
      for (const listener of this.listeners.get(name) ?? []) told.add(listener);
    }
    for (const listener of told) listener();
  }

  /** @param {Partial<Settings>} changes */
  configure(changes) {
    const settings = { ...this.state.settings, ...changes };
    write(localStorage, SETTINGS, settings);
    this.set({ settings });
  }

  /** Sets or, with undefined, unsets one parameter. @param {string} name @param {any} value */
  setValue(name, value) {
    const values = { ...this.state.settings.values };
    if (value === undefined) delete values[name];
    else values[name] = value;
    this.configure({ values });
  }

  /** The key stays in memory; in the tab's session storage only where asked for.
   * @param {string} key @param {boolean} remember */
  setKey(key, remember) {
    write(sessionStorage, KEY, remember && key ? key : null);
    this.set({ key });
  }

  get keyIsKept() {
    return Boolean(read(sessionStorage, KEY));
  }
}

export const store = new Store();
