// The conversation: what was said, what is being said, and the fields that requests get.

import { Message } from "./answer.js";
import { byId, element } from "./format.js";
import { events } from "./server.js";

const NUMBERS = ["temperature", "top_p", "top_k", "max_tokens", "seed"];
const SENTENCE = /^[\s\S]*[.!?:\n](?=\s)/;

export class Chat {
  // `refused` is called with each error; it asks for a key if that is what is missing.
  constructor(refused) {
    this.refused = refused;
    this.about = null;
    this.entries = [];  // { role, content, message, ... }
    this.running = null;  // AbortController of the answer that is being given
    this.listen();
  }

  listen() {
    const text = byId("text");
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.say(text.value);
    });
    text.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.say(text.value);
    });
    text.addEventListener("input", () => grow(text));
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.stop();
    });
    byId("stop").addEventListener("click", () => this.stop());
    byId("regenerate").addEventListener("click", () => this.regenerate());
    byId("clear").addEventListener("click", () => this.clear());
    byId("export").addEventListener("click", () => this.export());
    for (const each of document.querySelectorAll(".examples button")) {
      each.addEventListener("click", () => this.say(each.textContent));
    }
    byId("settings-button").addEventListener("click", ({ currentTarget }) => {
      const shown = !byId("settings").toggleAttribute("hidden");
      currentTarget.setAttribute("aria-expanded", String(shown));
    });
    byId("settings").addEventListener("submit", (event) => event.preventDefault());
  }

  // Take what the server says of itself: defaults of the fields, and techniques to choose from.
  know(about) {
    this.about = about;
    for (const [name, value] of Object.entries(about.sampling)) byId(name).placeholder = value;
    const choice = byId("attention");
    const names = about.attentions;
    choice.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
    byId("attention-field").hidden = names.length < 2;
  }

  // The fields of a request that the user has set.
  fields() {
    const found = {};
    for (const name of NUMBERS) {
      const value = byId(name).value.trim();
      if (value !== "") found[name] = Number(value);
    }
    const choice = byId("attention");
    if (choice.selectedIndex > 0) found.suffice = { attention: choice.value };
    return found;
  }

  say(text) {
    if (this.running || !text.trim()) return;
    byId("text").value = "";
    grow(byId("text"));
    this.add("user", text.trim());
    this.answer();
  }

  regenerate() {
    if (this.running || this.entries.at(-1)?.role !== "assistant") return;
    this.entries.pop().message.item.remove();
    this.answer();
  }

  stop() {
    this.running?.abort();
  }

  clear() {
    if (this.running) return;
    this.entries = [];
    byId("messages").replaceChildren();
    this.update();
    byId("text").focus();
  }

  add(role, content) {
    const message = new Message(role);
    message.show(content);
    const entry = { role, content, message };
    this.entries.push(entry);
    byId("messages").append(message.item);
    this.update();
    byId("scroller").scrollTop = byId("scroller").scrollHeight;
    return entry;
  }

  async answer() {
    const fields = this.fields();
    const system = byId("system").value.trim();
    const said = this.entries.map(({ role, content }) => ({ role, content }));
    const messages = system ? [{ role: "system", content: system }, ...said] : said;
    const entry = this.add("assistant", "");
    entry.message.running(true);
    this.running = new AbortController();
    this.update();
    const began = performance.now();
    const spoken = new Speaker();
    const draw = frame(() => this.draw(entry, spoken));
    try {
      const told = { stream: true, stream_options: { include_usage: true }, return_progress: true };
      const body = { messages, ...told, ...fields };
      const options = { body, signal: this.running.signal };
      for await (const chunk of events("v1/chat/completions", options)) {
        if (chunk.error) throw new Error(chunk.error.message);
        take(entry, chunk, began);
        draw();
      }
    } catch (error) {
      if (error.name === "AbortError") entry.stopped = true;
      else this.failed(entry, error);
    }
    draw.now();
    this.finish(entry);
    spoken.end(entry.error ?? entry.content);
  }

  failed(entry, error) {
    entry.error = error.message;
    this.refused(error);
  }

  draw(entry, spoken) {
    const scroller = byId("scroller");
    const low = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 40;
    entry.message.show(entry.content);
    entry.message.read(entry.content ? null : entry.progress);
    spoken.hear(entry.content);
    if (low) scroller.scrollTop = scroller.scrollHeight;
  }

  finish(entry) {
    this.running = null;
    entry.message.running(false);
    entry.message.read(null);
    if (entry.error) entry.message.fail(entry.error);
    else entry.message.cost({ ...entry, many: this.about?.attentions.length > 1 });
    if (entry.error && !entry.content) {  // the question may be asked again
      this.entries.pop();
      const question = this.entries.pop();
      byId("text").value ||= question.content;
      grow(byId("text"));
    }
    this.update();
    byId("scroller").scrollTop = byId("scroller").scrollHeight;
  }

  update() {
    const busy = this.running !== null;
    const shown = byId("messages").children.length > 0;
    const last = this.entries.at(-1)?.role;
    byId("welcome").hidden = shown;
    byId("send").hidden = busy;
    byId("stop").hidden = !busy;
    byId("regenerate").disabled = busy || last !== "assistant";
    byId("clear").disabled = busy || !shown;
    byId("export").disabled = busy || !this.entries.length;
  }

  export() {
    const messages = this.entries.map(({ role, content, suffice, timings, stopped }) => (
      { role, content, suffice, timings, stopped }
    ));
    const system = byId("system").value.trim();
    const whole = {
      model: this.about?.model,
      version: this.about?.version,
      exported: new Date().toISOString(),
      system: system || undefined,
      settings: this.fields(),
      messages,
    };
    const blob = new Blob([JSON.stringify(whole, null, 2)], { type: "application/json" });
    const name = `suffice-${whole.exported.slice(0, 16).replace(":", "")}.json`;
    const link = element("a", { href: URL.createObjectURL(blob), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
}

function take(entry, chunk, began) {
  const text = chunk.choices[0]?.delta?.content ?? "";
  if (text) {
    const now = performance.now();
    entry.firstSeconds ??= (now - began) / 1000;
    entry.firstAt ??= now;
    entry.chunks = (entry.chunks ?? 0) + 1;
    if (now > entry.firstAt) entry.tokensPerSecond = (1000 * (entry.chunks - 1)) / (now - entry.firstAt);
  }
  entry.content += text;
  entry.progress = chunk.prompt_progress ?? entry.progress;
  if (chunk.suffice) Object.assign(entry, { suffice: chunk.suffice, timings: chunk.timings });
}

// Return a function that calls `work` once before the next picture; `.now()` calls it at once.
function frame(work) {
  let asked = 0;
  const draw = () => {
    asked ||= requestAnimationFrame(() => {
      asked = 0;
      work();
    });
  };
  draw.now = () => {
    cancelAnimationFrame(asked);
    asked = 0;
    work();
  };
  return draw;
}

// Says whole sentences to screen readers, not every token.
class Speaker {
  constructor() {
    this.said = 0;
  }

  hear(text) {
    const whole = SENTENCE.exec(text.slice(this.said))?.[0];
    if (!whole) return;
    this.said += whole.length;
    byId("said").textContent = whole;
  }

  end(text) {
    byId("said").textContent = text.slice(this.said) || "The answer is complete.";
  }
}

function grow(text) {
  text.style.height = "auto";
  text.style.height = `${Math.min(text.scrollHeight + 2, 200)}px`;
}
