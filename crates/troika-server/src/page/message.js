// One message on the page: the reader's own, or an answer that may still grow.

import { ApiError } from "./api.js";
import { copyButton, empty, notice } from "./controls.js";
import { button, duration, figure, h } from "./dom.js";
import { codeBlock } from "./highlight.js";
import { Markdown } from "./markdown.js";
import { server } from "./server.js";
import { settings } from "./store.js";

const STARTS = {
  "built-in": ["The sea was calm that evening, and", "“You should not have come here,” said the old man", "It was a truth known to everybody in the village that"],
  other: ["Explain in three sentences how a transformer writes text.", "Write a Rust function that reverses the words of a line.", "Plan a day in a city I have never seen, as a table."],
};

/** What the reader wrote; `actions.resend(text)` and `actions.kept()` belong to the last one. */
export class Question {
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.place = h("div", { class: "own" });
    this.node = h("article", { class: "message user" }, h("h2", { class: "unseen" }, "You"), this.place);
    if (message.edit === undefined) this.#show();
    else this.#edit(message.edit);
  }

  #show() {
    const body = h("div", { class: "bubble" });
    new Markdown(body).show(this.message.content);
    const edit = this.actions && button("Edit", () => this.#edit(this.message.content), { symbol: "edit", kind: "quiet", title: "Edit and send again" });
    this.place.replaceChildren(body, h("div", { class: "message-end" }, edit, copyButton(() => this.message.content, "Copy your message")));
  }

  #edit(text) {
    const area = h("textarea", { rows: "3", "aria-label": "Edit your message" });
    area.value = text;
    const send = () => {
      if (area.value.trim() === "") return;
      this.actions.resend(area.value);
    };
    const cancel = () => {
      delete this.message.edit;
      this.actions.kept();
      this.#show();
      this.node.querySelector("button").focus();
    };
    area.addEventListener("input", () => {
      this.message.edit = area.value;
      this.actions.kept();
    });
    area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      } else if (event.key === "Escape") {
        event.stopPropagation();
        cancel();
      }
    });
    const why = h("p", { class: "hint" }, "Sending replaces this message and the answer to it.");
    this.place.replaceChildren(h("div", { class: "editor" }, area, why,
      h("div", { class: "row end" }, button("Cancel", cancel), button("Send", send, { kind: "primary" }))));
    if (this.node.isConnected) area.focus();
  }
}

/** An answer; `update` brings the page to what the message says by now. */
export class Answer {
  #body;
  #thoughts = null;

  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.node = h("article", { class: "message answer" }, h("h2", { class: "unseen" }, "Answer"));
    this.omitted = h("p", { class: "note omitted", hidden: true });
    this.thinking = h("details", { class: "thinking", hidden: true, open: settings.reasoning === "shown" },
      h("summary", {}, "Reasoning"), h("div", {}));
    this.body = h("div", {});
    this.tools = h("div", { class: "tools" });
    this.end = h("div", { class: "after" });
    this.waiting = h("p", { class: "waiting" }, h("span", { class: "dots", "aria-hidden": "true" }), h("span", {}, "Waiting for the first token"));
    this.#body = new Markdown(this.body);
    this.node.append(this.omitted, this.thinking, this.body, this.tools, this.waiting, this.end);
    this.update();
    this.finish();
  }

  update() {
    const { content, reasoning, tools, state, thought, omitted = 0 } = this.message;
    this.omitted.hidden = omitted === 0;
    this.omitted.textContent = `The oldest ${omitted === 1 ? "message is" : `${omitted} messages are`} left out: the chat no longer fits the model's context.`;
    if (reasoning !== "") {
      this.#thoughts ??= new Markdown(this.thinking.lastChild);
      this.#thoughts.show(reasoning);
      this.thinking.hidden = false;
      const over = content !== "" || state !== "running";
      this.thinking.firstChild.textContent = over && thought ? `Reasoned for ${duration(thought)}` : over ? "Reasoning" : "Reasoning …";
    }
    this.#body.show(content);
    this.node.classList.toggle("running", state === "running");
    this.waiting.hidden = state !== "running" || content !== "" || reasoning !== "" || tools.length > 0;
    this.tools.replaceChildren(...tools.filter(Boolean).map((call) => h("div", { class: "tool" },
      h("p", {}, "The model calls ", h("code", {}, call.name || "…"), ". This page runs no tools."), codeBlock(call.arguments, "json"))));
  }

  /** Says what the answer waits for, such as a model that is being loaded. */
  waitsFor(text) {
    this.waiting.lastChild.textContent = text;
  }

  /** Once it ended: its notes, figures and buttons. */
  finish() {
    const { message, actions } = this;
    if (message.state === "running") return;
    this.update();
    const nothing = message.content === "" && message.reasoning === "" && message.tools.length === 0;
    const silent = message.state === "done" && nothing && h("p", { class: "note" }, "The model ended at once and said nothing.");
    const note = message.note && h("p", { class: "note" }, message.note);
    const error = message.error && notice(Object.assign(new ApiError(message.error.status, message.error.message, message.error)), actions ?? {});
    const retry = actions && !message.error && button("Again", actions.retry, { symbol: "retry", kind: "quiet", title: "Ask for another answer" });
    const copy = message.content !== "" && copyButton(() => message.content, "Copy the answer");
    this.end.replaceChildren(...[silent, note, error,
      h("div", { class: "message-end" }, copy, retry, this.#stats())].filter(Boolean));
  }

  #stats() {
    const { stats, model } = this.message;
    if (!stats) return "";
    const about = stats.exact ? "" : "≈ ";
    const words = [
      stats.speed !== null && `${about}${figure(stats.speed)} tokens/s`,
      `first token ${duration(stats.ttft)}`,
      `${about}${figure(stats.tokens)} ${stats.tokens === 1 ? "token" : "tokens"}`,
      stats.prompt !== null && `prompt ${figure(stats.prompt)}`,
      model,
    ];
    return h("p", { class: "stats" }, words.filter(Boolean).map((text) => h("span", {}, text)));
  }
}

/** What is heard of an answer once it ended. */
export function spoken(message) {
  if (message.error) return `No complete answer: ${message.error.message}`;
  const text = message.content.replace(/[#*_`>|]/g, "").slice(0, 1500);
  return message.state === "stopped" ? `Stopped. ${text}` : `Answer: ${text}`;
}

/** An empty chat: what the model is for, and beginnings that `write` puts into the box. */
export function welcome(write) {
  const builtIn = server.model === "built-in";
  const text = builtIn
    ? "The built-in model is tiny and knows no chat: it goes on with a story. Give it a beginning."
    : "Ask the model that runs on this machine. Nothing you write leaves it.";
  const starts = STARTS[builtIn ? "built-in" : "other"].map((start) => button(start, () => write(start), { kind: "start" }));
  return empty("What shall it be about?", text, h("div", { class: "starts" }, starts));
}
