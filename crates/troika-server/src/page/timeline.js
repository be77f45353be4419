// The device timeline on a canvas: a lane for each device, its spans, and hand-overs between lanes.

import { percent, reducedMotion } from "./dom.js";
import { SpanLog } from "./spans.js";

const LANE = 30;
const HEAD = 20;
const GAP = 22;
const AXIS = 24;
const SERIES = 8;
// Events come every quarter of a second; drawing this far behind lets spans flow in evenly.
const BEHIND = 0.4;
const FRAME_MS = 50;

export class Timeline {
  log = new SpanLog();
  paused = false;
  seconds = 5;
  #offset = null;
  #heldAt = 0;
  #names = new Map();
  #colours = null;
  #timer = null;
  #frame = 0;
  #pointer = null;
  #cursor = null;

  /** `inspected(found, x, y)` hears what the pointer or the keys point at, or null. */
  constructor(canvas, inspected) {
    this.canvas = canvas;
    this.inspected = inspected;
    canvas.addEventListener("pointermove", (event) => this.#point(event));
    canvas.addEventListener("pointerdown", (event) => this.#point(event));
    canvas.addEventListener("pointerleave", () => { this.#pointer = null; this.#cursor = null; inspected(null); this.redraw(); });
    new ResizeObserver(() => this.redraw()).observe(canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolour());
  }

  /** Takes an event of the server. */
  add({ now, spans, status }) {
    const offset = now - performance.now() / 1000;
    // A late event must not move the picture back.
    if (this.#offset === null || Math.abs(offset - this.#offset) > 1) this.#offset = offset;
    else this.#offset += Math.max(-0.01, Math.min(0.05, offset - this.#offset));
    this.log.lanes(["host", ...(status?.models ?? []).flatMap((model) => model.devices)]);
    this.log.add(now, spans);
    if (reducedMotion() || this.paused) this.redraw();
  }

  /** Draws until `stop`; less often than the screen could, since devices need the machine more. */
  start() {
    this.stop();
    this.#timer = setInterval(() => {
      if (!this.paused && !reducedMotion()) this.redraw();
    }, FRAME_MS);
    this.redraw();
  }

  stop() {
    clearInterval(this.#timer);
  }

  pause(paused) {
    if (paused && !this.paused) this.#heldAt = this.now();
    this.paused = paused;
    if (!paused) this.#cursor = null;
    this.redraw();
  }

  zoom(seconds) {
    this.seconds = seconds;
    this.redraw();
  }

  recolour() {
    this.#colours = null;
    this.redraw();
  }

  redraw() {
    cancelAnimationFrame(this.#frame);
    this.#frame = requestAnimationFrame(() => this.draw());
  }

  /** The time at the right edge. */
  now() {
    if (this.paused) return this.#heldAt;
    if (this.#offset === null) return 0;
    if (reducedMotion()) return this.log.latest;
    return Math.min(this.#offset + performance.now() / 1000 - BEHIND, this.log.latest + BEHIND);
  }

  /** Names of spans and their colours, in the order in which they came up. */
  legend() {
    this.#resolve();
    return [...this.#names].map(([name, at]) => ({ name, colour: this.#colours.series[at] }));
  }

  /** Moves the keyboard's cursor: to another span of the lane, or to another lane. */
  step(along, across) {
    const rows = this.#rows().filter((row) => row.spans.length > 0);
    if (rows.length === 0) return;
    const until = this.now();
    const held = this.#cursor && rows.findIndex((row) => row.name === this.#cursor.row);
    const at = held === null || held < 0 ? 0 : (held + across + rows.length) % rows.length;
    const { name, spans } = rows[at];
    const newest = Math.max(0, this.log.before(spans, until) - 1);
    let index = newest;
    if (held !== null && held >= 0) {
      const old = this.#cursor.span;
      index = across === 0 ? spans.indexOf(old) + along : this.log.before(spans, old.end) - 1;
    }
    index = Math.max(0, Math.min(newest, index));
    this.#cursor = { row: name, span: spans[index] };
    this.#pointer = null;
    this.draw();
    this.#tell(this.#cursor.span, name);
  }

  #rows() {
    const rows = [...this.log.byLane].map(([name, spans]) => ({ name, spans }));
    return this.log.copies.length > 0 ? [...rows, { name: "hand-overs", spans: this.log.copies }] : rows;
  }

  #point(event) {
    const box = this.canvas.getBoundingClientRect();
    this.#pointer = { x: event.clientX - box.left, y: event.clientY - box.top };
    this.#cursor = null;
    this.draw();
  }

  #tell(span, lane) {
    const x = this.#x(span.end);
    this.inspected({ span, lane, ago: this.now() - span.start }, Math.max(0, Math.min(x, this.width)), this.#y(lane) ?? 0);
  }

  #x(time) {
    return this.width - (this.now() - time) * this.width / this.seconds;
  }

  #y(lane) {
    const at = [...this.log.byLane.keys()].indexOf(lane);
    return at < 0 ? null : HEAD + at * (LANE + HEAD + GAP);
  }

  #resolve() {
    if (this.#colours !== null) return;
    const probe = document.createElement("span");
    this.canvas.parentElement.append(probe);
    const read = (name) => {
      probe.style.color = `var(--${name})`;
      return getComputedStyle(probe).color;
    };
    this.#colours = {
      text: read("text"), back: read("surface"), dim: read("dim"), line: read("line"), lane: read("lane"), on: read("on-series"), copy: read("copy"), focus: read("accent"),
      series: Array.from({ length: SERIES }, (_, at) => read(`series-${at + 1}`)),
    };
    probe.remove();
  }

  #colour(name) {
    if (name.startsWith("copy")) return this.#colours.copy;
    if (!this.#names.has(name)) this.#names.set(name, this.#names.size % SERIES);
    return this.#colours.series[this.#names.get(name)];
  }

  draw() {
    const { canvas, log } = this;
    const scale = Math.min(devicePixelRatio || 1, 2);
    this.width = canvas.parentElement.clientWidth;
    const height = HEAD + Math.max(1, log.byLane.size) * (LANE + HEAD + GAP) - HEAD - GAP + AXIS + 6;
    if (this.width === 0) return;
    if (canvas.width !== Math.round(this.width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(this.width * scale);
      canvas.height = Math.round(height * scale);
      canvas.style.height = `${height}px`;
    }
    this.#resolve();
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, this.width, height);
    this.font = getComputedStyle(canvas).fontFamily;
    this.#axis(pen, height);
    const until = this.now();
    for (const [name, spans] of log.byLane) this.#lane(pen, name, spans, until);
    this.#copies(pen, until);
    for (const name of log.byLane.keys()) this.#label(pen, name, until);
    this.#marks(pen);
  }

  #axis(pen, height) {
    const each = this.seconds / (this.width < 520 ? 2 : 5);
    pen.font = `12px ${this.font}`;
    pen.textBaseline = "alphabetic";
    for (let ago = 0; ago <= this.seconds + 0.001; ago += each) {
      const x = this.width - ago * this.width / this.seconds;
      pen.fillStyle = this.#colours.line;
      pen.fillRect(Math.round(x === this.width ? x - 1 : x), 0, 1, height - AXIS + 4);
      pen.fillStyle = this.#colours.dim;
      pen.textAlign = ago === 0 ? "right" : ago >= this.seconds - 0.001 ? "left" : "center";
      pen.fillText(ago === 0 ? (this.paused ? "held" : "now") : `−${Number(ago.toFixed(2))} s`, x, height - 5);
    }
    pen.textAlign = "left";
  }

  #lane(pen, name, spans, until) {
    const y = this.#y(name);
    const from = until - this.seconds;
    pen.fillStyle = this.#colours.lane;
    pen.beginPath();
    pen.roundRect(0, y, this.width, LANE, 5);
    pen.fill();
    this.#spans(pen, spans, from, until, y);
  }

  /** Above its lane, and over the hand-overs that pass there. */
  #label(pen, name, until) {
    const y = this.#y(name);
    const busy = `busy ${percent(this.log.busy(name, until - this.seconds, until))}`;
    pen.font = `600 13px ${this.font}`;
    const named = pen.measureText(name).width;
    pen.font = `12px ${this.font}`;
    pen.fillStyle = this.#colours.back;
    pen.fillRect(0, y - HEAD + 2, named + pen.measureText(busy).width + 14, HEAD - 3);
    pen.fillStyle = this.#colours.dim;
    pen.fillText(busy, named + 8, y - 6);
    pen.fillStyle = this.#colours.text;
    pen.font = `600 13px ${this.font}`;
    pen.fillText(name, 0, y - 6);
  }

