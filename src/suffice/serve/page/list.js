// The list of conversations: open, find, rename and delete one.

import { iconButton } from "./controls.js";
import { byId, element } from "./format.js";

const STEPS = { ArrowDown: 1, ArrowUp: -1 };

export class List {
  // `does` has what the list does: `open(conversation)`, `rename(conversation, title)` and
  // `remove(conversation)`.
  constructor(does) {
    this.does = does;
    this.items = byId("conversations");
    this.all = [];
    byId("find").addEventListener("input", () => this.draw());
    this.items.addEventListener("keydown", (event) => this.key(event));
    byId("delete-form").addEventListener("submit", (event) => {
      event.preventDefault();
      byId("delete-dialog").close();
      this.does.remove(this.removed);
    });
    byId("delete-cancel").addEventListener("click", () => byId("delete-dialog").close());
  }

  // Show conversations, the newest first. `open` is the one that is shown, `busy` the ids of those
  // that are being answered.
  show(all, open, busy) {
    Object.assign(this, { all, open, busy });
    this.draw();
  }

  draw() {
    if (this.items.querySelector("input")) return;  // one is being renamed
    const word = byId("find").value.trim().toLowerCase();
    const found = word ? this.all.filter((each) => each.has(word)) : this.all;
    const focused = this.items.contains(document.activeElement) && document.activeElement.closest("li").dataset.id;
    this.items.replaceChildren(...found.map((each) => this.item(each)));
    if (!this.items.querySelector('[tabindex="0"]')) this.items.querySelector(".open")?.setAttribute("tabindex", "0");
    if (focused) this.focus(focused);
    byId("find").hidden = !this.all.length;
    byId("none").hidden = found.length > 0 || !word;
  }

  item(conversation) {
    const { id, name } = conversation;
    const current = id === this.open.id;
    const open = element("button", { type: "button", class: "open", tabindex: current ? "0" : "-1", title: name }, name);
    if (current) open.setAttribute("aria-current", "true");
    open.addEventListener("click", () => this.does.open(conversation));
    const rename = iconButton("edit", `Rename ${name}`, () => this.rename(conversation));
    const remove = iconButton("delete", `Delete ${name}`, () => this.remove(conversation));
    const made = element("li", { "data-id": id, ...(current && { class: "current" }) }, open, rename, remove);
    made.classList.toggle("busy", this.busy.has(id));
    for (const each of [rename, remove]) each.tabIndex = current ? 0 : -1;
    return made;
  }

  at(id) {
    return this.items.querySelector(`[data-id="${id}"]`);
  }

  focus(id) {
    (this.at(id) ?? this.items.firstChild)?.querySelector(".open")?.focus();
  }

  key(event) {
    const item = event.target.closest("li");
    const step = STEPS[event.key];
    const conversation = this.all.find(({ id }) => id === item.dataset.id);
    if (event.target.localName === "input") return;
    if (step) (step > 0 ? item.nextSibling : item.previousSibling)?.querySelector(".open").focus();
    else if (event.key === "F2") this.rename(conversation);
    else if (event.key === "Delete") this.remove(conversation);
    else return;
    event.preventDefault();
  }

  rename(conversation) {
    const item = this.at(conversation.id);
    const field = element("input", { "aria-label": "Name of the conversation" });
    field.value = conversation.name;
    let ended = false;
    const end = (keep) => {
      if (ended) return;
      ended = true;  // a field that goes loses the focus, which ends it, too
      field.remove();
      if (keep && field.value.trim()) this.does.rename(conversation, field.value.trim());
      this.draw();
    };
    field.addEventListener("blur", () => end(true));
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      end(event.key === "Enter");
      this.focus(conversation.id);
    });
    item.replaceChildren(field);
    field.select();
  }

  remove(conversation) {
    this.removed = conversation;
    byId("delete-what").textContent = conversation.name;
    byId("delete-dialog").showModal();
  }
}
