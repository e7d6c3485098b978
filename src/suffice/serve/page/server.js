// Requests to the server: with the key, as streams of events, with errors of one line.

import { recalled, remember } from "./storage.js";

const KEY = "suffice.key";
let given = null;  // the key, where the browser keeps nothing

export class ServerError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export function key() {
  return given ?? recalled("sessionStorage", KEY) ?? "";
}

export function setKey(value) {
  given = value;
  remember("sessionStorage", KEY, value);
}

// Send a request and return the response; addresses are relative, for proxies that add a path.
async function sent(path, { body, signal } = {}) {
  const headers = {};
  if (key()) headers.authorization = `Bearer ${key()}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server cannot be reached.");
  }
  if (!response.ok) throw new ServerError(await reason(response), response.status);
  return response;
}

async function reason(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered with status ${response.status}.`;
  }
}

// The address of what a path says of a model; the first of the server's if none is named.
export function of(path, model) {
  return model ? `${path}?model=${encodeURIComponent(model)}` : path;
}

export async function asked(path) {
  return (await sent(path)).json();
}

// Yield the events of a stream, parsed; "[DONE]" ends it, and so does its end.
export async function* events(path, { body, signal }) {
  const response = await sent(path, { body, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  try {
    for (;;) {
      let part;
      try {
        part = await reader.read();
      } catch (error) {
        if (signal?.aborted) throw error;
        throw new ServerError("The connection to the server broke.");
      }
      if (part.done) return;
      const whole = (left + part.value).split("\n\n");
      left = whole.pop();
      for (const event of whole) {
        const data = event.split("\n").filter((line) => line.startsWith("data: "));
        if (!data.length) continue;  // a sign of life
        const text = data.map((line) => line.slice(6)).join("\n");
        if (text === "[DONE]") return;
        yield JSON.parse(text);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