  /** Spans narrower than a pixel are added up, so that a lane looks as busy as it is. */
  #spans(pen, spans, from, until, y) {
    const perSecond = this.width / this.seconds;
    const first = Math.floor(from * perSecond);
    const thin = new Map();
    const end = this.log.before(spans, until);
    for (let at = this.log.before(spans, from - 2); at < end; at += 1) {
      const span = spans[at];
      if (span.end < from) continue;
      const x = span.start * perSecond - first;
      const wide = Math.min(span.end, until) * perSecond - first - x;
      if (wide < 1.5) {
        const column = Math.floor(x);
        const sum = thin.get(column) ?? { share: 0, most: 0, name: span.name };
        sum.share += wide;
        if (wide > sum.most) Object.assign(sum, { most: wide, name: span.name });
        thin.set(column, sum);
      } else {
        this.#bar(pen, span, x, wide, y);
      }
    }
    for (const [column, { share, name }] of thin) {
      pen.globalAlpha = Math.max(0.3, Math.min(1, share));
      pen.fillStyle = this.#colour(name);
      pen.fillRect(column, y + 2, 1, LANE - 4);
    }
    pen.globalAlpha = 1;
  }

  #bar(pen, span, x, wide, y) {
    pen.fillStyle = this.#colour(span.name);
    pen.beginPath();
    const left = Math.max(x, -4);
    pen.roundRect(left, y + 2, Math.max(1, x + wide - left - (wide > 6 ? 1 : 0)), LANE - 4, wide > 8 ? 3 : 0);
    pen.fill();
    if (wide < 34) return;
    pen.save();
    pen.clip();
    pen.fillStyle = this.#colours.on;
    pen.font = `12px ${this.font}`;
    pen.fillText(span.name, Math.max(x, 0) + 6, y + LANE / 2 + 4);
    pen.restore();
  }

  #copies(pen, until) {
    const from = until - this.seconds;
    const drawn = new Set();
    const shown = this.log.before(this.log.copies, until) - this.log.before(this.log.copies, from);
    // Many at once would hide each other: then they are hairlines without heads.
    const dense = shown > this.width / 24;
    pen.globalAlpha = dense ? 0.45 : 1;
    pen.lineWidth = dense ? 1 : 1.5;
    pen.strokeStyle = this.#colours.copy;
    pen.fillStyle = this.#colours.copy;
    for (const copy of this.log.copies) {
      if (copy.end < from || copy.start > until) continue;
      const start = this.#y(copy.from);
      const end = this.#y(copy.to);
      if (start === null || end === null) continue;
      const down = start < end;
      const [x0, x1] = [this.#x(copy.start), Math.max(this.#x(copy.end), this.#x(copy.start) + 1)];
      const [y0, y1] = down ? [start + LANE, end - 1] : [start, end + LANE + 1];
      const place = `${copy.from}>${copy.to}${Math.round(x0 / 3)}`;
      if (drawn.has(place)) continue;
      drawn.add(place);
      arrow(pen, [x0, y0], [x1, y1], !dense);
    }
    pen.globalAlpha = 1;
  }

  #marks(pen) {
    const found = this.#cursor ? { ...this.#cursor, lane: this.#cursor.row } : this.#under();
    if (found === null) {
      if (this.#pointer) this.inspected(null);
      return;
    }
    const y = this.#y(found.lane);
    if (y !== null) {
      const x = this.#x(found.span.start);
      pen.strokeStyle = this.#colours.focus;
      pen.lineWidth = 2;
      pen.strokeRect(x - 1, y, Math.max(3, this.#x(found.span.end) - x + 2), LANE);
    }
    if (this.#pointer) this.inspected({ span: found.span, lane: found.lane, ago: this.now() - found.span.start }, this.#pointer.x, this.#pointer.y);
  }

  #under() {
    if (!this.#pointer) return null;
    const { x, y } = this.#pointer;
    const time = this.now() - (this.width - x) * this.seconds / this.width;
    const reach = 3 * this.seconds / this.width;
    for (const [lane, spans] of this.log.byLane) {
      const top = this.#y(lane);
      if (y < top || y > top + LANE) continue;
      const span = this.log.nearest(spans, time, reach);
      return span ? { span, lane } : null;
    }
    const copy = this.log.nearest(this.log.copies.filter((entry) => {
      const edges = [this.#y(entry.from), this.#y(entry.to)];
      return y > Math.min(...edges) && y < Math.max(...edges) + LANE;
    }), time, reach * 2);
    return copy ? { span: copy, lane: "hand-overs" } : null;
  }
}

/** A hand-over from one lane's edge to another's. */
function arrow(pen, [x0, y0], [x1, y1], head) {
  const bend = (y1 - y0) / 2;
  pen.beginPath();
  pen.moveTo(x0, y0);
  pen.bezierCurveTo(x0, y0 + bend, x1, y1 - bend, x1, y1);
  pen.stroke();
  if (!head) return;
  const back = y1 > y0 ? -6 : 6;
  pen.beginPath();
  pen.moveTo(x1, y1);
  pen.lineTo(x1 - 3.5, y1 + back);
  pen.lineTo(x1 + 3.5, y1 + back);
  pen.fill();
}
