// Buttons with a picture, and copying.

import { element } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

// Return one of the pictures of index.html; it says nothing to screen readers.
export function icon(name) {
  const made = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  made.setAttribute("class", "icon");
  made.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#i-${name}`);
  made.append(use);
  return made;
}

// Return a button that is a picture; `says` is its name.
export function iconButton(name, says, act) {
  const made = element("button", { type: "button", class: "plain", "aria-label": says, title: says }, icon(name));
  made.addEventListener("click", act);
  return made;
}

// Return a button that copies what `text` returns.
export function copyButton(text) {
  const made = iconButton("copy", "Copy", async () => {
    const done = await copied(text());
    made.replaceChildren(icon(done ? "check" : "close"));
    setTimeout(() => made.replaceChildren(icon("copy")), 1500);
  });
  return made;
}

// Copy a text. Browsers have a clipboard only for pages by HTTPS and of the machine itself.
async function copied(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  const field = element("textarea", { class: "unseen" });
  field.value = text;
  (document.querySelector("dialog[open]") ?? document.body).append(field);
  const focused = document.activeElement;
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return done;
}
