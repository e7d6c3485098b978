// A block of code: its language, a button that copies it, and colours by highlight.js, which is
// loaded with the first block, a language with the first block in it.

import { copyButton } from "./controls.js";
import { element } from "./format.js";

const MOST = 50_000;  // characters of a block that is coloured
const LANGUAGES = {  // of lib/languages, and how else they are called
  bash: "sh shell zsh console",
  cpp: "c c++ cc h hpp cxx cuda",
  csharp: "cs c#",
  diff: "patch",
  dockerfile: "docker",
  go: "golang",
  ini: "toml",
  java: "",
  json: "jsonc json5 jsonl",
  kotlin: "kt",
  makefile: "make mk",
  markdown: "md",
  python: "py python3 pycon",
  rust: "rs",
  sql: "sqlite mysql postgresql",
  typescript: "ts tsx javascript js jsx mjs",
  xml: "html svg xhtml vue",
  yaml: "yml",
};
export const NAMES = new Map(Object.entries(LANGUAGES).flatMap(([file, others]) => (
  [file, ...others.split(" ")].map((name) => [name, file])
)));
const loaded = new Map();  // language: a promise of highlight.js, which knows it then

// Return highlight.js, which knows a language then, or null if the server does not send it.
export async function knowing(language) {
  if (!loaded.has(language)) loaded.set(language, loading(language));
  return loaded.get(language).catch(() => {
    loaded.delete(language);
    return null;
  });
}

async function loading(language) {
  const [{ default: highlight }, { default: grammar }] = await Promise.all([
    import("./lib/highlight.js"), import(`./lib/languages/${language}.js`),
  ]);
  highlight.configure({ __emitter: Scopes });
  highlight.registerLanguage(language, grammar);
  return highlight;
}

// Takes what highlight.js finds as elements, where its own emitter writes markup.
class Scopes {
  constructor() {
    this.root = document.createDocumentFragment();
    this.open = [this.root];
  }

  addText(text) {
    if (text) this.open.at(-1).append(text);
  }

  startScope(name) {
    this.openNode(name);
  }

  endScope() {
    this.closeNode();
  }

  openNode(name) {
    const made = element("span", { class: `of-${name.split(".")[0]}` });
    this.open.at(-1).append(made);
    this.open.push(made);
  }

  closeNode() {
    this.open.pop();
  }

  __addSublanguage({ root }) {
    this.open.at(-1).append(root);
  }

  finalize() {}

  toHTML() {
    return "";
  }
}

export class CodeBlock {
  // `token` is marked's.
  constructor(token) {
    const named = token.lang?.trim().split(/\s/)[0] ?? "";
    this.lang = token.lang;
    this.language = NAMES.get(named.toLowerCase());
    this.code = element("code");
    this.text = "";
    const head = element("div", { class: "head" }, element("span", {}, named || "code"), copyButton(() => this.text));
    const pre = element("pre", { tabindex: "0", role: "group", "aria-label": `Code ${named}`.trim() }, this.code);
    this.box = element("div", { class: "block" }, head, pre);
    this.fill(token);
  }

  // Show a token's text; return whether this can be its block.
  fill({ lang, text }) {
    if (lang !== this.lang) return false;
    if (text === this.text) return true;
    this.text = text;
    const coloured = this.language && text.length <= MOST;
    if (!coloured || !this.highlight) this.code.textContent = text;
    if (coloured) this.paint();
    return true;
  }

  async paint() {
    this.highlight ??= await knowing(this.language);
    if (!this.highlight || this.text.length > MOST) return;
    const { _emitter: found } = this.highlight.highlight(this.text, { language: this.language });
    this.code.replaceChildren(found.root);
  }
}
