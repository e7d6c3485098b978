// An answer that is being given: its request, and what has come of it.

import { events } from "./server.js";

export class Answer {
  // `node` is the message that the answer goes to; `changed` is called when some of it has come.
  constructor(node, changed) {
    this.node = node;
    this.changed = changed;
    this.request = new AbortController();
    this.chunks = 0;
    Object.assign(node, { content: "", stopped: true });  // until it is whole
  }

  stop() {
    this.request.abort();
  }

  // Send a request and take its answer; return the error that ended it, or null.
  async run(body) {
    this.began = performance.now();
    const told = { stream: true, stream_options: { include_usage: true }, return_progress: true };
    const options = { body: { ...body, ...told }, signal: this.request.signal };
    try {
      for await (const chunk of events("v1/chat/completions", options)) {
        if (chunk.error) throw new Error(chunk.error.message);
        this.take(chunk);
        this.changed();
      }
      delete this.node.stopped;
    } catch (error) {
      if (error.name !== "AbortError") return error;
    } finally {
      delete this.node.progress;
    }
    return null;
  }

  take(chunk) {
    const { node } = this;
    const { content, reasoning_content: reasoning, tool_calls: calls } = chunk.choices[0]?.delta ?? {};
    if (content || reasoning || calls) this.time();
    if (reasoning) {
      this.thinks ??= performance.now();
      node.reasoning = (node.reasoning ?? "") + reasoning;
    }
    if (this.thinks && !node.thoughtSeconds && (content || calls)) {
      node.thoughtSeconds = (performance.now() - this.thinks) / 1000;
    }
    node.content += content ?? "";
    for (const call of calls ?? []) add(node, call);
    node.progress = chunk.prompt_progress ?? node.progress;
    if (chunk.suffice) Object.assign(node, { suffice: chunk.suffice, timings: chunk.timings });
  }

  time() {
    const now = performance.now();
    this.firstAt ??= now;
    this.node.firstSeconds ??= (now - this.began) / 1000;
    this.chunks += 1;
    if (now > this.firstAt) this.node.tokensPerSecond = (1000 * (this.chunks - 1)) / (now - this.firstAt);
  }
}

// Whether something has come of an answer.
export function said({ content, reasoning, calls }) {
  return Boolean(content || reasoning || calls);
}

function add(node, { index, id, function: { name, arguments: more } }) {
  node.calls ??= [];
  node.calls[index] ??= { id, name, arguments: "" };
  node.calls[index].arguments += more ?? "";
}
