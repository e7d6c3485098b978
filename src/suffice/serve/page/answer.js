// A message on the page: its text with blocks of code, and what it cost.

import { count, duration, element, percent, rate } from "./format.js";

const FENCE = /^ {0,3}```/;

const MARKED = /(\*\*[^*\n]+\*\*|`[^`\n]+`)/;

// Cut a text into paragraphs and blocks of code; a block that has not ended yet is one, too.
export function parts(text) {
  const found = [];
  let block = null;
  let lines = [];
  const end = () => {
    const body = lines.join("\n");
    if (block !== null || body.trim()) found.push({ block, text: block === null ? body.trim() : body });
    lines = [];
  };
  for (const line of text.split("\n")) {
    if (FENCE.test(line)) {
      end();
      block = block === null ? line.replace(FENCE, "").trim() : null;
    } else if (block === null && !line.trim()) {
      end();
    } else {
      lines.push(line);
    }
  }
  end();
  return found;
}

function block(language) {
  const code = element("code");
  const copy = element("button", { type: "button" }, "Copy");
  copy.addEventListener("click", async () => {
    await navigator.clipboard?.writeText(code.textContent);
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  const pre = element("pre", { tabindex: "0", "aria-label": `Code ${language}` }, code);
  const head = element("div", { class: "head" }, element("span", {}, language || "code"), copy);
  const made = element("div", { class: "block" }, head, pre);
  made.fill = (text) => { code.textContent = text; };
  return made;
}

function paragraph() {
  const made = element("div", { class: "part" });
  made.fill = (text) => { made.replaceChildren(...marked(text)); };
  return made;
}

// Return a text's **strong** and `code` parts as elements, and the others as they are.
function marked(text) {
  return text.split(MARKED).map((each, at) => {
    if (at % 2 === 0) return each;
    return each[0] === "*"
      ? element("strong", {}, each.slice(2, -2))
      : element("code", {}, each.slice(1, -1));
  });
}

export class Message {
  constructor(role) {
    const who = element("span", { class: "unseen" }, role === "user" ? "You: " : "Answer: ");
    this.body = element("div", { class: "body" });
    this.item = element("li", { class: `message ${role}` }, who, this.body);
    this.shown = [];  // what each child of the body shows
  }

  // Show a text; parts that have not changed are left alone.
  show(text) {
    const found = parts(text);
    found.forEach((part, at) => {
      const old = this.shown[at];
      if (old?.block === part.block && old.text === part.text) return;
      if (!old || (old.block === null) !== (part.block === null) || old.block !== part.block) {
        const made = part.block === null ? paragraph() : block(part.block);
        if (old) this.body.children[at].replaceWith(made);
        else this.body.append(made);
      }
      this.body.children[at].fill(part.text);
    });
    while (this.body.children.length > found.length) this.body.lastChild.remove();
    this.shown = found;
  }

  running(on) {
    this.item.classList.toggle("running", on);
  }

  // Show how far the prompt is, until it is done; null shows nothing.
  read(progress) {
    this.reading?.remove();
    if (!progress || progress.processed >= progress.total) return;
    const line = `reading ${count(progress.processed)} of ${count(progress.total)} tokens`;
    this.reading = element("p", { class: "reading" }, line);
    this.item.append(this.reading);
  }

  fail(line) {
    this.item.append(element("p", { class: "error", role: "alert" }, line));
  }

  cost(answer) {
    const line = costs(answer);
    if (line.length) this.item.append(element("div", { class: "cost" }, ...line));
  }
}

function bars(keys, values) {
  const made = element("span", { class: "bars", "aria-hidden": "true" });
  for (const share of [keys, values]) {
    const bar = element("i");
    bar.style.setProperty("--read", `${100 * share}%`);
    made.append(bar);
  }
  return made;
}

// What an answer cost, as elements; `many` says that the server offers several techniques.
export function costs({ suffice, timings, firstSeconds, tokensPerSecond, many, stopped }) {
  const found = [];
  const held = suffice?.kv_rows_held;
  if (held) {
    const keys = suffice.kv_rows_read / held;
    const values = suffice.value_rows_read / held;
    const read = `read ${percent((keys + values) / 2)} % of the rows`;
    const each = ` (keys ${percent(keys)} %, values ${percent(values)} %)`;
    const detail = suffice.kv_rows_read === suffice.value_rows_read ? "" : each;
    found.push(bars(keys, values), element("span", {}, element("strong", {}, read), detail));
    found.push(element("span", {}, left(suffice)));
  }
  const details = [];
  if (stopped) details.push("stopped");
  if (timings) {
    const drafts = timings.draft_n;
    details.push(`${count(timings.predicted_n)} tokens, ${rate(timings.predicted_per_second)} per second`);
    if (timings.cache_n) details.push(`${count(timings.cache_n)} prompt tokens cached`);
    if (drafts) details.push(`${count(timings.draft_n_accepted)} of ${count(drafts)} drafts accepted`);
  } else if (tokensPerSecond) {
    details.push(`${rate(tokensPerSecond)} tokens per second`);
  }
  if (firstSeconds !== undefined) details.push(`first token after ${duration(firstSeconds)}`);
  if (suffice?.failovers) details.push(`outlived ${count(suffice.failovers)} engine(s)`);
  if (suffice) details.push(...prompt(suffice));
  if (suffice?.audit) details.push(audited(suffice.audit));
  if (many && suffice) details.push(suffice.attention);
  if (details.length) found.push(element("span", { class: "details" }, details.join(" \u00b7 ")));
  return found;
}

function left({ guarantee, missing }) {
  if (guarantee === "exact") return "nothing left out";
  if (guarantee === "none" || missing === null) return "nothing is known of what was left out";
  const end = guarantee.includes("prompt") ? " after an approximate prompt" : "";
  const most = `${percent(missing)} % of a softmax left out${end}`;
  if (guarantee.startsWith("probable")) return `very likely at most ${most}`;
  return guarantee.startsWith("bound") ? `bound: at most ${most}` : `estimate: up to ${most}`;
}

function prompt({ prompt_rows_read: rows, prompt_rows_held: held }) {
  return held ? [`prompt attention read ${percent(rows / held)} %`] : [];
}

function audited({ tokens, error }) {
  return `audit of ${count(tokens)}: output off by at most ${percent(error)} %`;
}
