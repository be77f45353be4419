// Builds DOM nodes and writes numbers. Text only ever becomes text nodes.

const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "open", "selected"]);
const SVG = "http://www.w3.org/2000/svg";

const ICONS = {
  chat: "M4 5h16v11H9l-5 4z",
  devices: "M3 6h9M8 12h13M5 18h8",
  plan: "M5 4h5v5H5zM14 15h5v5h-5zM7.5 9v8.5H14",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M13 4.5v5M7 14.5v5",
  copy: "M9 9h10v11H9zM5 15V4h10",
  done: "M5 12.5l4.5 4.5L19 7.5",
  edit: "M4 20l1-4L16 5l3 3L8 19zM14 7l3 3",
  retry: "M19 12a7 7 0 1 1-2-5M19 4v4h-4",
  stop: "M7 7h10v10H7z",
  send: "M12 20V5M6 11l6-6 6 6",
  add: "M12 5v14M5 12h14",
  remove: "M5 7h14M9 7V4h6v3M7 7l1 13h8l1-13",
  save: "M12 4v11M7 10.5l5 5 5-5M5 20h14",
  list: "M4 7h16M4 12h16M4 17h10",
  pause: "M8 5v14M16 5v14",
  play: "M8 5l11 7-11 7z",
  down: "M12 5v14M6 13l6 6 6-6",
  light: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8M12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6L19 19M19 5l-1.4 1.4M6.4 17.6L5 19",
  dark: "M20 14.5A8.5 8.5 0 1 1 9.5 4 7 7 0 0 0 20 14.5z",
  system: "M4 5h16v11H4zM9 20h6M12 16v4",
};

/** An element with attributes, `on...` listeners and children. */
export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else if (PROPERTIES.has(name)) node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** An element of a drawing. */
export function svg(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** One of the page's line icons; it says nothing to a screen reader. */
export function icon(name) {
  return svg("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));
}

/** A button with an icon, words, or both. */
export function button(text, onclick, { symbol = null, kind = "", title = null, ...rest } = {}) {
  const label = kind.includes("icon-button") ? { "aria-label": text, title: title ?? text } : { title };
  const words = kind.includes("icon-button") ? null : h("span", {}, text);
  return h("button", { type: "button", class: kind || null, onclick, ...label, ...rest }, symbol && icon(symbol), words);
}

/** Says a sentence to screen readers once they are idle. */
export function announce(text) {
  const region = document.getElementById("announce");
  region.textContent = "";
  // A changed node is read only if the change comes later than the clearing.
  setTimeout(() => { region.textContent = text; }, 60);
}

/** A number with as many digits as a reader can use. */
export function figure(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return value.toLocaleString("en-GB", { maximumFractionDigits: digits });
}

export function percent(share) {
  return share === null || share === undefined ? "–" : `${Math.round(share * 100)} %`;
}

export function bytes(count) {
  if (count === null || count === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  for (; count >= 1024 && at < units.length - 1; at += 1) count /= 1024;
  return `${figure(count)} ${units[at]}`;
}

/** A duration given in seconds. */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 0.001) return `${figure(seconds * 1e6)} µs`;
  if (seconds < 1) return `${figure(seconds * 1e3)} ms`;
  if (seconds < 120) return `${figure(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} days`;
}

export function reducedMotion() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

/** Hands the browser a file to save. */
export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
