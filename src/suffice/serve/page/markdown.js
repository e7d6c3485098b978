// Markdown as elements. marked tells its parts; whatever they say becomes text, never markup, and
// nothing of it loads or leads anywhere.

import { CodeBlock } from "./code.js";
import { element, place } from "./format.js";
import { lexer } from "./lib/marked.js";

const DEEPEST = 24;  // of parts in parts; what is deeper is shown as it was written
const FIRST_HEADING = 3;  // under those of the page
const ENTITY = /&(?:#(\d{1,7})|#x([\da-f]{1,6})|([a-z]+));/gi;
const ENTITIES = new Map(Object.entries({
  amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", deg: "°", times: "×",
  hellip: "…", mdash: "—", ndash: "–", rarr: "→", larr: "←", bull: "•", middot: "·", euro: "€",
}));

export class Markdown {
  constructor() {
    this.box = element("div", { class: "body" });
    this.shown = [];  // { raw, made } of each part
    this.links = "";
  }

  // Show a text; parts that have not changed are left alone.
  show(text) {
    const tokens = lexed(text);
    const links = JSON.stringify(tokens.links);
    if (links !== this.links) this.shown = [];  // an address at the end may be of a link before it
    this.links = links;
    const depths = [];
    const found = tokens.filter(seen).map((token, at) => {
      const level = token.type === "heading" ? under(depths, token.depth) : 0;
      return again(this.shown[at], token) ?? fresh(token, level);
    });
    place(this.box, found.map(({ made }) => made));
    this.shown = found;
  }
}

function seen({ type }) {
  return type !== "space" && type !== "def";
}

// A part that is shown and can be a token's, or null.
function again(part, token) {
  if (!part || (part.raw !== token.raw && !(token.type === "code" && part.code?.fill(token)))) return null;
  part.raw = token.raw;
  return part;
}

function fresh(token, level) {
  const code = token.type === "code" ? new CodeBlock(token) : null;
  return { raw: token.raw, code, made: code?.box ?? block(token, 0, level) };
}

function lexed(text) {
  try {
    return lexer(text);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;  // parts in parts until the stack is full
    return [{ type: "text", raw: text, text }];
  }
}

// The level of a heading: one more than that of the last higher one, however the text counts.
function under(depths, depth) {
  while (depths.length && depths.at(-1) >= depth) depths.pop();
  depths.push(depth);
  return Math.min(FIRST_HEADING + depths.length - 1, 6);
}

function block(token, depth, level = 0) {
  const inner = () => inlines(token.tokens, depth + 1);
  if (depth > DEEPEST) return element("p", {}, token.raw);
  switch (token.type) {
    case "heading":
      return element(level ? `h${level}` : "p", { class: `heading h${token.depth}` }, ...inner());
    case "paragraph":
      return element("p", {}, ...inner());
    case "text":  // of an item, or where nothing could be told
      return element("p", {}, ...(token.tokens ? inner() : [token.text]));
    case "code":
      return new CodeBlock(token).box;
    case "blockquote":
      return element("blockquote", {}, ...blocks(token.tokens, depth + 1));
    case "list":
      return list(token, depth);
    case "table":
      return table(token, depth);
    case "hr":
      return element("hr");
    default:
      return element("p", {}, token.raw.replace(/\n+$/, ""));
  }
}

function blocks(tokens, depth) {
  return tokens.filter(seen).map((each) => block(each, depth));
}

function list({ ordered, start, items, loose }, depth) {
  const made = element(ordered ? "ol" : "ul", loose ? { class: "loose" } : {});
  if (ordered && start !== 1) made.setAttribute("start", start);
  for (const { tokens, task, checked } of items) {
    const inner = blocks(tokens.filter(({ type }) => type !== "checkbox"), depth + 1);
    made.append(element("li", task ? { class: "task" } : {}, ...(task ? [box(checked)] : []), ...inner));
  }
  return made;
}

function box(checked) {
  return element("span", { class: "tick", role: "img", "aria-label": checked ? "done" : "to do" }, checked ? "☑" : "☐");
}

function table({ header, rows }, depth) {
  const cells = (name, row) => element("tr", {}, ...row.map(({ tokens, align }) => (
    element(name, align ? { class: align } : {}, ...inlines(tokens, depth + 1))
  )));
  const head = element("thead", {}, cells("th", header));
  const body = element("tbody", {}, ...rows.map((row) => cells("td", row)));
  return element("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Table" }, element("table", {}, head, body));
}

function inlines(tokens, depth) {
  return tokens.map((each) => inline(each, depth));
}

function inline(token, depth) {
  if (depth > DEEPEST) return token.raw;
  const inner = () => inlines(token.tokens, depth + 1);
  switch (token.type) {
    case "text":
      return token.tokens ? element("span", {}, ...inner()) : decoded(token.text);
    case "escape":
      return token.text;
    case "strong":
    case "em":
    case "del":
      return element(token.type, {}, ...inner());
    case "codespan":
      return element("code", {}, token.text);
    case "br":
      return element("br");
    case "link":
      return link(inner(), token);
    case "image":
      return link([`Image: ${token.text}`], token);
    default:
      return token.raw;
  }
}

// A link leads nowhere: its address stands after its text, to be read and copied.
function link(inner, { href, text, autolink }) {
  const shown = element("span", { class: "link" }, ...inner);
  if (autolink || text === href) return shown;
  return element("span", {}, shown, " ", element("span", { class: "address" }, `(${href})`));
}

function decoded(text) {
  return text.replace(ENTITY, (whole, decimal, hex, name) => {
    const code = decimal ? Number(decimal) : parseInt(hex, 16);
    if (name) return ENTITIES.get(name) ?? whole;
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : whole;
  });
}
