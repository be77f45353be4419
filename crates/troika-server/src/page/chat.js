// The chat view: the list of chats, the conversation, and the box to write in.

import { ask, emptyAnswer, settle } from "./answer.js";
import { ChatHead, ChatList } from "./chathead.js";
import * as chats from "./chats.js";
import { modelSelect } from "./controls.js";
import { announce, button, figure, h } from "./dom.js";
import { Answer, Question, spoken, welcome } from "./message.js";
import { server } from "./server.js";

const DRAW_MS = 60;
const KEEP_MS = 1000;

export class ChatView {
  /** Answers on their way, by chat: they go on while another chat is shown. */
  #runs = new Map();
  #chat;
  #last = null;
  #follow = true;
  #visible = false;
  #draftTimer = null;

  constructor(root) {
    this.root = root;
    this.#build();
    this.#chat = chats.open(chats.lastOpened()) ?? chats.fresh();
    this.#draw();
    server.addEventListener("status", () => this.#explainWait());
    server.addEventListener("models", () => { if (this.#chat.messages.length === 0) this.#drawLog(); });
    addEventListener("storage", (event) => { if (event.key === "troika.chats") this.list.draw(this.#chat.id); });
    addEventListener("pagehide", (event) => this.#leavePage(event.persisted));
    addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.#visible && document.querySelector("dialog[open]") === null) this.#escape();
    });
  }

  show() {
    this.#visible = true;
    if (matchMedia("(pointer: fine)").matches) this.box.focus({ preventScroll: true });
    this.#grow();
    if (this.#follow) this.#toEnd();
  }

  hide() {
    this.#visible = false;
    this.root.classList.remove("listing");
  }

  #leavePage(comesBack) {
    this.#keepDraft();
    for (const run of this.#runs.values()) chats.keep(run.chat);
    // The browser ends the requests of a page that it closes; that is no error of the server.
    if (!comesBack) this.#runs.clear();
  }

  /** After all chats were deleted elsewhere on the page. */
  reset() {
    for (const run of this.#runs.values()) run.controller.abort();
    this.#runs.clear();
    this.#leave(chats.fresh());
  }

  /** Opens another chat without keeping the draft of this one, which is gone. */
  #leave(chat) {
    clearTimeout(this.#draftTimer);
    this.#chat = chats.fresh();
    this.box.value = "";
    this.#open(chat);
  }

  #build() {
    this.list = new ChatList({ open: (chat) => this.#open(chat), isBusy: (id) => this.#runs.has(id) });
    this.head = new ChatHead({
      open: (chat) => this.#open(chat),
      remove: (chat) => this.#delete(chat),
      list: (shown) => this.#list(shown),
      renamed: (chat) => { this.#keep(chat); this.head.draw(this.#chat); this.list.draw(this.#chat.id); },
    });
    this.log = h("div", { class: "log", role: "log", "aria-live": "off", "aria-label": "Conversation", tabindex: "0" });
    this.log.addEventListener("scroll", () => {
      this.#follow = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 48;
      this.jump.hidden = this.#follow;
    }, { passive: true });
    this.jump = button("To the newest", () => { this.#toEnd(); this.box.focus(); }, { symbol: "down", kind: "jump", hidden: true });
    this.root.append(this.list.node,
      h("section", { class: "conversation", "aria-label": "Chat" }, this.head.node, this.log,
        h("div", { class: "composer-place" }, this.jump, this.#composer())));
  }

  #composer() {
    this.box = h("textarea", {
      id: "ask", rows: "1", placeholder: "Write a message", "aria-label": "Message", "aria-describedby": "ask-hint", enterkeyhint: "send",
      oninput: () => { this.#grow(); this.#draftLater(); this.#drawSend(); },
      onkeydown: (event) => {
        if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
        event.preventDefault();
        this.#send();
      },
    });
    this.send = button("Send", () => (this.#runs.has(this.#chat.id) ? this.#stop() : this.#send()), { kind: "primary send" });
    this.full = h("p", { class: "note", hidden: true, role: "status" }, "This browser has no room left for chats. Export this one, then delete old ones.");
    return h("div", { class: "composer" }, this.full, this.box,
      h("div", { class: "composer-end" }, h("label", { class: "unseen", for: "chat-model" }, "Model"), modelSelect("chat-model"),
        h("p", { class: "hint", id: "ask-hint" }, h("kbd", {}, "Enter"), " sends, ", h("kbd", {}, "Shift"), " ", h("kbd", {}, "Enter"), " breaks the line, ", h("kbd", {}, "Esc"), " stops"), this.send));
  }

  #open(chat) {
    this.#keepDraft();
    this.#chat = this.#runs.get(chat.id)?.chat ?? chat;
    chats.setLastOpened(chat.id);
    this.#list(false);
    this.#follow = true;
    this.#draw();
    this.box.focus();
  }

  #list(shown) {
    this.root.classList.toggle("listing", shown);
    this.head.toggle.setAttribute("aria-expanded", String(shown));
    if (shown) this.root.querySelector(".chats button").focus();
  }

  #draw() {
    this.box.value = this.#chat.draft;
    this.#grow();
    this.head.draw(this.#chat);
    this.list.draw(this.#chat.id);
    this.#drawLog();
    this.#drawSend();
  }

  #drawLog() {
    const { messages } = this.#chat;
    this.#last = null;
    if (messages.length === 0) {
      this.log.replaceChildren(welcome((text) => {
        this.box.value = text;
        this.box.focus();
        this.box.dispatchEvent(new Event("input"));
      }));
      return;
    }
    this.log.replaceChildren(h("div", { class: "column" }, messages.map((message, at) => this.#view(message, at).node)));
    this.#toEnd();
  }

  #view(message, at) {
    const { messages } = this.#chat;
    const idle = !this.#runs.has(this.#chat.id);
    if (message.role === "user") {
      const newest = messages.findLastIndex((other) => other.role === "user") === at;
      const actions = { resend: (text) => this.#resend(at, text), kept: () => chats.keep(this.#chat) };
      return new Question(message, newest && idle ? actions : null);
    }
    const last = at === messages.length - 1;
    const view = new Answer(message, last && idle ? this.#answerActions() : null);
    if (last) this.#last = view;
    return view;
  }

  /** Gives the last question and answer their buttons; other nodes stay, with what is selected in them. */
  #drawEnd() {
    const at = this.#chat.messages.length - 1;
    this.#last.actions = this.#answerActions();
    this.#last.finish();
    const question = this.#last.node.previousElementSibling;
    question?.replaceWith(this.#view(this.#chat.messages[at - 1], at - 1).node);
    if (this.#follow) this.#toEnd();
  }

  #answerActions() {
    return { retry: () => this.#retry() };
  }

  #drawSend() {
    const running = this.#runs.has(this.#chat.id);
    this.send.firstChild.textContent = running ? "Stop" : "Send";
    this.send.classList.toggle("stop", running);
    this.send.disabled = !running && this.box.value.trim() === "";
  }

  #grow() {
    this.box.style.height = "auto";
    this.box.style.height = `${Math.min(this.box.scrollHeight, innerHeight * 0.4)}px`;
  }

  #toEnd() {
    this.log.scrollTop = this.log.scrollHeight;
    this.#follow = true;
    this.jump.hidden = true;
  }

  #draftLater() {
    clearTimeout(this.#draftTimer);
    this.#draftTimer = setTimeout(() => this.#keepDraft(), 300);
  }

  #keepDraft() {
    clearTimeout(this.#draftTimer);
    if (this.#chat.draft === this.box.value) return;
    this.#chat.draft = this.box.value;
    this.#keep(this.#chat);
  }

  #keep(chat) {
    this.full.hidden = chats.keep(chat);
  }

  #send() {
    const text = this.box.value;
    if (text.trim() === "") return;
    if (this.#runs.has(this.#chat.id)) {
      announce("An answer is still being written. Escape stops it.");
      return;
    }
    this.box.value = "";
    this.#grow();
    this.#ask(text);
  }

  /** Puts the text into the chat first, so that no error can lose it. */
  #ask(text) {
    const chat = this.#chat;
    if (chat.messages.length === 0) chat.title = chats.titleOf(text);
    chat.draft = this.box.value;
    chat.messages.push({ role: "user", content: text, time: Date.now() });
    chats.setLastOpened(chat.id);
    this.#answer(chat);
  }

  #resend(at, text) {
    this.#chat.messages.length = at;
    this.#ask(text);
    this.box.focus();
  }

  #retry() {
    const { messages } = this.#chat;
    if (messages.at(-1)?.role === "assistant") messages.pop();
    this.#answer(this.#chat);
    this.box.focus();
  }

  async #answer(chat) {
    const before = [...chat.messages];
    const message = emptyAnswer();
    chat.messages.push(message);
    chat.changed = Date.now();
    const run = { chat, controller: new AbortController(), drawn: 0, kept: 0 };
    this.#runs.set(chat.id, run);
    this.#keep(chat);
    this.#follow = true;
    this.#draw();
    const release = server.watch();
    try {
      await ask(before, message, run.controller.signal, () => this.#progress(run));
    } catch (error) {
      settle(message, error);
    }
    release();
    this.#ended(run, message);
  }

  #progress(run) {
    const now = performance.now();
    if (now - run.kept > KEEP_MS) {
      run.kept = now;
      chats.keep(run.chat);
    }
    if (run.chat !== this.#chat || run.timer) return;
    run.timer = setTimeout(() => {
      run.timer = null;
      run.drawn = performance.now();
      if (run.chat !== this.#chat || !this.#runs.has(run.chat.id)) return;
      this.#last?.update();
      if (this.#follow) this.#toEnd();
    }, Math.max(0, run.drawn + DRAW_MS - now));
  }

  #ended(run, message) {
    const known = this.#runs.get(run.chat.id) === run;
    if (!known) return;
    this.#runs.delete(run.chat.id);
    run.chat.changed = Date.now();
    this.#keep(run.chat);
    this.list.draw(this.#chat.id);
    if (run.chat !== this.#chat) {
      announce(`The answer in “${run.chat.title}” ended.`);
      return;
    }
    this.#drawEnd();
    this.#drawSend();
    announce(spoken(message));
  }

  #escape() {
    if (this.root.classList.contains("listing")) {
      this.#list(false);
      this.head.toggle.focus();
    } else {
      this.#stop();
    }
  }

  #stop() {
    this.#runs.get(this.#chat.id)?.controller.abort();
    this.box.focus();
  }

  #explainWait() {
    if (!this.#runs.has(this.#chat.id) || this.#last === null) return;
    const model = server.status?.models.find((entry) => entry.name === this.#last.message.model);
    const queued = server.status?.queued ?? 0;
    const { processed = 0, total = 0 } = this.#last.message.reading ?? {};
    if (model?.state === "loading") this.#last.waitsFor("The model is being loaded");
    else if (processed < total) this.#last.waitsFor(`Reading the prompt: ${figure(processed)} of ${figure(total)} tokens`);
    else this.#last.waitsFor(queued > 0 ? `Waiting for the first token; ${queued} in the queue` : "Waiting for the first token");
  }

  #delete(chat) {
    this.#runs.get(chat.id)?.controller.abort();
    this.#runs.delete(chat.id);
    chats.forget(chat.id);
    this.#leave(chats.open(chats.list()[0]?.id ?? null) ?? chats.fresh());
    announce("Chat deleted.");
  }
}
