/** Numbers and tokens as people read them. */

/** @param {number|null|undefined} ms @returns {string} */
export function duration(ms) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return "–";
  if (ms < 1) return `${ms.toFixed(2)} ms`;
  if (ms < 100) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(2)} s`;
  return `${Math.floor(ms / 60000)} min ${Math.round((ms % 60000) / 1000)} s`;
}

/** @param {number} value @returns {string} */
export function count(value) {
  return value.toLocaleString("en-US");
}

/** @param {number|null|undefined} dollars @returns {string} */
export function money(dollars) {
  if (dollars === null || dollars === undefined) return "–";
  if (dollars === 0) return "$0";
  if (dollars >= 0.01) return `$${dollars.toFixed(4)}`;
  return `$${dollars.toFixed(12).replace(/0+$/, "")}`;
}

/** @param {number} logprob @returns {string} */
export function percent(logprob) {
  const share = Math.exp(logprob) * 100;
  if (share >= 99.995) return "100 %";
  if (share >= 10) return `${share.toFixed(1)} %`;
  if (share >= 0.01) return `${share.toFixed(2)} %`;
  return share === 0 ? "0 %" : `${share.toExponential(1)} %`;
}

const NAMES = { "\n": "↵", "\t": "⇥", "\r": "␍" };

/** A token with its blanks made visible. @param {string} token @returns {string} */
export function visible(token) {
  if (token === "") return "∅";
  return token
    .replace(/[\n\t\r]/g, (char) => NAMES[char])
    .replace(/^ +| +$/g, (blanks) => "·".repeat(blanks.length))
    .replace(/[\u0000-\u001f\u007f]/g, (char) => `\\x${char.charCodeAt(0).toString(16).padStart(2, "0")}`);
}

/** @param {number[]|null|undefined} bytes @returns {string} */
export function hex(bytes) {
  if (!bytes) return "none";
  return bytes.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
}

/** @param {number[]} sorted ascending @param {number} share @returns {number|null} */
export function quantile(sorted, share) {
  if (!sorted.length) return null;
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
}

/** @param {number} at epoch milliseconds @returns {string} */
export function when(at) {
  const date = new Date(at);
  const today = new Date().toDateString() === date.toDateString();
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return today ? time : `${date.toLocaleDateString([], { month: "short", day: "numeric" })} ${time}`;
}
