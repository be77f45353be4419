// The devices view: figures of the server, the timeline, and both as tables.

import { button, bytes, duration, figure, h, percent, svg } from "./dom.js";
import { dataTable, empty } from "./controls.js";
import { server } from "./server.js";
import { describe } from "./spans.js";
import { onChange } from "./store.js";
import { Timeline } from "./timeline.js";

const STRETCHES = [2, 5, 10, 30];
const TABLE_MS = 1000;
const HISTORY = 60;

export class DevicesView {
  #release = null;
  #tables = 0;
  #history = [];

  constructor(root) {
    this.root = root;
    this.figures = h("dl", { class: "figures" });
    this.lanes = h("div", {});
    this.models = h("div", {});
    this.nothing = empty("Waiting for the server", "Figures and lanes appear here as soon as it answers.");
    this.content = h("div", { class: "stack", hidden: true }, this.figures, this.#timelineCard(),
      h("section", { class: "card", "aria-labelledby": "lanes-title" }, h("h2", { id: "lanes-title" }, "What each device did"), this.lanes),
      h("section", { class: "card", "aria-labelledby": "models-title" }, h("h2", { id: "models-title" }, "Models"), this.models));
    root.append(h("div", { class: "page wide-page" }, h("h1", { tabindex: "-1" }, "Devices"), this.nothing, this.content));
    server.addEventListener("spans", ({ detail }) => this.#take(detail));
    server.addEventListener("status", () => this.#draw());
    onChange(() => this.timeline.recolour());
  }

  show() {
    this.#release ??= server.watch();
    this.#draw();
    this.timeline.start();
  }

  hide() {
    this.#release?.();
    this.#release = null;
    this.timeline.stop();
    this.tip.hidden = true;
  }

  #timelineCard() {
    const canvas = h("canvas", { tabindex: "0", role: "application", "aria-label": "Device timeline", "aria-describedby": "timeline-help" });
    this.tip = h("div", { class: "tip", hidden: true });
    this.said = h("p", { class: "unseen", "aria-live": "polite" });
    this.place = h("div", { class: "timeline" }, canvas, this.tip);
    this.timeline = new Timeline(canvas, (found, x, y) => this.#inspect(found, x, y));
    canvas.addEventListener("keydown", (event) => this.#key(event));
    canvas.addEventListener("blur", () => { this.tip.hidden = true; });
    this.pause = button("Pause", () => this.#pause(!this.timeline.paused), { symbol: "pause", "aria-pressed": "false" });
    this.stretch = h("select", { id: "stretch", onchange: () => this.timeline.zoom(Number(this.stretch.value)) },
      STRETCHES.map((seconds) => h("option", { value: String(seconds), selected: seconds === 5 }, `${seconds} seconds`)));
    this.legend = h("ul", { class: "legend", "aria-label": "Colours" });
    this.idle = h("p", { class: "hint" });
    return h("section", { class: "card", "aria-labelledby": "timeline-title" },
      h("div", { class: "card-head" }, h("h2", { id: "timeline-title" }, "Timeline"),
        h("div", { class: "row" }, h("label", { for: "stretch", class: "unseen" }, "Stretch of time"), this.stretch, this.pause)),
      this.place, this.legend, this.idle, this.said,
      h("p", { class: "hint keys", id: "timeline-help" }, h("kbd", {}, "←"), " ", h("kbd", {}, "→"), " span, ", h("kbd", {}, "↑"), " ", h("kbd", {}, "↓"), " lane, ",
        h("kbd", {}, "Space"), " pauses, ", h("kbd", {}, "+"), " ", h("kbd", {}, "−"), " zoom. The table below says the same in words."));
  }

  #key(event) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], Home: [-1e9, 0], End: [1e9, 0] };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (Object.hasOwn(steps, event.key)) {
      this.#pause(true);
      this.timeline.step(...steps[event.key]);
    } else if (event.key === " ") {
      this.#pause(!this.timeline.paused);
    } else if (event.key === "+" || event.key === "-") {
      const at = STRETCHES.indexOf(this.timeline.seconds) + (event.key === "+" ? -1 : 1);
      this.stretch.value = String(STRETCHES[Math.max(0, Math.min(STRETCHES.length - 1, at))]);
      this.timeline.zoom(Number(this.stretch.value));
    } else if (event.key === "Escape") {
      this.tip.hidden = true;
    } else {
      return;
    }
    event.preventDefault();
  }

  #pause(paused) {
    if (paused === this.timeline.paused) return;
    this.timeline.pause(paused);
    this.pause.replaceChildren(...button(paused ? "Go on" : "Pause", null, { symbol: paused ? "play" : "pause" }).childNodes);
    this.pause.setAttribute("aria-pressed", String(paused));
  }

  #inspect(found, x, y) {
    this.tip.hidden = found === null;
    if (found === null) return;
    const { title, lines } = describe(found);
    this.tip.replaceChildren(h("strong", {}, title), ...lines.map((line) => h("span", {}, line)));
    const left = Math.max(0, Math.min(x + 12, this.place.clientWidth - this.tip.offsetWidth));
    this.tip.style.transform = `translate(${left}px, ${y + 36}px)`;
    if (document.activeElement === this.timeline.canvas) this.said.textContent = [title, ...lines].join(", ");
  }

