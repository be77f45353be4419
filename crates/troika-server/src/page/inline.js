// The marks inside a line of Markdown: code, links, emphasis. Gives nodes and strings.

import { h } from "./dom.js";

// How far back an opening mark is looked for; keeps odd texts from costing quadratic time.
const LOOK_BACK = 40;
const TOKEN = /\\([!-/:-@[-`{-~])|(`+)|!?\[|<(https?:\/\/[^\s<>]{1,2000})>|(https?:\/\/[^\s<>]{1,2000})|(\*+|_+|~~)|\n/y;
const PLAIN = /[^\\`![<h*_~\n]+|./suy;

/** The nodes of a text without block structure. */
export function inline(text) {
  return emphasise(tokens(text));
}

function tokens(text) {
  const found = [];
  const unclosed = new Set();
  let at = 0;
  while (at < text.length) {
    TOKEN.lastIndex = at;
    const match = TOKEN.exec(text);
    const [node, next] = match ? token(text, at, match, unclosed) : plain(text, at);
    found.push(node);
    at = next;
  }
  return found;
}

function plain(text, at) {
  PLAIN.lastIndex = at;
  const [piece] = PLAIN.exec(text);
  return [piece, at + piece.length];
}

function token(text, at, match, unclosed) {
  const [whole, escaped, ticks, bracketed, bare, mark] = match;
  const end = at + whole.length;
  if (escaped) return [escaped, end];
  if (whole === "\n") return [h("br"), end];
  if (ticks) return code(text, end, ticks, unclosed);
  if (bracketed) return [link(bracketed, [bracketed]), end];
  if (bare) return bareLink(text, at, bare);
  if (mark) return [delimiter(text, at, mark), end];
  return bracket(text, at, whole);
}

function code(text, start, ticks, unclosed) {
  if (!unclosed.has(ticks.length)) {
    const close = new RegExp(`(?<!\`)\`{${ticks.length}}(?!\`)`, "g");
    close.lastIndex = start;
    const match = close.exec(text);
    if (match) {
      const inner = text.slice(start, match.index).replaceAll("\n", " ");
      const padded = inner.length > 2 && inner.startsWith(" ") && inner.endsWith(" ") && inner.trim() !== "";
      return [h("code", {}, padded ? inner.slice(1, -1) : inner), match.index + ticks.length];
    }
    unclosed.add(ticks.length);
  }
  return [ticks, start];
}

function bareLink(text, at, bare) {
  // Inside a word it is no address, and closing marks are not part of it.
  if (at > 0 && /\w/.test(text[at - 1])) return [bare, at + bare.length];
  let address = bare.replace(/[*_~.,:;!?'"]+$/, "");
  if (address.endsWith(")") && !address.includes("(")) address = address.replace(/\)+[.,]*$/, "");
  return [link(address, [address]), at + address.length];
}

/** `[label](address "title")`; a picture is only linked, so that nothing is fetched. */
function bracket(text, at, opening) {
  const match = /^!?\[((?:[^[\]\\\n]|\\.|\[[^[\]\n]{0,200}\]){0,1000})\]\(\s*<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s+"[^"\n]*")?\s*\)/.exec(text.slice(at, at + 4000));
  if (!match) return [opening, at + opening.length];
  const [whole, label, address] = match;
  const content = opening === "![" ? [label || "Picture"] : emphasise(tokens(label).filter((node) => node.tagName !== "A"));
  return [link(address, content), at + whole.length];
}

function link(address, content) {
  let url = null;
  try {
    url = new URL(address);
  } catch {
    // Not a full address.
  }
  if (url === null || (url.protocol !== "https:" && url.protocol !== "http:")) return h("span", {}, ...content);
  return h("a", { href: url.href, rel: "noopener noreferrer", target: "_blank" }, ...content);
}

function delimiter(text, at, mark) {
  const before = at === 0 ? " " : text[at - 1];
  const after = text[at + mark.length] ?? " ";
  const word = /[\p{L}\p{N}]/u;
  const inWord = mark[0] === "_" && word.test(before) && word.test(after);
  return { mark: mark[0], count: mark.length, opens: !inWord && !/\s/.test(after), closes: !inWord && !/\s/.test(before) };
}

const isMark = (token) => typeof token === "object" && "mark" in token;

/** Pairs the marks; what finds no partner is text. */
function emphasise(list) {
  const out = [];
  for (const token of list) {
    if (isMark(token) && token.closes) closeWith(out, token);
    if (!isMark(token) || token.count > 0) out.push(token);
  }
  return out.map((token) => (isMark(token) ? token.mark.repeat(token.count) : token));
}

function closeWith(out, closer) {
  let looked = 0;
  for (let at = out.length - 1; at >= 0 && closer.count > 0 && looked < LOOK_BACK; at -= 1) {
    const opener = out[at];
    if (!isMark(opener)) continue;
    looked += 1;
    if (!opener.opens || opener.mark !== closer.mark || at === out.length - 1) continue;
    const strong = opener.count >= 2 && closer.count >= 2;
    if (opener.mark === "~" && !strong) continue;
    const used = strong ? 2 : 1;
    const inner = out.splice(at + 1).map((token) => (isMark(token) ? token.mark.repeat(token.count) : token));
    const tag = opener.mark === "~" ? "s" : strong ? "strong" : "em";
    out.push(h(tag, {}, ...inner));
    opener.count -= used;
    closer.count -= used;
    if (opener.count === 0) out.splice(at, 1);
    else at += 1;
  }
}
