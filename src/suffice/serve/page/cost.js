// What an answer cost, as people read it.

import { count, duration, element, percent, rate } from "./format.js";

function bars(keys, values) {
  const made = element("span", { class: "bars", "aria-hidden": "true" });
  for (const share of [keys, values]) {
    const bar = element("i");
    bar.style.setProperty("--read", `${100 * share}%`);
    made.append(bar);
  }
  return made;
}

// What an answer cost, as elements. `many` says that the server offers several techniques, `model`
// which of several models it is of.
export function costs({ suffice, timings, firstSeconds, tokensPerSecond, many, model, stopped }) {
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
  if (model) details.push(model);
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
