/** A list of any length that holds only the rows in view. Rows have one height. */

import { el, oncePerFrame } from "./dom.js";

export class VirtualList {
  /**
   * @param {{label: string, rowHeight: number, render: (place: number) => HTMLElement, onChoose: (place: number) => void}} options
   */
  constructor({ label, rowHeight, render, onChoose }) {
    this.rowHeight = rowHeight;
    this.render = render;
    this.onChoose = onChoose;
    this.length = 0;
    this.chosen = -1;
    this.space = el("div.virtual-space", { role: "presentation" });
    this.element = el("div.virtual", { role: "listbox", "aria-label": label, tabIndex: 0, id: `list-${crypto.randomUUID?.() ?? Math.random()}` }, this.space);
    this.paint = oncePerFrame(() => this.#paint());
    this.element.addEventListener("scroll", this.paint, { passive: true });
    this.element.addEventListener("keydown", (event) => this.#key(event));
    this.element.addEventListener("click", (event) => {
      const row = event.target.closest('[role="option"]');
      if (row) this.choose(Number(row.dataset.place));
    });
    new ResizeObserver(this.paint).observe(this.element);
  }

  /** @param {number} length */
  resize(length) {
    this.length = length;
    this.space.style.height = `${length * this.rowHeight}px`;
    this.paint();
  }

  /** @param {number} place */
  choose(place) {
    if (!this.length) return;
    this.chosen = Math.max(0, Math.min(this.length - 1, place));
    const top = this.chosen * this.rowHeight;
    const { scrollTop, clientHeight } = this.element;
    if (top < scrollTop) this.element.scrollTop = top;
    else if (top + this.rowHeight > scrollTop + clientHeight) this.element.scrollTop = top + this.rowHeight - clientHeight;
    this.onChoose(this.chosen);
    this.paint();
  }

  clear() {
    this.chosen = -1;
    this.element.scrollTop = 0;
    this.resize(0);
  }

  #key(event) {
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.rowHeight) - 1);
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -this.length, End: this.length }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    this.choose(this.chosen + step);
  }

  #paint() {
    const { scrollTop, clientHeight, id } = this.element;
    const first = Math.max(0, Math.floor(scrollTop / this.rowHeight) - 4);
    const last = Math.min(this.length, Math.ceil((scrollTop + clientHeight) / this.rowHeight) + 4);
    const rows = [];
    for (let place = first; place < last; place++) {
      const row = this.render(place);
      row.setAttribute("role", "option");
      row.setAttribute("aria-selected", String(place === this.chosen));
      row.setAttribute("aria-posinset", String(place + 1));
      row.setAttribute("aria-setsize", String(this.length));
      row.id = `${id}-${place}`;
      row.dataset.place = String(place);
      row.style.transform = `translateY(${place * this.rowHeight}px)`;
      rows.push(row);
    }
    this.space.replaceChildren(...rows);
    if (this.chosen >= first && this.chosen < last) this.element.setAttribute("aria-activedescendant", `${id}-${this.chosen}`);
    else this.element.removeAttribute("aria-activedescendant");
  }
}
