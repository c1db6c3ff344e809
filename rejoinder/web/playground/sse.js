/** Server-sent events from any cut of their bytes. */

/** @typedef {{kind: "data"|"comment", text: string, lines: number, fields: string[]}} SseEvent */

export class SseReader {
  constructor() {
    this.decoder = new TextDecoder("utf-8", { fatal: true });
    this.pending = "";
    /** @type {string[]} */
    this.data = [];
    /** @type {string[]} */
    this.fields = [];
    this.started = false;
  }

  /** @param {Uint8Array} bytes @returns {SseEvent[]} throws TypeError at invalid UTF-8 */
  feed(bytes) {
    return this.#read(this.decoder.decode(bytes, { stream: true }), false);
  }

  /** @returns {SseEvent[]} what an unfinished end still holds */
  flush() {
    const events = this.#read(this.decoder.decode(), true);
    if (this.data.length) events.push(this.#event());
    return events;
  }

  #read(text, last) {
    const events = [];
    this.pending += text;
    let from = 0;
    for (;;) {
      const match = /\r\n|\n|\r/g;
      match.lastIndex = from;
      const end = match.exec(this.pending);
      if (!end || (end[0] === "\r" && end.index === this.pending.length - 1 && !last)) break;
      this.#line(this.pending.slice(from, end.index), events);
      from = end.index + end[0].length;
    }
    this.pending = this.pending.slice(from);
    if (last && this.pending) {
      this.#line(this.pending, events);
      this.pending = "";
    }
    return events;
  }

  #line(line, events) {
    if (line === "") {
      if (this.data.length) events.push(this.#event());
      this.fields = [];
      return;
    }
    if (line.startsWith(":")) {
      events.push({ kind: "comment", text: line.slice(1).trim(), lines: 1, fields: [] });
      return;
    }
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") this.data.push(value);
    else this.fields.push(name);
  }

  /** @returns {SseEvent} */
  #event() {
    const event = { kind: "data", text: this.data.join("\n"), lines: this.data.length, fields: this.fields };
    this.data = [];
    this.fields = [];
    return event;
  }
}
