// The spans of the last minute: by lane, and the hand-overs between lanes.

import { duration } from "./dom.js";

const KEPT_S = 60;
const MOST = 6000;
const PAIR = /([\w.:-]+)\s*(?:>|→|->|\bto\b)\s*([\w.:-]+)/;

export class SpanLog {
  byLane = new Map();
  copies = [];
  /** The server's time of the newest event. */
  latest = 0;

  /** Lanes that are shown even while nothing runs in them. */
  lanes(names) {
    for (const name of names) if (!this.byLane.has(name)) this.byLane.set(name, []);
  }

  add(now, spans) {
    // A server that was started again counts from zero.
    if (now < this.latest) this.clear();
    this.latest = now;
    const grown = new Set();
    for (const span of spans) {
      const copy = handOver(span);
      if (copy) {
        this.copies.push(copy);
        this.lanes([copy.from, copy.to]);
        grown.add(this.copies);
      }
      if (PAIR.test(span.lane)) continue;
      this.lanes([span.lane]);
      const lane = this.byLane.get(span.lane);
      lane.push(span);
      grown.add(lane);
    }
    for (const list of grown) {
      list.sort((one, other) => one.start - other.start);
      const old = Math.max(this.before(list, now - KEPT_S), list.length - MOST);
      if (old > 0) list.splice(0, old);
    }
  }

  clear() {
    for (const list of this.byLane.values()) list.length = 0;
    this.copies.length = 0;
  }

  /** How many spans of a list begin before a time. */
  before(spans, time) {
    let low = 0;
    let high = spans.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (spans[middle].start < time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** The span at a time, or the one closest to it within reach. */
  nearest(spans, time, reach) {
    let best = null;
    let distance = reach;
    for (let at = this.before(spans, time + reach) - 1; at >= 0 && spans[at].start > time - 5; at -= 1) {
      const { start, end } = spans[at];
      const away = time < start ? start - time : time > end ? time - end : 0;
      if (away === 0) return spans[at];
      if (away < distance) [best, distance] = [spans[at], away];
    }
    return best;
  }

  /** The share of a stretch of time in which a lane was at work; spans that overlap count once. */
  busy(lane, from, until) {
    const spans = this.byLane.get(lane) ?? [];
    let covered = from;
    let sum = 0;
    const end = this.before(spans, until);
    for (let at = this.before(spans, from - 2); at < end; at += 1) {
      const start = Math.max(covered, spans[at].start);
      const stop = Math.min(until, spans[at].end);
      if (stop <= start) continue;
      sum += stop - start;
      covered = stop;
    }
    return until > from ? sum / (until - from) : 0;
  }

  /** What a lane spent its time on: names with seconds and counts, longest first. */
  totals(lane, from, until) {
    const names = new Map();
    for (const span of this.byLane.get(lane) ?? []) {
      if (span.end < from || span.start > until) continue;
      const sum = names.get(span.name) ?? { name: span.name, seconds: 0, count: 0 };
      sum.seconds += span.end - span.start;
      sum.count += 1;
      names.set(span.name, sum);
    }
    return [...names.values()].sort((one, other) => other.seconds - one.seconds);
  }
}

function handOver(span) {
  const named = PAIR.exec(span.lane) ?? (span.name.startsWith("copy") ? PAIR.exec(`${span.name.slice(4)}`) ?? PAIR.exec(span.detail ?? "") : null);
  return named ? { ...span, from: named[1], to: named[2] } : null;
}

/** A span in words. */
export function describe({ span, lane, ago }) {
  const place = span.from ? `${span.from} to ${span.to}` : lane;
  return { title: span.name, lines: [`${place}, ${duration(span.end - span.start)}`, span.detail, `began ${duration(Math.max(0, ago))} ago`].filter(Boolean) };
}
