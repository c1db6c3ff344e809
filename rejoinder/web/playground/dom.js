/** Elements made in code: text stays text, so no answer can ever become markup. */

const SVG = "http://www.w3.org/2000/svg";

/**
 * @param {string} name tag and classes, e.g. "button.primary"
 * @param {Record<string, any>} [properties] `on`: listeners; `data`: data-*; names with a dash and
 *   `role`, `for`: attributes; everything else: properties
 * @param {...(Node|string|null|undefined|false)} children
 * @returns {any}
 */
export function el(name, properties = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (key === "on") {
      for (const [event, listen] of Object.entries(value)) element.addEventListener(event, listen);
    } else if (key === "data") {
      Object.assign(element.dataset, value);
    } else if (key.includes("-") || key === "role" || key === "for" || key === "list") {
      element.setAttribute(key, String(value));
    } else {
      element[key] = value;
    }
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/**
 * @param {string} name tag and classes
 * @param {Record<string, string|number>} [attributes]
 * @param {...(Node|string)} children
 * @returns {SVGElement}
 */
export function svg(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElementNS(SVG, tag);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  element.append(...children);
  return element;
}

/** @param {string} id @returns {any} */
export function byId(id) {
  return document.getElementById(id);
}

/**
 * Calls `paint` at most once a frame, however often it is asked for.
 * @param {() => void} paint
 * @returns {() => void}
 */
export function oncePerFrame(paint) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      paint();
    });
  };
}

/**
 * A button that copies a text and says so.
 * @param {() => string} text
 * @param {string} [label]
 * @returns {HTMLButtonElement}
 */
export function copyButton(text, label = "Copy") {
  const button = el("button.quiet.small", { type: "button" }, label);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed";
    }
    setTimeout(() => (button.textContent = label), 1500);
  });
  return button;
}

const MOST_MS = 8;
let rested = performance.now();

/** Lets the browser paint, if this page has worked for a while without a pause. */
export async function breathe() {
  if (performance.now() - rested < MOST_MS) return;
  await new Promise((done) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = done;
    port2.postMessage(null);
  });
  rested = performance.now();
}
