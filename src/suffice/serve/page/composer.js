// The field that the user writes in, with text files that were dropped, pasted or chosen.

import { iconButton } from "./controls.js";
import { byId, bytes, element } from "./format.js";
import { say } from "./speaker.js";

const MOST_BYTES = 1_000_000;  // of a file

export class Composer {
  // `send` is called with what was written and the files.
  constructor(send) {
    this.files = [];
    this.text = byId("text");
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.text.value.trim() || this.files.length) send(this.text.value.trim(), this.files);
    });
    this.text.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      byId("composer").requestSubmit();
    });
    this.text.addEventListener("input", () => this.grow());
    this.text.addEventListener("paste", (event) => {
      if (event.clipboardData.files.length) this.add(event.clipboardData.files);
    });
    byId("attach").addEventListener("click", () => byId("file").click());
    byId("file").addEventListener("change", ({ target }) => {
      this.add(target.files).then(() => { target.value = ""; });
    });
    this.drops(byId("chat"));
  }

  drops(place) {
    const over = (on) => place.classList.toggle("dropping", on);
    const files = ({ dataTransfer }) => dataTransfer.types.includes("Files");
    place.addEventListener("dragover", (event) => {
      if (!files(event)) return;
      event.preventDefault();
      over(true);
    });
    place.addEventListener("dragleave", (event) => {
      if (!place.contains(event.relatedTarget)) over(false);
    });
    place.addEventListener("drop", (event) => {
      if (!files(event)) return;
      event.preventDefault();
      over(false);
      this.add(event.dataTransfer.files);
    });
  }

  // Take files; those that are no text, or too large, are refused by a line.
  async add(files) {
    const refused = [];
    for (const file of files) {
      const text = await texted(file);
      if (text === null) refused.push(file.name);
      else this.files = [...this.files, { name: file.name, text }];
    }
    this.draw();
    this.complain(refused.length
      ? `${refused.join(", ")}: not a text file of at most ${bytes(MOST_BYTES)}.`
      : "");
    this.text.focus();
  }

  complain(line) {
    byId("complaint").textContent = line;
  }

  // Put in what was written, or nothing.
  fill(text, files = []) {
    this.text.value = text;
    this.files = files;
    this.draw();
    this.complain("");
    this.grow();
  }

  // Let the user write, unless a keyboard would come up over the page.
  focus() {
    if (matchMedia("(hover: hover)").matches) this.text.focus();
  }

  get empty() {
    return !this.text.value.trim() && !this.files.length;
  }

  draw() {
    byId("files").hidden = !this.files.length;
    byId("files").replaceChildren(...this.files.map((file) => element(
      "li", {}, element("span", {}, file.name),
      iconButton("close", `Remove ${file.name}`, () => {
        this.files = this.files.filter((each) => each !== file);
        this.draw();
        say(`${file.name} is removed.`);
        this.text.focus();
      }),
    )));
  }

  grow() {
    this.text.style.height = "auto";
    this.text.style.height = `${Math.min(this.text.scrollHeight, 200)}px`;
  }
}

// The text of a file, or null if it has none or is too large.
async function texted(file) {
  if (file.size > MOST_BYTES) return null;
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    return text.includes("\0") ? null : text;
  } catch {
    return null;
  }
}
