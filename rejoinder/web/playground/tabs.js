/** Tab lists after the ARIA pattern: arrow keys move, the panel of the chosen tab is shown. */

/** @param {HTMLElement} list an element with role=tablist @param {(panel: string) => void} [onChange] */
export function tabs(list, onChange = () => {}) {
  const all = [...list.querySelectorAll('[role="tab"]')];
  const choose = (tab) => {
    for (const one of all) {
      const chosen = one === tab;
      one.setAttribute("aria-selected", String(chosen));
      one.tabIndex = chosen ? 0 : -1;
      document.getElementById(one.getAttribute("aria-controls")).hidden = !chosen;
    }
    onChange(tab.getAttribute("aria-controls"));
  };
  list.addEventListener("click", (event) => {
    const tab = event.target.closest('[role="tab"]');
    if (tab) choose(tab);
  });
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const place = all.indexOf(document.activeElement) + step;
    const tab = all[Number.isFinite(place) ? (place + all.length) % all.length : place < 0 ? 0 : all.length - 1];
    choose(tab);
    tab.focus();
  });
  for (const tab of all) tab.tabIndex = tab.getAttribute("aria-selected") === "true" ? 0 : -1;
  return { choose: (panel) => choose(all.find((tab) => tab.getAttribute("aria-controls") === panel)) };
}
