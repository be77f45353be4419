// The plan view: which device runs what, and why.

import { getJson } from "./api.js";
import { copyButton, dataTable, empty, modelSelect, notice } from "./controls.js";
import { button, h } from "./dom.js";
import { server } from "./server.js";
import { onChange } from "./store.js";

const PHASES = { prefill: "Prefill", decode: "Decode" };

export class PlanView {
  #shown = null;
  #question = null;
  #visible = false;

  constructor(root) {
    this.result = h("div", { class: "stack", "aria-live": "polite" });
    this.reload = button("Reload", () => this.#ask(), { symbol: "retry" });
    root.append(h("div", { class: "page wide-page" },
      h("div", { class: "page-head" }, h("h1", { tabindex: "-1" }, "Plan"),
        h("div", { class: "row" }, h("label", { class: "unseen", for: "plan-model" }, "Model"), modelSelect("plan-model"), this.reload)),
      h("p", { class: "lead" }, "Which device runs which part of the model, and the reason for it. Prefill reads the prompt, decode writes the answer."),
      this.result));
    onChange(() => this.#maybeAsk());
    server.addEventListener("models", () => this.#maybeAsk());
    server.addEventListener("state", () => { if (server.state === "ready") this.#maybeAsk(); });
  }

  show() {
    this.#visible = true;
    this.#maybeAsk();
  }

  hide() {
    this.#visible = false;
  }

  #maybeAsk() {
    if (this.#visible && this.#shown !== server.model) this.#ask();
  }

  async #ask() {
    this.#question?.abort();
    const question = new AbortController();
    this.#question = question;
    const model = server.model;
    if (model === "") {
      this.result.replaceChildren(empty("No model yet", "The plan appears here as soon as the server names a model."));
      if (server.state === "ready" || server.state === "unknown") return;
    }
    this.#shown = model;
    if (this.result.childElementCount === 0) this.result.replaceChildren(h("p", { class: "waiting" }, h("span", { class: "dots" }), "Asking for the plan; a model that is closed is loaded first"));
    try {
      const plan = await getJson(`troika/plan?model=${encodeURIComponent(model)}`, question.signal);
      this.#draw(plan);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.#shown = null;
      this.result.replaceChildren(notice(error, { retry: () => this.#ask() }));
    }
  }

  #draw({ rules = [], refusals = [], text = "" }) {
    const rows = rules.map((rule) => [PHASES[rule.phase] ?? rule.phase, rule.layers, rule.parts, h("span", { class: "chip" }, rule.device), rule.why]);
    const table = rows.length > 0
      ? h("section", { class: "card", "aria-labelledby": "rules-title" }, h("h2", { id: "rules-title" }, "Rules"),
        dataTable("Rules of the plan", ["Phase", "Layers", "Parts", "Device", "Why"], rows))
      : empty("No rules", "The server gave none: everything runs on its first device.");
    const refused = h("section", { class: "card", "aria-labelledby": "refusals-title" }, h("h2", { id: "refusals-title" }, "What devices refuse"),
      refusals.length > 0
        ? h("ul", { class: "refusals" }, refusals.map((sentence) => h("li", {}, sentence)))
        : h("p", { class: "hint" }, "Nothing. Every device takes all that the plan gives it."));
    const lines = text && h("section", { class: "card", "aria-labelledby": "text-title" },
      h("div", { class: "card-head" }, h("h2", { id: "text-title" }, "In full"), copyButton(() => text, "Copy the plan")),
      h("p", { class: "hint" }, "As ", h("code", {}, "troika plan --explain"), " prints it."),
      h("pre", { class: "text", tabindex: "0", role: "region", "aria-label": "The plan in full" }, text));
    this.result.replaceChildren(...[table, refused, lines].filter(Boolean));
  }
}
