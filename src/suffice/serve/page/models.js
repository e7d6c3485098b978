// The model that answers, if the server has several.

import { byId, element } from "./format.js";
import { asked } from "./server.js";

const STATES = { unloaded: " (not loaded)", loading: " (loading)", failed: " (failed)" };

export class Models {
  constructor() {
    this.choice = byId("models");
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
      this.choice.options[at].textContent = `${id}${STATES[status?.value] ?? ""}`;
    });
    this.choice.length = cards.length;
  }

  // The name of the model that is chosen, or undefined if there is no choice.
  get chosen() {
    return this.choice.hidden ? undefined : this.choice.value;
  }

  choose(name) {
    if ([...this.choice.options].some(({ value }) => value === name)) this.choice.value = name;
  }

  // The name of the model that is chosen, if it is not loaded yet.
  get loading() {
    const card = this.cards?.find(({ id }) => id === this.chosen);
    return card?.status && card.status.value !== "loaded" ? card.id : "";
  }
}
