// The conversation that is shown: what is said, answered, edited and chosen among.

import { Answer, said } from "./answer.js";
import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { save } from "./export.js";
import { byId, place } from "./format.js";
import { frame } from "./frames.js";
import { Kept } from "./kept.js";
import { List } from "./list.js";
import { Message } from "./message.js";
import { Models } from "./models.js";
import { Settings } from "./settings.js";
import { Speaker } from "./speaker.js";

const SAVE_MILLISECONDS = 2000;  // between two times that an answer is kept while it grows

export class Chat {
  // `refused` is called with each error; it asks for a key if that is what is missing. `opened` is
  // called when another conversation is shown, `chosen` when another model is, or when it is loaded.
  constructor(refused, opened, chosen) {
    this.refused = refused;
    this.opened = opened;
    this.about = null;
    this.all = [];  // conversations, the newest first
    this.shown = new Conversation();
    this.messages = [];  // of the path that is shown
    this.answers = new Map();  // those that are being given, by their conversations' ids
    this.settings = new Settings();
    this.chosen = chosen;
    this.models = new Models(chosen);
    this.composer = new Composer((text, files) => this.say(text, files));
    this.list = new List({
      open: (conversation) => this.open(conversation),
      rename: (conversation, title) => this.rename(conversation, title),
      remove: (conversation) => this.remove(conversation),
    });
    this.kept = new Kept((line) => this.tell(line), (id, found) => this.replace(id, found));
    this.listen();
    this.show();
  }

  listen() {
    byId("stop").addEventListener("click", () => this.stop());
    byId("new").addEventListener("click", () => this.fresh());
    byId("export").addEventListener("click", () => this.export());
    for (const each of document.querySelectorAll(".examples button")) {
      each.addEventListener("click", () => this.say(each.textContent));
    }
  }

  // Show the conversation that was shown last, if the browser kept it.
  async begin() {
    this.all = [...this.all, ...await this.kept.all()];
    const last = this.all.find(({ id }) => `#${id}` === location.hash);
    if (last && !this.shown.nodes.length) this.open(last);
    else this.update();
  }

  // Take what the server says of the model that is chosen.
  know(about) {
    this.about = about;
    this.settings.know(about);
  }

  tell(line) {
    byId("unkept").textContent = line;
    byId("unkept").hidden = false;
  }

  get running() {
    return this.answers.get(this.shown.id);
  }

  open(conversation) {
    this.shown = conversation;
    this.settings.fill(conversation.settings);
    this.models.choose(conversation.model);
    history.replaceState(null, "", `#${conversation.id}`);
    this.show();
    this.down();
    this.opened();
    this.composer.focus();
  }

  // Begin a conversation, with the settings of the one before it.
  fresh() {
    this.shown = new Conversation();
    history.replaceState(null, "", location.pathname + location.search);
    this.show();
    this.opened();
    this.composer.focus();
  }

  rename(conversation, title) {
    conversation.title = title;
    this.keep(conversation);
  }

  remove(conversation) {
    this.all = this.all.filter((each) => each !== conversation);
    this.answers.get(conversation.id)?.stop();
    this.kept.remove(conversation);
    if (this.shown === conversation) this.fresh();
    else this.update();
  }

  // Take what another tab has made of a conversation; `found` is undefined if it is gone.
  replace(id, found) {
    if (this.answers.has(id) || byId("messages").querySelector("form")) return;
    const others = this.all.filter((each) => each.id !== id);
    this.all = found ? [found, ...others].sort((a, b) => b.changed - a.changed) : others;
    if (this.shown.id !== id) {
      this.update();
    } else {
      this.shown = found ?? new Conversation();
      this.follow(() => this.show());
    }
  }

  // Keep a conversation; it becomes the newest if something was said.
  keep(conversation, spoken = false) {
    if (spoken) {
      conversation.changed = Date.now();
      this.all = [conversation, ...this.all.filter((each) => each !== conversation)];
    }
    this.kept.save(conversation);
    this.update();
  }

  say(content, files = []) {
    if (this.running || !this.settings.sound) return;
    const { last } = this.shown;
    const asked = last?.role === "user" ? last : null;  // and had no answer
    const before = asked?.files ?? [];
    const same = asked?.content === content && before.length === files.length
      && files.every((file, at) => file === before[at]);
    this.composer.fill("");
    this.answer(same ? asked : this.ask(asked ? asked.parent : this.shown.leaf, content, files));
  }

  ask(parent, content, files) {
    return this.shown.add(parent, { role: "user", content, ...(files?.length && { files }) });
  }

  stop() {
    this.running?.stop();
  }

