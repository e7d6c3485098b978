// A message on the page: its files, thinking, text, calls, what it cost, and what can be done with it.

import { CodeBlock } from "./code.js";
import { copyButton, iconButton } from "./controls.js";
import { costs } from "./cost.js";
import { bytes, count, duration, element } from "./format.js";
import { Markdown } from "./markdown.js";

export class Message {
  // `does` has what its buttons do: `edit(text)`, `again()` and `show(node)`.
  constructor(node, siblings, does) {
    this.node = node;
    this.does = does;
    this.versions = siblings.length;
    const user = node.role === "user";
    const who = element("span", { class: "unseen" }, user ? "You: " : "Answer: ");
    this.text = user ? null : new Markdown();
    this.body = this.text?.box ?? element("div", { class: "body" });
    this.under = element("div", { class: "under" });
    const files = (node.files ?? []).map(file);
    this.item = element("li", { class: `message ${node.role}` }, who, ...files, this.body, this.under);
    this.actions = actions(this, siblings);
    this.item.append(this.actions);
  }

  // Show what the message is now. `loading` is the name of a model that is not loaded yet; `many`
  // is of `costs`.
  show({ running = false, loading = "", many } = {}) {
    const { node } = this;
    this.item.classList.toggle("running", running);
    if (this.text) {
      this.item.setAttribute("aria-busy", String(running));
      if (node.reasoning) this.think(running && !node.content && !node.calls);
      this.text.show(node.content);
      if (node.calls) this.call(running);
    } else {
      this.body.textContent = node.content;
    }
    const line = running ? waiting(node, loading) : "";
    const cost = running ? [] : costs({ ...node, many });
    this.under.replaceChildren(
      ...(line ? [element("p", { class: "reading" }, line)] : []),
      ...(cost.length ? [element("div", { class: "cost" }, ...cost)] : []),
      ...(node.error ? [element("p", { class: "error", role: "alert" }, node.error)] : []),
    );
  }

  // Show the thinking: open while it goes on, unless the user has closed it.
  think(goesOn) {
    if (!this.thinking) {
      this.thinking = folded("thinking");
      this.thought = new Markdown();
      this.thought.box.className = "thought";
      this.thought.box.tabIndex = 0;
      this.thinking.append(this.thought.box);
      this.body.before(this.thinking);
      this.thinking.open = goesOn;
    }
    const { thoughtSeconds: seconds, reasoning } = this.node;
    this.thinking.firstChild.textContent = goesOn
      ? "Thinking"
      : `Thought for ${seconds >= 1 ? duration(seconds) : "a moment"}`;
    this.thinking.classList.toggle("on", goesOn);
    this.thought.show(reasoning);
    if (goesOn) this.thought.box.scrollTop = this.thought.box.scrollHeight;
    else if (this.thinks) this.thinking.open = false;
    this.thinks = goesOn;
  }

  // Show the calls of tools, as their arguments grow.
  call(running) {
    this.calls ??= [];
    this.node.calls.forEach((call, at) => {
      this.calls[at] ??= this.fresh(call);
      this.calls[at].fill({ lang: "json", text: running ? call.arguments : indented(call.arguments) });
    });
  }

  fresh({ name }) {
    const made = folded("call");
    made.open = true;
    made.firstChild.append("Call of ", element("code", {}, name));
    const given = new CodeBlock({ lang: "json", text: "" });
    made.append(given.box);
    this.under.before(made);
    return given;
  }

  // Put a field with the text in the place of the message.
  edit() {
    if (this.form) return;
    const field = element("textarea", { "aria-label": "Edit the message", rows: "3" });
    const cancel = element("button", { type: "button" }, "Cancel");
    const send = element("button", { class: "primary", type: "submit" }, this.text ? "Keep" : "Send");
    this.form = element("form", { class: "edit" }, field, element("div", { class: "actions" }, cancel, send));
    field.value = this.node.content;
    const end = () => {
      this.form.remove();
      this.form = null;
      this.item.classList.remove("edited");
      this.actions.querySelector(".edits")?.focus();
    };
    cancel.addEventListener("click", end);
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (field.value.trim()) this.does.edit(field.value.trim());
    });
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") end();
      else if (event.key !== "Enter" || event.shiftKey || event.isComposing || this.text) return;
      else this.form.requestSubmit();
      event.preventDefault();
      event.stopPropagation();
    });
    this.body.before(this.form);
    this.item.classList.add("edited");
    field.style.height = `${Math.min(field.scrollHeight + 2, 400)}px`;
    field.focus();
  }

}

function actions(message, siblings) {
  const { node, does } = message;
  const edit = iconButton("edit", "Edit", () => message.edit());
  edit.classList.add("edits");
  const made = element("div", { class: "acts" }, copyButton(() => node.content), edit);
  made.append(iconButton("again", node.role === "user" ? "Answer" : "Answer again", () => does.again()));
  if (siblings.length > 1) made.append(...versions(node, siblings, does));
  return made;
}

function versions(node, siblings, does) {
  const at = siblings.indexOf(node);
  const step = (name, says, to) => {
    const made = iconButton(name, says, () => does.show(siblings[to], says));
    made.disabled = !siblings[to];
    return made;
  };
  return [
    step("left", "Previous version", at - 1),
    element("span", { class: "version" }, `${at + 1}/${siblings.length}`),
    step("right", "Next version", at + 1),
  ];
}

function folded(name) {
  return element("details", { class: `fold ${name}` }, element("summary"));
}

function file({ name, text }) {
  const made = folded("file");
  made.firstChild.append(`${name}, ${bytes(new Blob([text]).size)}`);
  made.append(element("pre", { tabindex: "0", role: "group", "aria-label": name }, text));
  return made;
}

// What an answer waits for, before its first token.
function waiting({ content, reasoning, calls, progress }, loading) {
  if (content || reasoning || calls) return "";
  if (progress && progress.processed < progress.total) {
    return `reading ${count(progress.processed)} of ${count(progress.total)} tokens`;
  }
  return loading && !progress ? `waiting for ${loading} to be loaded` : "";
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;  // cut off
  }
}
