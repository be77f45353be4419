// The settings view. Each change is kept at once, in this browser only.

import { explain, getJson } from "./api.js";
import * as chats from "./chats.js";
import { confirm, modelSelect } from "./controls.js";
import { announce, button, download, h } from "./dom.js";
import { server, usualLimit } from "./server.js";
import { change, complaint, DEFAULTS, LIMITS, onChange, settings } from "./store.js";

const NUMBERS = [
  ["temperature", "Temperature", "0 always takes the likeliest token; above 1 is wild."],
  ["top_p", "Top p", "Keeps the likeliest tokens that together reach this share."],
  ["top_k", "Top k", "Keeps this many tokens; 0 keeps all."],
  ["min_p", "Min p", "Drops tokens less likely than this share of the likeliest."],
  ["max_tokens", "Max tokens", "Ends the answer after this many."],
  ["seed", "Seed", "The same seed gives the same answer."],
];

export class SettingsView {
  #deleted;

  /** `deleted` is called after all chats were deleted. */
  constructor(root, deleted) {
    this.#deleted = deleted;
    this.saved = h("p", { class: "saved", role: "status" });
    root.append(h("div", { class: "page" },
      h("div", { class: "page-head" }, h("h1", { tabindex: "-1" }, "Settings"), this.saved),
      h("p", { class: "lead" }, "Kept in this browser, and sent to nobody but this server. An empty field leaves the choice to the server."),
      h("div", { class: "stack" }, this.#keyCard(), this.#modelCard(), this.#samplingCard(), this.#looksCard(), this.#dataCard())));
  }

  show() {
    if (server.state === "locked") this.key.focus();
  }

  hide() {}

  #keep(changes) {
    const kept = change(changes);
    this.saved.textContent = kept ? "Saved" : "This browser keeps nothing; the settings last until the page is closed.";
    clearTimeout(this.timer);
    if (kept) this.timer = setTimeout(() => { this.saved.textContent = ""; }, 2000);
  }

  #keyCard() {
    this.key = h("input", {
      id: "key", type: "password", autocomplete: "off", spellcheck: "false", autocapitalize: "none", value: settings.key, "aria-describedby": "key-hint key-state",
      oninput: () => { this.#keep({ key: this.key.value.trim() }); this.keyState.textContent = ""; },
      onkeydown: (event) => { if (event.key === "Enter") this.#tryKey(); },
    });
    const reveal = button("Show", () => {
      const hidden = this.key.type === "password";
      this.key.type = hidden ? "text" : "password";
      reveal.firstChild.textContent = hidden ? "Hide" : "Show";
      reveal.setAttribute("aria-pressed", String(hidden));
    }, { "aria-label": "Show the key", "aria-pressed": "false" });
    this.keyState = h("p", { id: "key-state", role: "status" });
    return card("key-title", "Key of the server",
      h("div", { class: "field" }, h("label", { for: "key" }, "Key"), h("div", { class: "row join" }, this.key, reveal, button("Try it", () => this.#tryKey())),
        h("p", { class: "hint", id: "key-hint" }, "Only a server that was started with a key asks for it."), this.keyState));
  }

  async #tryKey() {
    this.keyState.className = "";
    this.keyState.textContent = "Asking the server …";
    try {
      await getJson("v1/models");
      this.keyState.className = "good";
      this.keyState.replaceChildren(settings.key === "" ? "The server asks for no key. " : "The server takes this key. ", h("a", { href: "#chat" }, "Go to the chat"));
      server.refresh();
    } catch (error) {
      const { title, text } = explain(error);
      this.keyState.className = "field-error";
      this.keyState.textContent = `${title}. ${text}`;
      this.key.focus();
    }
  }

  #modelCard() {
    const system = h("textarea", { id: "system", rows: "4", value: settings.system, placeholder: "You are a careful editor. Answer briefly.", oninput: () => this.#keep({ system: system.value }), "aria-describedby": "system-hint" });
    return card("model-title", "Model and prompt",
      h("div", { class: "field" }, h("label", { for: "settings-model" }, "Model"), modelSelect("settings-model")),
      h("div", { class: "field" }, h("label", { for: "system" }, "System prompt"), system, h("p", { class: "hint", id: "system-hint" }, "Goes before every chat.")));
  }

  #samplingCard() {
    const inputs = NUMBERS.map(([name, label, hint]) => this.#number(name, label, hint));
    const stop = h("textarea", { id: "stop", rows: "2", value: settings.stop, oninput: () => this.#keep({ stop: stop.value }), "aria-describedby": "stop-hint" });
    const reset = button("Back to the server's choice", () => {
      for (const { input, check } of inputs) {
        input.value = "";
        check();
      }
      stop.value = "";
      this.#keep({ ...Object.fromEntries(Object.keys(LIMITS).map((name) => [name, DEFAULTS[name]])), stop: "" });
    });
    return card("sampling-title", "Sampling", h("div", { class: "numbers" }, inputs.map(({ node }) => node)),
      h("div", { class: "field" }, h("label", { for: "stop" }, "Stop texts"), stop, h("p", { class: "hint", id: "stop-hint" }, "One on each line. Write \\n for a line break. The answer ends before the first that comes up.")),
      h("div", { class: "row" }, reset));
  }

  #number(name, label, hint) {
    const error = h("p", { class: "field-error", id: `${name}-error`, role: "alert" });
    const input = h("input", {
      id: name, type: "text", inputmode: LIMITS[name].whole ? "numeric" : "decimal", autocomplete: "off", value: settings[name],
      placeholder: "server's choice", "aria-describedby": `${name}-hint ${name}-error`,
    });
    if (name === "max_tokens") {
      const suggest = () => { input.placeholder = usualLimit(server.entry?.context) ?? "server's choice"; };
      server.addEventListener("status", suggest);
      onChange(suggest);
      suggest();
    }
    const check = () => {
      const wrong = complaint(name, input.value);
      error.textContent = wrong ?? "";
      input.setAttribute("aria-invalid", String(wrong !== null));
      return wrong === null;
    };
    input.addEventListener("input", () => { if (check()) this.#keep({ [name]: input.value.trim() }); });
    return { input, check, node: h("div", { class: "field" }, h("label", { for: name }, label), input, error, h("p", { class: "hint", id: `${name}-hint` }, hint)) };
  }

  #looksCard() {
    return card("looks-title", "Looks",
      choice("Colours", "theme", [["system", "As the system"], ["light", "Light"], ["dark", "Dark"]], (theme) => this.#keep({ theme })),
      choice("Reasoning of the model", "reasoning", [["folded", "Folded"], ["shown", "Shown"]], (reasoning) => this.#keep({ reasoning })));
  }

  #dataCard() {
    return card("data-title", "Chats in this browser",
      h("p", { class: "hint" }, "Whoever uses this browser can read them."),
      h("div", { class: "row" },
        button("Export all as JSON", () => download("troika-chats.json", chats.asJson(chats.everything())), { symbol: "save" }),
        button("Delete all chats", () => this.#deleteAll(), { symbol: "remove", kind: "danger" })));
  }

  async #deleteAll() {
    const entries = chats.list();
    if (entries.length === 0) {
      this.saved.textContent = "There are no chats.";
      return;
    }
    if (!await confirm(`Delete all ${entries.length} chats? They cannot be brought back.`, "Delete all")) return;
    for (const { id } of entries) chats.forget(id);
    this.#deleted();
    announce("All chats deleted.");
  }
}

function card(id, title, ...content) {
  return h("section", { class: "card", "aria-labelledby": id }, h("h2", { id }, title), content);
}

function choice(legend, name, options, chosen) {
  const inputs = options.map(([value]) => h("input", { type: "radio", name, value, id: `${name}-${value}`, checked: settings[name] === value, onchange: () => chosen(value) }));
  onChange(() => { for (const input of inputs) input.checked = input.value === settings[name]; });
  return h("fieldset", { class: "choice" }, h("legend", {}, legend),
    h("div", { class: "segments" }, options.map(([value, label], at) => [inputs[at], h("label", { for: `${name}-${value}` }, label)])));
}
