// Markdown as DOM nodes, redrawn block by block while a text grows.
// Markup in the text is never markup of the page: HTML stays text, pictures become links.

import { h } from "./dom.js";
import { inline } from "./inline.js";
import { codeBlock } from "./highlight.js";

const DEPTH = 12;
// No pattern may try two ways over the same run of spaces: a text could then hold up the page.
const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s(.*)$/;
const RULE = /^ {0,3}([-*_])( *\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( +|$)/;
const DELIMITERS = /^\|?:?-+:?(\|:?-+:?)*\|?$/;

/** Shows a text that may grow; blocks that did not change keep their nodes. */
export class Markdown {
  #blocks = [];

  constructor(node) {
    this.node = node;
    node.classList.add("prose");
  }

  show(text) {
    const blocks = split(text.replaceAll("\r\n", "\n").split("\n"));
    let same = 0;
    while (same < blocks.length && same < this.#blocks.length && equal(blocks[same], this.#blocks[same])) same += 1;
    while (this.node.childNodes.length > same) this.node.lastChild.remove();
    for (const block of blocks.slice(same)) this.node.append(draw(block, 0));
    this.#blocks = blocks;
  }
}

function equal(one, other) {
  return one.kind === other.kind && one.text === other.text && one.label === other.label && one.start === other.start;
}

/** Cuts lines into blocks: kind, text, and what the kind needs beside. */
function split(lines) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (lines[at].trim() === "") {
      at += 1;
      continue;
    }
    const [block, next] = take(lines, at);
    blocks.push(block);
    at = next;
  }
  return blocks;
}

function take(lines, at) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return takeFence(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return [{ kind: "heading", text: headingText(heading[2]), label: heading[1].length }, at + 1];
  if (RULE.test(line)) return [{ kind: "rule", text: "" }, at + 1];
  if (QUOTE.test(line)) return takeQuote(lines, at);
  if (ITEM.test(line)) return takeList(lines, at);
  if (isTable(lines, at)) return takeTable(lines, at);
  return takeParagraph(lines, at);
}

/** Marks that close a heading are not part of it. */
function headingText(text) {
  const words = text.trim();
  let end = words.length;
  while (end > 0 && words[end - 1] === "#") end -= 1;
  return end === 0 || words[end - 1] === " " ? words.slice(0, end).trim() : words;
}

function isTable(lines, at) {
  const rule = lines[at + 1];
  return lines[at].includes("|") && rule !== undefined && rule.includes("-") && DELIMITERS.test(rule.replaceAll(/\s/g, ""))
    && cells(lines[at]).length === cells(rule).length;
}

function takeFence(lines, at, [, mark, label]) {
  let end = at + 1;
  const closes = (line) => line.trim().startsWith(mark) && line.trim().replaceAll(mark[0], "") === "";
  while (end < lines.length && !closes(lines[end])) end += 1;
  return [{ kind: "code", text: lines.slice(at + 1, end).join("\n"), label: label.trim().split(/\s/)[0] }, end + 1];
}

function takeQuote(lines, at) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  return [{ kind: "quote", text: lines.slice(at, end).map((line) => line.replace(QUOTE, "")).join("\n") }, end];
}

/** A list goes on over indented lines, and over blank ones before more of it. */
function takeList(lines, at) {
  const ordered = /\d/.test(ITEM.exec(lines[at])[2]);
  const goesOn = (line) => {
    const item = ITEM.exec(line);
    return /^ {2,}\S/.test(line) || (item !== null && !RULE.test(line) && /\d/.test(item[2]) === ordered);
  };
  let end = at + 1;
  while (end < lines.length) {
    if (lines[end].trim() === "") {
      if (end + 1 >= lines.length || !goesOn(lines[end + 1])) break;
    } else if (!goesOn(lines[end]) && (lines[end - 1].trim() === "" || startsBlock(lines, end))) break;
    end += 1;
  }
  const start = ordered ? Number.parseInt(ITEM.exec(lines[at])[2], 10) : null;
  return [{ kind: ordered ? "ordered" : "bullets", text: lines.slice(at, end).join("\n"), start }, end];
}

function takeTable(lines, at) {
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim() !== "") end += 1;
  return [{ kind: "table", text: lines.slice(at, end).join("\n") }, end];
}

function startsBlock(lines, at) {
  const line = lines[at];
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line) || isTable(lines, at);
}

function takeParagraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() !== "" && !startsBlock(lines, end)) end += 1;
  return [{ kind: "paragraph", text: lines.slice(at, end).map((line) => line.trimStart()).join("\n") }, end];
}

function draw(block, depth) {
  // Text nested deeper than a reader could follow is shown as it is.
  if (depth > DEPTH) return h("p", {}, block.text);
  const inner = (text) => split(text.split("\n")).map((child) => draw(child, depth + 1));
  switch (block.kind) {
    case "code": return codeBlock(block.text, block.label);
    // The page's own headings are levels 1 and 2.
    case "heading": return h(`h${Math.min(block.label + 2, 6)}`, { class: `size-${block.label}` }, inline(block.text));
    case "rule": return h("hr");
    case "quote": return h("blockquote", {}, inner(block.text));
    case "bullets": return h("ul", {}, items(block.text, depth));
    case "ordered": return h("ol", { start: block.start }, items(block.text, depth));
    case "table": return table(block.text);
    default: return h("p", {}, inline(block.text));
  }
}

function items(text, depth) {
  const found = [];
  let indent = 0;
  for (const line of text.split("\n")) {
    const item = ITEM.exec(line);
    const nested = found.length > 0 && item !== null && item[1].length >= indent;
    if (item && !nested) {
      indent = Math.min(item[0].length, item[1].length + item[2].length + 1);
      found.push([line.slice(item[0].length)]);
    } else {
      found.at(-1).push(line.slice(Math.min(indent, line.length - line.trimStart().length)));
    }
  }
  return found.map((lines) => drawItem(lines, depth));
}

function drawItem(lines, depth) {
  const ticked = /^\[([ xX])\]\s+/.exec(lines[0]);
  if (ticked) lines[0] = lines[0].slice(ticked[0].length);
  const blocks = split(lines);
  const tight = !lines.slice(0, -1).some((line) => line.trim() === "");
  const nodes = blocks.map((block) => (tight && block.kind === "paragraph" ? inline(block.text) : draw(block, depth + 1)));
  const box = ticked && h("input", { type: "checkbox", disabled: true, checked: ticked[1] !== " ", "aria-label": "Done" });
  return h("li", { class: ticked ? "tick" : null }, box, nodes);
}

function cells(line) {
  const trimmed = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  return trimmed.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function table(text) {
  const [head, rule, ...rows] = text.split("\n").map(cells);
  const sides = rule.map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "middle" : "right") : null));
  const row = (tag, values) => h("tr", {}, sides.map((side, at) => h(tag, { class: side, scope: tag === "th" ? "col" : null }, inline(values[at] ?? ""))));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table" },
    h("table", {}, h("thead", {}, row("th", head)), h("tbody", {}, rows.map((values) => row("td", values)))));
}
