// Controls that several views share.

import { explain } from "./api.js";
import { announce, button, h, icon } from "./dom.js";
import { server } from "./server.js";
import { change, onChange, settings } from "./store.js";

async function toClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Pages from another machine without TLS have no clipboard; the old way still works there.
    const area = h("textarea", { class: "unseen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}

/** Copies a text, and says so in its own place. */
export function copyButton(text, label = "Copy") {
  const words = h("span", {}, "Copy");
  const control = h("button", { type: "button", class: "quiet", "aria-label": label }, icon("copy"), words);
  control.addEventListener("click", async () => {
    const copied = await toClipboard(text());
    control.firstChild.replaceWith(icon(copied ? "done" : "copy"));
    words.textContent = copied ? "Copied" : "Not copied";
    announce(words.textContent);
    control.focus();
    setTimeout(() => {
      control.firstChild.replaceWith(icon("copy"));
      words.textContent = "Copy";
    }, 1600);
  });
  return control;
}

/** The choice of model, the same everywhere; it follows what the server offers. */
export function modelSelect(id) {
  const select = h("select", { id, onchange: () => change({ model: select.value }) });
  const fill = () => {
    const names = [...server.models];
    if (settings.model !== "" && !names.includes(settings.model)) names.push(settings.model);
    if (names.length === 0) names.push(server.model);
    select.replaceChildren(...names.map((name) => h("option", { value: name }, optionText(name))));
    select.value = server.model;
    select.disabled = names.length === 1 && names[0] === "";
  };
  const optionText = (name) => {
    if (name === "") return "No model known yet";
    return server.models.length > 0 && !server.models.includes(name) ? `${name} (not on this server)` : name;
  };
  // A list that is rebuilt while it is open would close.
  let shown = "";
  const refresh = () => {
    const wanted = JSON.stringify([server.models, server.model]);
    if (wanted === shown) return;
    shown = wanted;
    fill();
  };
  server.addEventListener("models", refresh);
  server.addEventListener("status", refresh);
  onChange(refresh);
  refresh();
  return select;
}

/** An error in words with the buttons that help; `actions` names what each does. */
export function notice(error, actions = {}) {
  const told = explain(error);
  const wait = told.retryAfter === undefined ? null : h("p", { class: "wait" });
  const ways = [
    told.action === "key" && button("Enter the key", () => { location.hash = "#settings"; }, { kind: "primary" }),
    told.action === "settings" && button("Open Settings", () => { location.hash = "#settings"; }),
    actions.retry && button("Try again", actions.retry, { symbol: "retry" }),
  ];
  if (wait !== null) countDown(wait, told.retryAfter);
  return h("div", { class: "notice bad", role: "group", "aria-label": told.title },
    h("p", { class: "notice-title" }, told.title), h("p", {}, told.text), wait, h("div", { class: "row" }, ways));
}

function countDown(node, seconds) {
  const end = Date.now() + seconds * 1000;
  const tell = () => {
    const left = Math.ceil((end - Date.now()) / 1000);
    node.textContent = left > 0 ? `You can retry in ${left} s.` : "You can retry now.";
    if (left <= 0) clearInterval(timer);
  };
  const timer = setInterval(tell, 1000);
  tell();
}

/** A table that becomes a list of cards on a narrow page; rows are arrays of texts or nodes. */
export function dataTable(caption, heads, rows) {
  const body = rows.map((cells) => h("tr", { role: "row" }, cells.map((cell, at) => {
    const first = at === 0;
    return h(first ? "th" : "td", { role: first ? "rowheader" : "cell", scope: first ? "row" : null, "data-head": heads[at] }, cell);
  })));
  return h("table", { class: "data", role: "table" },
    h("caption", { class: "unseen" }, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads.map((head) => h("th", { role: "columnheader", scope: "col" }, head)))),
    h("tbody", { role: "rowgroup" }, body));
}

/** Asks before something is lost; true if it may be. */
export function confirm(question, action) {
  return new Promise((resolve) => {
    const close = (answer) => {
      dialog.close();
      dialog.remove();
      resolve(answer);
    };
    const dialog = h("dialog", { class: "ask", "aria-label": question, oncancel: (event) => { event.preventDefault(); close(false); } },
      h("p", {}, question),
      h("div", { class: "row end" }, button("Keep", () => close(false)), button(action, () => close(true), { kind: "danger" })));
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** What an empty place is for. */
export function empty(title, text, ...more) {
  return h("div", { class: "empty" }, h("h2", {}, title), h("p", {}, text), more);
}
