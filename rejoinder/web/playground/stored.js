/** Completions that the server keeps (`store: true`): a list, one of them, and its end. */

import { fetchJson } from "./client.js";
import { el } from "./dom.js";
import { count, when } from "./format.js";
import { store } from "./store.js";

const PAGE = 20;

/** @param {HTMLElement} panel */
export function stored(panel) {
  const list = el("ul.list");
  const note = el("p.hint", { role: "status" });
  const more = el("button.quiet.small", { type: "button", hidden: true }, "More");
  const filter = el("input", { type: "text", id: "stored-filter", placeholder: "topic=demo", autocomplete: "off", spellcheck: false });
  const form = el("form.row", {}, el("label", { for: "stored-filter" }, "Metadata"), filter, el("button.small", { type: "submit" }, "Look"));
  const one = el("div.stored-one", { hidden: true });
  panel.append(form, note, list, more, one);
  let last = "";
  let asked = 0;

  const load = async (after) => {
    const mine = ++asked;
    const query = new URLSearchParams({ limit: String(PAGE), order: "desc" });
    if (after) query.set("after", after);
    const [name, value] = filter.value.split("=");
    if (filter.value.trim()) query.set(`metadata[${name.trim()}]`, (value ?? "").trim());
    try {
      const page = await fetchJson(`v1/chat/completions?${query}`, store.state.key);
      if (mine !== asked) return;
      if (!after) list.replaceChildren();
      list.append(...page.data.map(row));
      last = page.last_id;
      more.hidden = !page.has_more;
      note.textContent = list.children.length ? "" : "Nothing is stored. Turn store on under Settings, More, and send something.";
    } catch (error) {
      note.textContent = error.message;
    }
  };
  const row = (completion) => {
    const text = completion.choices?.[0]?.message?.content || "a call, or nothing";
    const open = el("button.list-main", { type: "button" }, el("span.title", {}, text.slice(0, 90)), el("span.hint", {}, `${when(completion.created * 1000)}, ${completion.model}, ${count(completion.usage?.total_tokens ?? 0)} tokens`));
    const element = el("li", {}, open);
    open.addEventListener("click", () => show(completion, element));
    return element;
  };
  const show = async (completion, element) => {
    for (const other of list.children) other.firstElementChild.removeAttribute("aria-current");
    element.firstElementChild.setAttribute("aria-current", "true");
    one.hidden = false;
    one.replaceChildren(el("p.hint", {}, "Loading"));
    try {
      const messages = await fetchJson(`v1/chat/completions/${encodeURIComponent(completion.id)}/messages?limit=100`, store.state.key);
      one.replaceChildren(...document_(completion, messages.data, () => remove(completion, element)));
    } catch (error) {
      one.replaceChildren(el("p", {}, error.message));
    }
  };
  const remove = async (completion, element) => {
    try {
      await fetchJson(`v1/chat/completions/${encodeURIComponent(completion.id)}`, store.state.key, { method: "DELETE" });
      element.remove();
      one.hidden = true;
    } catch (error) {
      note.textContent = error.message;
    }
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    load("");
  });
  more.addEventListener("click", () => load(last));
  new MutationObserver(() => panel.hidden || load("")).observe(panel, { attributes: true, attributeFilter: ["hidden"] });
}

function* document_(completion, messages, remove) {
  yield el("h3", {}, el("code", {}, completion.id));
  for (const message of messages) {
    const text = message.content ?? message.content_parts?.map((part) => part.text ?? `[${part.type}]`).join("") ?? "";
    yield el("div.stored-message", {}, el("strong", {}, message.role), el("div.text", {}, text || JSON.stringify(message.tool_calls ?? "")));
  }
  for (const choice of completion.choices) {
    yield el("div.stored-message.answer", {}, el("strong", {}, `answer (${choice.finish_reason})`), el("div.text", {}, choice.message.content ?? JSON.stringify(choice.message.tool_calls ?? choice.message.refusal ?? "")));
  }
  yield el("details", {}, el("summary", {}, "JSON"), el("pre", { tabIndex: 0 }, JSON.stringify(completion, null, 2)));
  yield el("div.row.end", {}, el("button.danger.small", { type: "button", on: { click: remove } }, "Delete from the server"));
}
