// The live view: reads the feed while the page is seen, and shows its frames.

import { byId, bytes, count, duration, element, percent, rate, short } from "./format.js";
import { Heat, legend } from "./heat.js";
import { events, of } from "./server.js";
import { Spark } from "./spark.js";

const FIRST_PAUSE = 1000;
const LONGEST_PAUSE = 10000;  // milliseconds before the feed is asked for again

export class Live {
  constructor(refused) {
    this.refused = refused;
    this.begun = 0;  // requests that have had their first token
    this.feed = null;  // AbortController
    this.model = undefined;  // whose feed it is; the first of the server's if none is named
    this.frame = null;  // the last one in which something was read
    const chosen = (cell, aloud) => this.tell(cell, aloud);
    this.keys = new Heat(byId("keys"), chosen);
    this.values = new Heat(byId("values"), chosen);
    this.tokens = new Spark("Tokens / s", rate);
    this.first = new Spark("First token", duration, 8);
    this.gap = new Spark("Between tokens", duration);
    byId("sparks").append(this.tokens.box, this.first.box, this.gap.box);
    byId("pause").addEventListener("click", ({ currentTarget }) => {
      const paused = currentTarget.getAttribute("aria-pressed") !== "true";
      currentTarget.setAttribute("aria-pressed", String(paused));
      this.watch();
    });
    document.addEventListener("visibilitychange", () => this.watch());
    new ResizeObserver(() => this.redraw()).observe(byId("keys"));
  }

  // Watch a model.
  aim(model) {
    if (model === this.model && this.feed) return;
    this.model = model;
    this.say("wait", "connecting");
    if (this.feed) this.feed.abort();
    else this.watch();
  }

  get wanted() {
    return !document.hidden && byId("pause").getAttribute("aria-pressed") !== "true";
  }

  // Begin or end to read the feed, as it is wanted now.
  watch() {
    if (!this.wanted) {
      this.feed?.abort();
      this.say("wait", "paused");
    } else if (!this.feed) {
      this.follow();
    }
  }

  async follow() {
    let pause = FIRST_PAUSE;
    while (this.wanted) {
      this.feed = new AbortController();
      try {
        for await (const frame of events(of("live", this.model), { signal: this.feed.signal })) {
          pause = FIRST_PAUSE;
          this.show(frame);
        }
        this.say("bad", "the server is shutting down");
      } catch (error) {
        if (error.name === "AbortError") break;
        this.say("bad", error.message);
        this.refused(error);
        if (error.status === 401) break;  // until there is a key
      }
      await new Promise((done) => { setTimeout(done, pause); });
      pause = Math.min(2 * pause, LONGEST_PAUSE);
    }
    this.feed = null;
    if (this.wanted && byId("state").dataset.state === "wait") this.watch();
  }

  say(state, text) {
    const line = byId("state");
    if (line.dataset.state === state && line.textContent === text) return;
    line.dataset.state = state;
    line.textContent = text;
  }

  show(frame) {
    if (frame.ailment) this.say("bad", frame.ailment);
    else this.say("on", frame.running ? "running" : "idle");
    if (frame.seconds === undefined) return;
    const [median, longest] = frame.gap_seconds ?? [null, null];
    const per = frame.seconds || 1;
    this.tokens.add(frame.generated_tokens / per, undefined, `${rate(frame.prompt_tokens / per)} of prompts`);
    this.firsts(frame);
    this.gap.add(median, longest, longest === null ? null : `longest: ${duration(longest)}`);
    this.counts(frame);
    if (!frame.kv_bytes_held && this.frame) return;  // what was read last stays
    this.frame = frame;
    if (frame.kv_bytes_held) this.reads(frame);
    this.maps(frame);
    this.tell(this.keys.cell ?? this.values.cell, false);
  }

  // Add the times to first tokens that no frame had before.
  firsts({ first_tokens: total, first_seconds: seconds }) {
    const fresh = Math.min(Math.max(total - this.begun, 0), seconds.length);
    this.begun = total;
    for (const each of fresh ? seconds.slice(-fresh) : []) this.first.add(each, undefined, "by request");
  }

