// Conversations in this browser's IndexedDB; while it keeps nothing, they last as long as the tab.

import { Conversation } from "./conversation.js";
import { createStore, del, entries, get, set } from "./lib/idb-keyval.js";

// Pages of several servers may have one origin.
const NAME = `suffice ${location.pathname}`;

export class Kept {
  // `told` is called with a line if something is not kept, `changed` with the id of a conversation
  // that another tab has changed, and with what that is now, if it is still there.
  constructor(told, changed) {
    this.told = told;
    this.store = createStore(NAME, "conversations");
    this.news = new BroadcastChannel(NAME);
    this.news.addEventListener("message", async ({ data: id }) => {
      const found = await this.tried(() => get(id, this.store));
      changed(id, found && new Conversation(found));
    });
  }

  async all() {
    const found = (await this.tried(() => entries(this.store))) ?? [];
    return found.map(([, each]) => new Conversation(each)).sort((a, b) => b.changed - a.changed);
  }

  async save(conversation) {
    await this.tried(() => set(conversation.id, { ...conversation }, this.store));
    this.news.postMessage(conversation.id);
  }

  async remove({ id }) {
    await this.tried(() => del(id, this.store));
    this.news.postMessage(id);
  }

  async tried(work) {
    try {
      return await work();
    } catch (error) {
      this.told(error.name === "QuotaExceededError"
        ? "The browser's storage is full: what is new is not kept."
        : "This browser keeps nothing: conversations end with this tab.");
      return undefined;
    }
  }
}
