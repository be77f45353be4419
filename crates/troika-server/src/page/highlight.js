// Code blocks: a language's words, strings, numbers and comments in colours, and a copy button.

import { h } from "./dom.js";
import { copyButton } from "./controls.js";

// Longer texts are shown plain, so that a growing block stays cheap.
const LONGEST = 40000;

const C_LIKE = {
  comment: /\/\/[^\n]*|\/\*[^]*?(?:\*\/|$)/y,
  string: /"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\[^])*`?/y,
};
const HASH = {
  comment: /#[^\n]*/y,
  string: /"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?/y,
};
const words = (text) => new Set(text.split(" "));
const SCRIPT = words("as async await break case catch class const continue default delete do else enum export extends false finally for from function if implements import in instanceof interface let new null of return static super switch this throw true try type typeof undefined var void while yield");
const SYSTEM = words("auto bool break case catch char class const constexpr continue default delete do double else enum extern false final float for func go goto if import int interface long map namespace new nil null nullptr override package private protected public range return short signed sizeof static string struct switch template this throw true try typedef typename union unsigned using var virtual void volatile while");
const LANGUAGES = {
  rust: { ...C_LIKE, string: /"(?:[^"\\]|\\[^])*"?|'(?:[^'\\\n]|\\.)'/y, words: words("as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true type unsafe use where while") },
  javascript: { ...C_LIKE, words: SCRIPT },
  c: { ...C_LIKE, words: SYSTEM },
  python: { ...HASH, words: words("and as assert async await break case class continue def del elif else except False finally for from global if import in is lambda match None nonlocal not or pass raise return self True try while with yield") },
  shell: { ...HASH, words: words("case cd do done echo elif else esac exit export fi for function if in local return set then until while") },
  sql: { comment: /--[^\n]*/y, string: /'(?:[^'])*'?/y, words: words("select from where and or not in is null insert into values update set delete create table index drop alter join left right inner outer on group by order having limit as distinct union primary key"), anyCase: true },
  json: { comment: /(?!)/y, string: /"(?:[^"\\\n]|\\.)*"?/y, words: words("true false null") },
  toml: { ...HASH, words: words("true false") },
  markup: { comment: /<!--[^]*?(?:-->|$)/y, string: /"[^"\n]*"|'[^'\n]*'/y, words: new Set(), tag: /<\/?[A-Za-z][\w:-]*|\/?>/y },
  css: { comment: /\/\*[^]*?(?:\*\/|$)/y, string: /"[^"\n]*"?|'[^'\n]*'?/y, words: new Set(), tag: /[-\w]+(?=\s*:)|@[-\w]+/y },
};
const NAMES = {
  rs: "rust", js: "javascript", ts: "javascript", jsx: "javascript", tsx: "javascript", typescript: "javascript", mjs: "javascript",
  cpp: "c", "c++": "c", h: "c", hpp: "c", cc: "c", java: "c", go: "c", cs: "c", csharp: "c", kotlin: "c", swift: "c", php: "c",
  py: "python", rb: "python", ruby: "python", sh: "shell", bash: "shell", zsh: "shell", console: "shell", makefile: "shell", dockerfile: "shell",
  yaml: "toml", yml: "toml", ini: "toml", html: "markup", xml: "markup", svg: "markup",
};
const NUMBER = /(?:0[xb][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\w*/y;
const WORD = /[A-Za-z_$][\w$]*/y;

/** A fenced block: its label, a copy button, and the code. */
export function codeBlock(text, label) {
  const name = label.toLowerCase();
  const language = LANGUAGES[Object.hasOwn(NAMES, name) ? NAMES[name] : name];
  const coloured = language && text.length <= LONGEST ? colour(text, language) : [text];
  return h("figure", { class: "code" },
    h("figcaption", {}, h("span", {}, label || "text"), copyButton(() => text, "Copy code")),
    h("pre", { tabindex: "0", role: "region", "aria-label": `Code, ${label || "text"}` }, h("code", {}, ...coloured)));
}

function colour(text, language) {
  const nodes = [];
  let plain = "";
  const flush = () => {
    if (plain !== "") nodes.push(plain);
    plain = "";
  };
  let at = 0;
  while (at < text.length) {
    const [kind, piece] = next(text, at, language);
    at += piece.length;
    if (kind === null) {
      plain += piece;
    } else {
      flush();
      nodes.push(h("span", { class: `hl-${kind}` }, piece));
    }
  }
  flush();
  return nodes;
}

function next(text, at, language) {
  const match = (pattern) => {
    pattern.lastIndex = at;
    return pattern.exec(text)?.[0] || null;
  };
  for (const kind of ["comment", "string", "tag"]) {
    const piece = language[kind] && match(language[kind]);
    if (piece) return [kind, piece];
  }
  const word = match(WORD);
  if (word) {
    if (language.words.has(language.anyCase ? word.toLowerCase() : word)) return ["word", word];
    return [text[at + word.length] === "(" ? "call" : null, word];
  }
  const number = match(NUMBER);
  return number ? ["number", number] : [null, text[at]];
}
