// The model that answers, if the server has several.

import { byId, element } from "./format.js";
import { asked } from "./server.js";

const STATES = { unloaded: " (not loaded)", loading: " (loading)" };

export class Models {
  // `changed` is called when another model is chosen.
  constructor(changed) {
    this.choice = byId("models");
    this.changed = changed;
    this.choice.addEventListener("change", changed);
    this.choice.addEventListener("focus", () => this.know().catch(() => {}));
  }

  // Ask for the server's models, and show them if there are several.
  async know() {
    const { data: cards } = await asked("v1/models");
    this.cards = cards;
    const several = cards.length > 1;
    this.choice.hidden = !several;
    byId("model").hidden = several;
    cards.forEach(({ id, status }, at) => {
      if (this.choice.options[at]?.value !== id) this.choice.add(element("option", { value: id }), at);
      this.choice.options[at].textContent = `${id}${state(status)}`;
    });
    this.choice.length = cards.length;
  }

  // The name of the model that is chosen, or undefined if there is no choice.
  get chosen() {
    return this.choice.hidden ? undefined : this.choice.value;
  }

  choose(name) {
    if (name === this.choice.value || ![...this.choice.options].some(({ value }) => value === name)) return;
    this.choice.value = name;
    this.changed();
  }

  // The name of the model that is chosen, if it is not loaded yet.
  get loading() {
    const card = this.cards?.find(({ id }) => id === this.chosen);
    return card?.status && card.status.value !== "loaded" ? card.id : "";
  }
}

// What is said of a model's state; nothing if it is loaded.
function state({ value, failed } = {}) {
  return failed ? " (failed)" : STATES[value] ?? "";
}