  #take(detail) {
    this.timeline.add(detail);
    const sum = total(detail.status?.models ?? [], "decode_tok_s");
    const second = Math.floor(detail.now);
    if (this.#history.at(-1)?.second !== second) this.#history.push({ second, value: sum });
    if (this.#history.length > HISTORY) this.#history.shift();
  }

  #draw() {
    const { status } = server;
    if (status === null || this.#release === null) return;
    this.nothing.hidden = true;
    this.content.hidden = false;
    this.#drawFigures(status);
    const now = performance.now();
    if (now - this.#tables < TABLE_MS || this.timeline.paused) return;
    this.#tables = now;
    this.#drawTables(status);
  }

  #drawFigures(status) {
    const { models } = status;
    const pages = [total(models, "pages_used"), total(models, "pages")];
    const hits = models.map((model) => model.expert_hits).filter((value) => value !== null && value !== undefined);
    const card = (name, value, note, more = null) => h("div", { class: "figure" }, h("dt", {}, name), h("dd", {}, h("b", {}, value), note && h("span", {}, note), more));
    this.figures.replaceChildren(...[
      card("Decode", figure(total(models, "decode_tok_s")), "tokens/s", spark(this.#history)),
      card("Prefill", figure(total(models, "prefill_tok_s")), reading(models) || "tokens/s"),
      card("Pages of the cache", `${figure(pages[0])} / ${figure(pages[1])}`, null, meter(pages[1] > 0 ? pages[0] / pages[1] : 0, "Pages used")),
      card("Requests", figure(status.running), status.queued > 0 ? `running, ${status.queued} queued` : "running, none queued"),
      card("Clients", figure(status.clients), status.clients === 1 ? "connection" : "connections"),
      card("Memory", bytes(status.memory_bytes), status.memory_budget_bytes ? `of ${bytes(status.memory_budget_bytes)}` : null,
        status.memory_budget_bytes && meter(status.memory_bytes / status.memory_budget_bytes, "Memory used")),
      status.watts !== null && status.watts !== undefined && card("Power", figure(status.watts), "watts"),
      hits.length > 0 && card("Experts in memory", percent(hits.reduce((sum, hit) => sum + hit, 0) / hits.length), "of those asked for"),
      ...busyShares(models).map(([device, share]) => card(`${device} busy`, percent(share), null, meter(share, `${device} busy`))),
    ].filter(Boolean));
  }

  #drawTables(status) {
    const { log } = this.timeline;
    const until = log.latest;
    const from = until - this.timeline.seconds;
    const lanes = [...log.byLane.keys()];
    const work = (name) => log.totals(name, from, until).slice(0, 4).map((sum) => `${sum.name} ${duration(sum.seconds)} (${sum.count} ×)`).join(", ") || "nothing";
    this.lanes.replaceChildren(dataTable(`The last ${this.timeline.seconds} seconds of each device`, ["Device", "Busy", "Spans", "Longest work", "Last"],
      lanes.map((name) => {
        const spans = log.byLane.get(name);
        const last = spans.at(-1);
        const count = spans.length - log.before(spans, from);
        return [name, percent(log.busy(name, from, until)), figure(count), work(name), last ? [last.name, last.detail].filter(Boolean).join(", ") : "–"];
      })));
    const quiet = lanes.every((name) => log.busy(name, from, until) === 0);
    this.idle.textContent = quiet ? `Nothing ran in the last ${this.timeline.seconds} seconds. Ask something in the chat, and watch.` : "";
    this.idle.hidden = !quiet;
    this.models.replaceChildren(dataTable("Models of this server", ["Model", "State", "Devices", "Context", "Weights", "Pages", "Prefill", "Decode"], status.models.map(modelRow)));
    this.#drawLegend(log.copies.length > 0);
  }

  #drawLegend(copies) {
    const entries = this.timeline.legend();
    const wanted = JSON.stringify([entries, copies]);
    if (this.legend.dataset.shown === wanted) return;
    this.legend.dataset.shown = wanted;
    const item = (name, colour) => {
      const dot = h("i", { "aria-hidden": "true" });
      dot.style.background = colour;
      return h("li", {}, dot, name);
    };
    this.legend.replaceChildren(...entries.slice(0, 12).map(({ name, colour }) => item(name, colour)), ...(copies ? [item("hand-over", "var(--copy)")] : []));
  }
}

function modelRow(model) {
  const states = { open: "ready", loading: "being loaded", closed: "loads when asked", failed: "failed" };
  const state = h("span", { class: `state ${model.state}` }, states[model.state] ?? model.state, model.why ? `: ${model.why}` : "");
  return [model.name, state, model.devices.join(", "), `${figure(model.context)} tokens`, bytes(model.weight_bytes),
    `${figure(model.pages_used)} / ${figure(model.pages)}`, `${figure(model.prefill_tok_s)} /s`, `${figure(model.decode_tok_s)} /s`];
}

function total(models, name) {
  return models.reduce((sum, model) => sum + (model[name] ?? 0), 0);
}

/** How far prompts are read that are not read yet. */
function reading(models) {
  const prompts = models.flatMap((model) => model.prompts ?? []);
  const [read, all] = [total(prompts, "read"), total(prompts, "tokens")];
  return read < all ? `tokens/s; ${figure(read)} of ${figure(all)} read` : null;
}

/** Models share devices, so their shares add up, though not past all of a device. */
function busyShares(models) {
  const shares = new Map();
  for (const model of models) {
    for (const [device, share] of Object.entries(model.busy ?? {})) shares.set(device, Math.min(1, (shares.get(device) ?? 0) + share));
  }
  return [...shares];
}

function meter(share, name) {
  const bar = h("span", { class: "meter-bar" });
  bar.style.width = `${Math.min(100, share * 100)}%`;
  return h("span", { class: "meter", role: "img", "aria-label": `${name}: ${percent(share)}` }, bar);
}

function spark(history) {
  if (history.length < 5) return null;
  const most = Math.max(1, ...history.map((entry) => entry.value));
  const points = history.map((entry, at) => `${at * 100 / (history.length - 1)},${23 - entry.value * 21 / most}`);
  return svg("svg", { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("polyline", { points: points.join(" ") }));
}
