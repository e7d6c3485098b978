// Starts the page: colours, the key, and what the server says of itself.

import { Chat } from "./chat.js";
import { byId, bytes, count } from "./format.js";
import { Live } from "./live.js";
import { asked, key, setKey } from "./server.js";

const THEMES = ["auto", "light", "dark"];

const chat = new Chat(refused);
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
  let at = Math.max(0, THEMES.indexOf(localStorage.getItem("suffice.theme")));
  show(at);
  byId("theme").addEventListener("click", () => {
    at = (at + 1) % THEMES.length;
    localStorage.setItem("suffice.theme", THEMES[at]);
    show(at);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => live.redraw());
}

async function begin() {
  try {
    const about = await asked("page/server");
    byId("model").textContent = about.model;
    document.title = `${about.model} – suffice`;
    const size = about.weight_bytes ? `${bytes(about.weight_bytes)}, ` : "";
    const own = about.attentions[0];
    byId("facts").textContent = `${size}${own} attention, ${count(about.max_model_len)} tokens of context`;
    chat.know(about);
    live.watch();
  } catch (error) {
    refused(error);
    live.say("bad", error.message);
    if (error.status !== 401) setTimeout(begin, 2000);
  }
}

keys();
themes();
begin();
byId("text").focus();
