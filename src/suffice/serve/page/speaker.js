// Says whole sentences of an answer to screen readers, not every token.

import { byId } from "./format.js";

const SENTENCE = /^[\s\S]*[.!?:\n](?=\s)/;

export class Speaker {
  constructor() {
    this.said = 0;
    this.thinks = false;
  }

  hear({ content, reasoning }) {
    if (reasoning && !content && !this.thinks) {
      this.thinks = true;
      say("The model is thinking.");
    }
    const whole = SENTENCE.exec(content.slice(this.said))?.[0];
    if (!whole) return;
    this.said += whole.length;
    say(whole);
  }

  end(text) {
    say(text.slice(this.said) || "The answer is complete.");
  }
}

export function say(text) {
  byId("said").textContent = text;
}
