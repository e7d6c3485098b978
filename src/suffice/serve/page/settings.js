// The fields of requests: the system prompt, sampling, thinking, tools, the attention technique.

import { byId, element } from "./format.js";

const NUMBERS = ["temperature", "top_p", "top_k", "max_tokens", "seed"];
const PLAIN = { temperature: "1", top_p: "1", top_k: "all" };  // where a model has no default
const KEPT = ["system", ...NUMBERS, "reasoning_effort", "tools"];

export class Settings {
  constructor() {
    byId("settings-button").addEventListener("click", () => this.open(byId("settings").hidden));
    byId("settings").addEventListener("submit", (event) => event.preventDefault());
    byId("tools").addEventListener("input", ({ target }) => {
      target.setCustomValidity(tools() === undefined ? "Tools are a JSON array, in OpenAI's form." : "");
    });
  }

  open(wanted) {
    byId("settings").hidden = !wanted;
    byId("settings-button").setAttribute("aria-expanded", String(wanted));
  }

  // Take what the server says of a model: defaults of the fields, and techniques to choose from.
  know({ sampling, attentions }) {
    for (const [name, value] of Object.entries({ ...PLAIN, ...sampling })) byId(name).placeholder = value;
    const choice = byId("attention");
    const chosen = choice.value;
    choice.replaceChildren(...attentions.map((name) => element("option", { value: name }, name)));
    if (attentions.includes(chosen)) choice.value = chosen;
    byId("attention-field").hidden = attentions.length < 2;
  }

  // Whether requests can be made of the fields; if not, the browser says which cannot.
  get sound() {
    if (byId("tools").checkValidity()) return true;
    this.open(true);
    return byId("tools").reportValidity();
  }

  get system() {
    return byId("system").value.trim();
  }

  // The fields of a request that the user has set.
  get fields() {
    const found = {};
    for (const name of NUMBERS) {
      const value = byId(name).value.trim();
      if (value !== "") found[name] = Number(value);
    }
    if (byId("reasoning_effort").value) found.reasoning_effort = byId("reasoning_effort").value;
    if (tools()?.length) found.tools = tools();
    const choice = byId("attention");
    if (choice.selectedIndex > 0) found.suffice = { attention: choice.value };
    return found;
  }

  // What a conversation keeps of the fields, and the fields as one kept them.
  get kept() {
    return Object.fromEntries(KEPT.map((name) => [name, byId(name).value]).filter(([, value]) => value));
  }

  fill(kept) {
    for (const name of KEPT) byId(name).value = kept[name] ?? "";
    byId("tools").dispatchEvent(new Event("input"));
  }
}

// The tools that are given; undefined if they are not an array.
function tools() {
  const text = byId("tools").value.trim();
  if (!text) return [];
  try {
    const found = JSON.parse(text);
    return Array.isArray(found) ? found : undefined;
  } catch {
    return undefined;
  }
}
