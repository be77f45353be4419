// The bench view: measures a model, and keeps the figures beside earlier ones.

import { postJson } from "./api.js";
import { confirm, copyButton, dataTable, empty, modelSelect, notice } from "./controls.js";
import { announce, button, figure, h } from "./dom.js";
import { server } from "./server.js";
import { load, save } from "./store.js";

const KEPT = 50;
const HEADS = ["When", "Model", "Prompt", "Answer", "Prefill", "Decode", "First token", "Each token"];

export class BenchView {
  #run = null;
  #results = load("bench", []);

  constructor(root) {
    this.prompt = h("input", { id: "bench-prompt", type: "number", min: "1", max: "100000", step: "1", value: "128", inputmode: "numeric" });
    this.tokens = h("input", { id: "bench-tokens", type: "number", min: "1", max: "100000", step: "1", value: "32", inputmode: "numeric" });
    this.start = button("Run the bench", () => (this.#run ? this.#run.abort() : this.#measure()), { kind: "primary", id: "bench-run" });
    this.state = h("div", { class: "bench-state" });
    this.results = h("div", {});
    const field = (label, control) => h("div", { class: "field" }, h("label", { for: control.id }, label), control);
    root.append(h("div", { class: "page wide-page" }, h("h1", { tabindex: "-1" }, "Bench"),
      h("p", { class: "lead" }, "Reads a made-up prompt and writes an answer of a fixed length. Other requests that run meanwhile make it slower."),
      h("section", { class: "card", "aria-label": "New measurement" },
        h("div", { class: "fields" }, field("Model", modelSelect("bench-model")), field("Prompt tokens", this.prompt), field("Answer tokens", this.tokens), this.start),
        this.state),
      this.results));
    this.#draw();
  }

  show() {}

  hide() {}

  async #measure() {
    const wrong = [this.prompt, this.tokens].find((input) => !input.checkValidity() || input.value === "");
    if (wrong) {
      this.state.replaceChildren(h("p", { class: "field-error", role: "alert" }, "Give whole numbers of 1 or more."));
      wrong.focus();
      return;
    }
    const body = { model: server.model, prompt_tokens: Number(this.prompt.value), tokens: Number(this.tokens.value) };
    const run = new AbortController();
    this.#run = run;
    const timer = this.#waiting();
    try {
      const measured = await postJson("troika/bench", body, run.signal);
      this.#results = [{ ...body, ...measured, time: Date.now() }, ...this.#results].slice(0, KEPT);
      save("bench", this.#results);
      this.state.replaceChildren();
      this.#draw(true);
      announce(`Measured: prefill ${figure(measured.prefill_tok_s)}, decode ${figure(measured.decode_tok_s)} tokens per second.`);
    } catch (error) {
      const stopped = error.name === "AbortError";
      this.state.replaceChildren(stopped ? h("p", { class: "note" }, "Stopped. Nothing was kept.") : notice(error, { retry: () => this.#measure() }));
    }
    clearInterval(timer);
    this.#run = null;
    this.start.firstChild.textContent = "Run the bench";
    this.start.classList.remove("stop");
  }

  #waiting() {
    const began = performance.now();
    const words = h("span", {}, "Measuring");
    this.start.firstChild.textContent = "Stop";
    this.start.classList.add("stop");
    this.state.replaceChildren(h("p", { class: "waiting" }, h("span", { class: "dots", "aria-hidden": "true" }), words));
    announce("Measuring.");
    return setInterval(() => { words.textContent = `Measuring, ${Math.round((performance.now() - began) / 1000)} s`; }, 1000);
  }

  #draw(arrived = false) {
    const results = this.#results;
    if (results.length === 0) {
      this.results.replaceChildren(empty("No figures yet", "Run the bench once. Later runs are shown beside it, with the difference."));
      return;
    }
    const most = { prefill_tok_s: 0, decode_tok_s: 0 };
    for (const result of results) for (const name of Object.keys(most)) most[name] = Math.max(most[name], result[name]);
    const rows = results.map((result, at) => this.#row(result, results.slice(at + 1).find((older) => alike(result, older)), most));
    const table = dataTable("Results, newest first", HEADS, rows);
    if (arrived) table.querySelector("tbody tr").classList.add("arrived");
    this.results.replaceChildren(h("section", { class: "card", "aria-labelledby": "results-title" },
      h("div", { class: "card-head" }, h("h2", { id: "results-title" }, "Results"),
        h("div", { class: "row" }, copyButton(() => asTable(results), "Copy the results as a table"), button("Clear", () => this.#clear(), { symbol: "remove", kind: "quiet" }))),
      table, h("p", { class: "hint" }, "Percentages compare with the run before it of the same model and lengths. Kept in this browser.")));
  }

  #row(result, older, most) {
    const speed = (name) => h("span", { class: "speed" }, h("b", {}, figure(result[name])), " tokens/s ", difference(result[name], older?.[name], true), bar(result[name] / most[name]));
    const time = (name) => h("span", {}, `${figure(result[name])} ms `, difference(result[name], older?.[name], false));
    const day = new Date(result.time).toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
    return [day, result.model, figure(result.prompt_tokens), figure(result.tokens), speed("prefill_tok_s"), speed("decode_tok_s"), time("ttft_ms"), time("tpot_ms")];
  }

  async #clear() {
    if (!await confirm("Delete all results?", "Delete")) return;
    this.#results = [];
    save("bench", []);
    this.#draw();
  }
}

function alike(one, other) {
  return one.model === other.model && one.prompt_tokens === other.prompt_tokens && one.tokens === other.tokens;
}

function difference(value, older, moreIsBetter) {
  if (!older || !Number.isFinite(value)) return "";
  const change = Math.round((value / older - 1) * 100);
  if (change === 0) return h("span", { class: "same" }, "± 0 %");
  const better = (change > 0) === moreIsBetter;
  return h("span", { class: better ? "better" : "worse" }, `${change > 0 ? "+" : "−"} ${Math.abs(change)} %`);
}

function bar(share) {
  const inner = h("span", { class: "meter-bar" });
  inner.style.width = `${Number.isFinite(share) ? share * 100 : 0}%`;
  return h("span", { class: "meter", "aria-hidden": "true" }, inner);
}

function asTable(results) {
  const rows = results.map((result) => [new Date(result.time).toISOString(), result.model, result.prompt_tokens, result.tokens, result.prefill_tok_s, result.decode_tok_s, result.ttft_ms, result.tpot_ms]);
  const heads = ["time", "model", "prompt tokens", "tokens", "prefill tokens/s", "decode tokens/s", "TTFT ms", "TPOT ms"];
  return [heads, heads.map(() => "---"), ...rows].map((cells) => `| ${cells.join(" | ")} |`).join("\n");
}
