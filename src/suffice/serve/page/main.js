// Starts the page: colours, panes, keys, and what the server says of itself.

import { Chat } from "./chat.js";
import { byId, bytes, count } from "./format.js";
import { Live } from "./live.js";
import { asked, key, of, setKey } from "./server.js";
import { recalled, remember } from "./storage.js";

const THEMES = ["auto", "light", "dark"];
const narrow = matchMedia("(max-width: 1120px)");  // as in style.css

const chat = new Chat(refused, opened, () => know().catch(refused));
const live = new Live(refused);

function refused(error) {
  if (error.status === 401) askForKey();
}

function askForKey() {
  const dialog = byId("key-dialog");
  byId("key-button").hidden = false;
  if (dialog.open) return;
  byId("key-why").textContent = key()
    ? "The server does not know this key."
    : "The server asks for a key. It is kept until this tab is closed.";
  byId("key").value = "";
  dialog.showModal();
}

function keys() {
  byId("key-button").hidden = !key();
  byId("key-button").addEventListener("click", askForKey);
  byId("key-cancel").addEventListener("click", () => byId("key-dialog").close());
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    setKey(byId("key").value.trim());
    byId("key-dialog").close();
    begin();
  });
}

function themes() {
  const show = (at) => {
    if (at) document.documentElement.dataset.theme = THEMES[at];
    else delete document.documentElement.dataset.theme;
    byId("theme").textContent = `Theme: ${THEMES[at]}`;
    live.redraw();
  };
  let at = Math.max(0, THEMES.indexOf(recalled("localStorage", "suffice.theme")));
  show(at);
  byId("theme").addEventListener("click", () => {
    at = (at + 1) % THEMES.length;
    remember("localStorage", "suffice.theme", THEMES[at]);
    show(at);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => live.redraw());
}

// The list is a pane of a wide window, and lies over a narrow one when it is wanted.
function panes() {
  const [list, button] = [byId("list"), byId("list-button")];
  const fit = () => {
    list.popover = narrow.matches ? "auto" : null;
    list.hidden = !narrow.matches && recalled("localStorage", "suffice.list") === "hidden";
    button.setAttribute("aria-expanded", String(!narrow.matches && !list.hidden));
  };
  fit();
  narrow.addEventListener("change", fit);
  list.addEventListener("toggle", ({ newState }) => {
    button.setAttribute("aria-expanded", String(newState === "open"));
  });
  button.addEventListener("click", () => {
    if (narrow.matches) {
      list.togglePopover();
      return;
    }
    remember("localStorage", "suffice.list", list.hidden ? "shown" : "hidden");
    fit();
  });
}

// Another conversation is shown, so it is seen.
function opened() {
  if (narrow.matches) byId("list").hidePopover();
}

function shortcuts() {
  if (/Mac|iP/.test(navigator.platform)) byId("new").querySelector("kbd").textContent = "⌘ K";
  document.addEventListener("keydown", (event) => {
    const open = document.querySelector("dialog[open], :popover-open");
    if (event.key === "Escape" && !open) {
      chat.stop();
    } else if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey) {
      event.preventDefault();
      if (!document.querySelector("dialog[open]")) chat.fresh();
    }
  });
}

// Show what the server says of the model that is chosen.
async function know() {
  const { chosen } = chat.models;
  const about = await asked(of("page/server", chosen));
  if (chosen !== chat.models.chosen) return;  // another one since
  byId("model").textContent = about.model;
  document.title = `${chosen ?? about.model} – suffice`;
  const size = about.weight_bytes ? `${bytes(about.weight_bytes)}, ` : "";
  const length = `${count(about.max_model_len)} tokens of context`;
  byId("facts").textContent = about.attentions.length
    ? `${size}${about.attentions[0]} attention, ${length}`
    : "not loaded";
  chat.know(about);
  live.aim(chosen);
}

async function begin() {
  try {
    await chat.models.know();
    chat.models.choose(chat.shown.model);
    await know();
  } catch (error) {
    refused(error);
    live.say("bad", error.message);
    if (error.status !== 401) setTimeout(begin, 2000);
  }
}

keys();
themes();
panes();
shortcuts();
begin();
chat.begin();
chat.composer.focus();