  // Put another message in the place of one: a question is answered, an answer stays as it is.
  edit(node, content) {
    if (this.running || !this.settings.sound) return;
    if (node.role === "user") {
      this.answer(this.ask(node.parent, content, node.files));
    } else {
      this.shown.add(node.parent, { role: node.role, content });
      this.keep(this.shown, true);
      this.show();
    }
  }

  choose(node, says) {
    if (this.running) return;
    this.shown.show(node);
    this.keep(this.shown);
    this.show();
    const { item } = this.messages.find((each) => each.node === node);
    const [first, second] = item.querySelectorAll(".acts button[aria-label$=version]:not(:disabled)");
    (second?.ariaLabel === says ? second : first).focus();
  }

  async answer(question) {
    if (this.running || !this.settings.sound) return;
    const conversation = this.shown;
    const { chosen: model, loading } = this.models;
    const { system, fields } = this.settings;
    const messages = [...(system ? [{ role: "system", content: system }] : []), ...conversation.messages(question)];
    delete question.error;
    const spoken = new Speaker();
    let saved = Date.now();
    const draw = frame(() => this.draw(answer, spoken, loading));
    const answer = new Answer(conversation.add(question.id, { role: "assistant", model }), () => {
      draw();
      if (Date.now() - saved < SAVE_MILLISECONDS || !this.all.includes(conversation)) return;
      saved = Date.now();
      this.kept.save(conversation);
    });
    this.answers.set(conversation.id, answer);
    Object.assign(conversation, { model, settings: this.settings.kept });
    this.keep(conversation, true);
    history.replaceState(null, "", `#${conversation.id}`);
    this.show(question);
    draw();
    this.down();
    this.composer.focus();
    const error = await answer.run({ ...(model && { model }), messages, ...fields });
    this.finish(conversation, answer.node, error);
    if (this.shown === conversation) spoken.end(error?.message ?? answer.node.content);
  }

  // Show what has come of an answer, if its conversation is the one that is shown.
  draw({ node }, spoken, loading) {
    const message = this.messages.at(-1);
    if (message?.node !== node || this.running?.node !== node) return;
    this.follow(() => message.show({ running: true, loading }));
    spoken.hear(node);
  }

  finish(conversation, node, error) {
    this.answers.delete(conversation.id);
    const question = conversation.node(node.parent);
    if (error) (said(node) ? node : question).error = error.message;
    if (!said(node)) {  // the question may be asked again
      conversation.drop(node);
      if (conversation === this.shown && this.composer.empty) this.composer.fill(question.content, question.files);
    }
    if (this.all.includes(conversation)) this.keep(conversation, true);
    if (conversation === this.shown) this.follow(() => this.show(node, question));
    if (error) this.refused(error);
    if (node.model) this.models.know().then(this.chosen, this.refused);
  }

  // Show the path of the conversation, with what the `touched` messages are now.
  show(...touched) {
    const { shown, messages: old } = this;
    this.messages = shown.path.map((node) => {
      const siblings = shown.siblings(node);
      return old.find((each) => each.node === node && each.versions === siblings.length)
        ?? new Message(node, siblings, {
          edit: (text) => this.edit(node, text),
          again: () => this.answer(node.role === "user" ? node : shown.node(node.parent)),
          show: (other, says) => this.choose(other, says),
        });
    });
    for (const message of this.messages) {
      if (old.includes(message) && !touched.includes(message.node)) continue;
      message.show({ running: this.running?.node === message.node, many: this.about?.attentions.length > 1 });
    }
    place(byId("messages"), this.messages.map(({ item }) => item));
    this.update();
  }

  down() {
    byId("scroller").scrollTop = byId("scroller").scrollHeight;
  }

  // Do something that changes messages; if the end was seen before, it is seen then.
  follow(work) {
    const { scrollHeight, scrollTop, clientHeight } = byId("scroller");
    work();
    if (scrollHeight - scrollTop - clientHeight < 40) this.down();
  }

  update() {
    const busy = Boolean(this.running);
    const begun = this.messages.length > 0;
    byId("chat-title").textContent = this.shown.name;
    byId("welcome").hidden = begun;
    byId("send").hidden = busy;
    byId("stop").hidden = !busy;
    byId("messages").classList.toggle("busy", busy);
    byId("export").disabled = busy || !begun;
    this.list.show(this.all, this.shown, this.answers);
  }

  export() {
    const { model, version } = this.about ?? {};
    save(this.shown, {
      model: this.models.chosen ?? model,
      version,
      system: this.settings.system || undefined,
      settings: this.settings.fields,
    });
  }
}
