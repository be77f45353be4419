// The chats that this browser keeps, each under its own name, and their list.

import { load, remove, save } from "./store.js";

/** A chat without messages; it is kept once it has a message or a draft. */
export function fresh() {
  const now = Date.now();
  return { id: `${now.toString(36)}${Math.random().toString(36).slice(2, 8)}`, title: "New chat", created: now, changed: now, draft: "", messages: [] };
}

/** The list, newest first: id, title, time of the last change. */
export function list() {
  return load("chats", []);
}

export function open(id) {
  const chat = id === null ? null : load(`chat.${id}`, null);
  if (chat === null) return null;
  for (const message of chat.messages) {
    // Whoever was writing it is gone.
    if (message.state === "running") Object.assign(message, { state: "broken", note: "The page was closed before the answer ended." });
  }
  return chat;
}

/** Keeps a chat; false if the browser has no room for it. */
export function keep(chat) {
  if (chat.messages.length === 0 && chat.draft === "") return true;
  const others = list().filter((entry) => entry.id !== chat.id);
  const entry = { id: chat.id, title: chat.title, changed: chat.changed };
  const entries = [entry, ...others].sort((one, other) => other.changed - one.changed);
  const stored = save(`chat.${chat.id}`, chat);
  return save("chats", entries) && stored;
}

export function forget(id) {
  remove(`chat.${id}`);
  save("chats", list().filter((entry) => entry.id !== id));
}

export function titleOf(text) {
  const line = text.trim().split("\n")[0].replace(/[#*_`>]/g, "").trim();
  return line.length > 48 ? `${line.slice(0, 47)}…` : line || "New chat";
}

export function lastOpened() {
  return load("current", null);
}

export function setLastOpened(id) {
  save("current", id);
}

/** Chats as a file to keep. */
export function asJson(chats) {
  return JSON.stringify({ program: "troika", chats }, null, 2);
}

export function everything() {
  return list().map((entry) => open(entry.id)).filter((chat) => chat !== null);
}
