// A conversation: a tree of messages, of which one path is shown.

const LONGEST_NAME = 80;

export class Conversation {
  // `kept` is what `kept.js` has of one; without it the conversation is new.
  constructor(kept = {}) {
    this.id = Date.now().toString(36) + Math.random().toString(36).slice(2, 10);
    this.title = null;  // what the user calls it
    this.changed = 0;  // milliseconds since 1970
    this.settings = {};  // its fields, by their ids
    this.nodes = [];  // { id, parent, role, content, ... }; parents come first
    this.leaf = null;  // the id of the last message that is shown
    Object.assign(this, kept);
  }

  get name() {
    const said = this.nodes[0];
    const line = said?.content.trim().split("\n")[0] || said?.files?.[0].name;
    return this.title ?? line?.slice(0, LONGEST_NAME) ?? "New conversation";
  }

  node(id) {
    return this.nodes.find((node) => node.id === id);
  }

  get last() {
    return this.node(this.leaf);
  }

  // The messages from the first to the last that is shown.
  get path() {
    return this.upTo(this.last);
  }

  upTo(node) {
    const found = [];
    for (let each = node; each; each = this.node(each.parent)) found.unshift(each);
    return found;
  }

  add(parent, fields) {
    const node = { id: (this.nodes.at(-1)?.id ?? 0) + 1, parent, ...fields };
    this.nodes.push(node);
    this.leaf = node.id;
    return node;
  }

  // The messages that stand in one another's place, in the order they came.
  siblings({ parent }) {
    return this.nodes.filter((node) => node.parent === parent);
  }

  // Show a message, with the newest that follows it.
  show(node) {
    for (let each = node; each; each = this.nodes.findLast(({ parent }) => parent === each.id)) {
      this.leaf = each.id;
    }
  }

  // Take back an answer that has nothing; the one before it is shown, if there is one.
  drop(node) {
    this.nodes.splice(this.nodes.indexOf(node), 1);
    this.show(this.node(node.parent));
  }

  // What a request says of the messages up to one.
  messages(node) {
    return this.upTo(node).map(({ role, content, files = [], reasoning, calls }) => ({
      role,
      content: [...files.map(fenced), content].filter(Boolean).join("\n\n"),
      ...(reasoning && { reasoning_content: reasoning }),
      ...(calls?.length && { tool_calls: calls.map(called) }),
    }));
  }

  has(word) {
    const texts = [this.name, ...this.nodes.map((node) => node.content)];
    return texts.some((text) => text.toLowerCase().includes(word));
  }
}

// A file as a block of code, whose fence is longer than any in it.
function fenced({ name, text }) {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([ticks]) => ticks.length));
  const fence = "`".repeat(longest + 1);
  return `${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
}

function called({ id, name, arguments: given }) {
  return { id, type: "function", function: { name, arguments: given } };
}
