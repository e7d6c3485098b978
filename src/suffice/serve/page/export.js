// Saves a conversation as a file of JSON.

import { element } from "./format.js";

// Save what is shown of a conversation; `more` are facts of the server and the settings.
export function save(conversation, more) {
  const messages = conversation.path.map(({ id, parent, ...message }) => message);
  const whole = { title: conversation.name, exported: new Date().toISOString(), ...more, messages };
  const blob = new Blob([JSON.stringify(whole, null, 2)], { type: "application/json" });
  const name = `suffice-${whole.exported.slice(0, 16).replace(":", "")}.json`;
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
