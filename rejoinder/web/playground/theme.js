/** Light, dark, or as the system says; kept by the browser. */

import { read, write } from "./store.js";

const THEME = "rejoinder.theme";
const NEXT = { system: "light", light: "dark", dark: "system" };
const LABELS = { system: "Auto", light: "Light", dark: "Dark" };

/** @param {HTMLButtonElement} button */
export function theme(button) {
  let name = read(localStorage, THEME);
  if (!Object.hasOwn(NEXT, name ?? "")) name = "system";
  const show = () => {
    if (name === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    button.textContent = LABELS[name];
    button.setAttribute("aria-label", `Theme: ${LABELS[name]}`);
  };
  button.addEventListener("click", () => {
    name = NEXT[name];
    write(localStorage, THEME, name);
    show();
  });
  show();
}
