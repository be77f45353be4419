// The entry: the views behind the tabs, the colour scheme, and the state of the server.

import { ChatView } from "./chat.js";
import { DevicesView } from "./devices.js";
import { button, h, icon } from "./dom.js";
import { PlanView } from "./plan.js";
import { server } from "./server.js";
import { SettingsView } from "./settings.js";
import { change, onChange, settings } from "./store.js";

const VIEWS = {
  chat: { title: "Chat", make: (root) => new ChatView(root) },
  devices: { title: "Devices", make: (root) => new DevicesView(root) },
  plan: { title: "Plan", make: (root) => new PlanView(root) },
  settings: { title: "Settings", make: (root) => new SettingsView(root, () => made.get("chat")?.view.reset()) },
};
const SCHEMES = { system: ["light", "Light colours"], light: ["dark", "Dark colours"], dark: ["system", "Colours of the system"] };

const main = document.getElementById("main");
const banner = document.getElementById("banner");
const made = new Map();
let current = null;

function place(name) {
  if (!made.has(name)) {
    const root = h("div", { class: `view ${name}-view`, hidden: true });
    main.append(root);
    made.set(name, { root, view: VIEWS[name].make(root) });
  }
  return made.get(name);
}

function route(first) {
  const asked = location.hash.slice(1);
  const name = Object.hasOwn(VIEWS, asked) ? asked : "chat";
  if (name === current) return;
  if (current !== null) {
    const old = place(current);
    old.root.hidden = true;
    old.view.hide();
  }
  current = name;
  const { root, view } = place(name);
  root.hidden = false;
  document.title = `${VIEWS[name].title} · Troika`;
  for (const tab of document.querySelectorAll("#tabs a")) {
    if (tab.hash === `#${name}`) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
  // Keyboard and screen reader go on where the new view begins.
  if (!first && name !== "chat") root.querySelector("h1").focus({ preventScroll: true });
  view.show();
  drawBanner();
}

function drawTabs() {
  document.getElementById("tabs").append(...Object.entries(VIEWS).map(([name, { title }]) => h("a", { href: `#${name}` }, icon(name), h("span", {}, title))));
}

function applyScheme() {
  const { theme } = settings;
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const old = document.getElementById("theme");
  const focused = document.activeElement === old;
  const next = SCHEMES[theme] ?? SCHEMES.system;
  const control = button(`Colours: ${theme}. Change to: ${next[1]}`, () => change({ theme: next[0] }), { symbol: theme, kind: "icon-button", id: "theme" });
  old.replaceWith(control);
  if (focused) control.focus();
}

function drawHealth() {
  const { state, status, model } = server;
  const words = { unknown: "connecting", away: "no answer", locked: "key needed", ready: model || "ready" }[state];
  const { entry } = server;
  const busy = state === "ready" && (status?.running ?? 0) > 0;
  const tone = state === "ready" ? (entry?.state === "failed" ? "away" : entry?.state === "loading" ? "unknown" : "ready") : state;
  const health = document.getElementById("health");
  const wanted = `${tone}|${busy}|${words}`;
  if (health.dataset.shown === wanted) return;
  health.dataset.shown = wanted;
  health.className = `pill ${tone}${busy ? " busy" : ""}`;
  health.replaceChildren(h("i", { "aria-hidden": "true" }), h("span", {}, words));
}

function drawBanner() {
  const { state } = server;
  banner.hidden = !(state === "away" || (state === "locked" && current !== "settings"));
  if (banner.hidden || banner.dataset.state === state) return;
  banner.dataset.state = state;
  if (state === "away") {
    banner.replaceChildren(h("p", {}, "The server does not answer. See whether “troika serve” still runs; what you write is kept."), button("Try again", () => server.refresh()));
  } else {
    banner.replaceChildren(h("p", {}, "This server asks for a key."), h("a", { class: "button primary", href: "#settings" }, "Enter the key"));
  }
}

server.addEventListener("state", () => {
  // The first thing to do with a locked server is to enter its key.
  if (server.state === "locked" && settings.key === "") {
    if (current === "settings") place("settings").view.show();
    else location.hash = "#settings";
  }
  drawHealth();
  drawBanner();
});
server.addEventListener("status", drawHealth);
server.addEventListener("models", drawHealth);
onChange(() => {
  applyScheme();
  drawHealth();
});
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", () => route(false));

main.replaceChildren();
drawTabs();
applyScheme();
drawHealth();
// It keeps what answers do before its tab is opened.
place("devices");
route(true);
server.refresh();