  reads(frame) {
    const share = frame.kv_bytes_read / frame.kv_bytes_held;
    byId("share").textContent = percent(share);
    byId("unit").hidden = false;
    const meter = byId("meter");
    meter.firstElementChild.style.transform = `scaleX(${Math.min(share, 1)})`;
    meter.setAttribute("aria-label", `${percent(share)} percent of the bytes read`);
    const read = `${bytes(frame.kv_bytes_read)} of ${bytes(frame.kv_bytes_held)}`;
    byId("bytes").textContent = `${read} in ${frame.seconds.toFixed(1)} s`;
    byId("bound").replaceChildren(...bound(frame));
    const audit = frame.audit;
    byId("audit").hidden = !audit;
    if (audit) byId("audit").textContent = audited(audit);
  }

  maps({ key_rows: keys, value_rows: values, rows_held: held }) {
    const shares = (rows) => rows.map((row, layer) => (
      row.map((read, head) => (held[layer][head] ? read / held[layer][head] : 0))
    ));
    this.keys.show(shares(keys));
    this.values.show(shares(values));
    const sum = (rows) => rows.flat().reduce((a, b) => a + b, 0);
    const size = `${held.length} layers, ${held[0].length} heads`;
    for (const [name, rows] of [["keys", keys], ["values", values]]) {
      const part = `${sum(held) ? percent(sum(rows) / sum(held)) : 0} %`;
      byId(name).setAttribute("aria-label", `${name} read: ${part} of those held; ${size}`);
      byId(`${name}-share`).textContent = `${part} of ${short(sum(held))} rows held`;
    }
  }

  tell(cell, aloud) {
    const line = byId("cell");
    if (!cell || !this.frame) {
      line.textContent = "Point at a cell, or use the arrow keys.";
      return;
    }
    const [layer, head] = cell;
    const [keys, values, held] = ["key_rows", "value_rows", "rows_held"].map((name) => (
      this.frame[name][layer][head]
    ));
    const share = (rows) => (held ? percent(rows / held) : 0);
    const what = `keys ${share(keys)} %, values ${share(values)} % of ${count(held)}`;
    line.textContent = `layer ${layer}, head ${head}: ${what}`;
    if (aloud) byId("said").textContent = line.textContent;
  }

  counts(frame) {
    const limit = frame.kv_bytes_limit;
    const per = frame.seconds || 1;
    const whole = frame.since_start;
    const rows = [
      ["Running", count(frame.running)],
      ["Waiting", count(frame.waiting)],
      ["Caches", bytes(frame.kv_bytes_used), limit ? `of ${bytes(limit)}` : ""],
      ["Kept prefixes", frame.prefix_entries ? bytes(frame.prefix_bytes) : "none",
        frame.prefix_entries ? `in ${count(frame.prefix_entries)}` : ""],
      ["Drafts accepted", frame.drafts ? `${percent(frame.accepted / frame.drafts)} %` : "–",
        frame.drafts ? `of ${rate(frame.drafts / per)} per s` : ""],
      ["Read since start", bytes(whole.kv_bytes_read), `of ${bytes(whole.kv_bytes_held)}`],
      ["Weights read", bytes(frame.weight_bytes_read / per), "per second"],
      ...frame.state_bytes_moved
        ? [["States read and written", bytes(frame.state_bytes_moved / per), "per second"]] : [],
      ["Engine restarts", count(frame.restarts)],
    ];
    byId("counts").replaceChildren(...rows.map(([name, value, more = ""]) => element(
      "div", {}, element("dt", {}, name),
      element("dd", {}, `${value} `, element("small", {}, more)),
    )));
  }

  redraw() {
    legend(byId("ramp"));
    for (const each of [this.keys, this.values, this.tokens, this.first, this.gap]) each.draw();
  }
}

function audited({ missing, error, tokens }) {
  const off = `output off by ${percent(error.mean)} %`;
  const part = missing ? `${percent(missing.mean)} % left out on average, ` : "";
  return `Audit of ${count(tokens)} tokens: ${part}${off}.`;
}

function bound({ guarantee, missing }) {
  if (guarantee === "exact") return ["Nothing of a softmax was left out."];
  if (guarantee === "none") return ["Nothing is known of what was left out of a softmax."];
  const words = { bound: "Bound: at most ", probable: "Very likely: at most " };
  const saying = words[guarantee.split(",")[0]] ?? "Estimate: up to ";
  const end = guarantee.includes("prompt") ? ", after a prompt that was run approximately." : ".";
  return [saying, element("strong", {}, `${percent(missing)} %`), ` of a softmax was left out${end}`];
}
