// Around the conversation: the list of chats, and the head with a chat's title and tools.

import * as chats from "./chats.js";
import { confirm } from "./controls.js";
import { button, download, h } from "./dom.js";

/** The list beside the conversation. `actions`: open(chat), isBusy(id). */
export class ChatList {
  constructor(actions) {
    this.actions = actions;
    this.entries = h("ul", { class: "entries" });
    this.node = h("aside", { class: "chats", id: "chat-list", "aria-label": "Chats" },
      button("New chat", () => actions.open(chats.fresh()), { symbol: "add", kind: "wide" }), this.entries);
  }

  draw(current) {
    const entries = chats.list();
    const none = h("li", { class: "hint" }, "Chats you begin are listed here. They stay in this browser.");
    this.entries.replaceChildren(...(entries.length > 0 ? entries.map((entry) => this.#entry(entry, entry.id === current)) : [none]));
  }

  #entry(entry, here) {
    const busy = this.actions.isBusy(entry.id);
    return h("li", {}, h("button", {
      type: "button", class: busy ? "entry busy" : "entry", "aria-current": here ? "true" : null,
      onclick: () => this.actions.open(chats.open(entry.id) ?? chats.fresh()),
    }, h("span", { class: "entry-title" }, entry.title), h("span", { class: "entry-time" }, busy ? "answers now" : when(entry.changed))));
  }
}

/** The line above the conversation. `actions`: open(chat), renamed(), remove(), list(shown). */
export class ChatHead {
  #chat = null;

  constructor(actions) {
    this.actions = actions;
    this.title = h("h1", { tabindex: "-1" });
    this.tools = h("div", { class: "row" });
    this.toggle = button("Chats", () => actions.list(this.toggle.getAttribute("aria-expanded") !== "true"),
      { symbol: "list", kind: "icon-button narrow", "aria-expanded": "false", "aria-controls": "chat-list" });
    this.node = h("div", { class: "chat-head" }, this.toggle, this.title, this.tools);
  }

  draw(chat) {
    this.#chat = chat;
    this.title.textContent = chat.title;
    const small = { kind: "icon-button", disabled: chat.messages.length === 0 };
    this.tools.replaceChildren(
      button("Rename chat", () => this.#rename(), { ...small, symbol: "edit" }),
      button("Export chat as JSON", () => download(`troika-chat-${chat.id}.json`, chats.asJson([chat])), { ...small, symbol: "save" }),
      button("Delete chat", () => this.#remove(), { ...small, symbol: "remove" }),
      button("New chat", () => this.actions.open(chats.fresh()), { kind: "icon-button narrow", symbol: "add" }));
  }

  #rename() {
    const chat = this.#chat;
    const field = h("input", { type: "text", value: chat.title, maxlength: "80", "aria-label": "Title of the chat" });
    let over = false;
    const end = (keep) => {
      if (over) return;
      over = true;
      if (keep && field.value.trim() !== "") chat.title = field.value.trim();
      field.replaceWith(this.title);
      this.actions.renamed(chat);
      this.tools.firstChild.focus();
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") {
        // The button that gets the focus must not take this key as well.
        event.preventDefault();
        end(true);
      }
      if (event.key === "Escape") {
        event.stopPropagation();
        end(false);
      }
    });
    field.addEventListener("blur", () => end(true));
    this.title.replaceWith(field);
    field.focus();
    field.select();
  }

  async #remove() {
    const chat = this.#chat;
    if (await confirm(`Delete “${chat.title}”? It cannot be brought back.`, "Delete")) this.actions.remove(chat);
  }
}

function when(time) {
  const day = new Date(time);
  const today = day.toDateString() === new Date().toDateString();
  return today ? day.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" }) : day.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
}
