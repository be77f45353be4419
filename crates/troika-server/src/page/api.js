// Requests to this server, its streams, and what its errors mean for the reader.

import { settings } from "./store.js";

/** An answer of the server other than success, or none at all (status 0). */
export class ApiError extends Error {
  constructor(status, message, { param = null, code = null, retryAfter = null } = {}) {
    super(message);
    Object.assign(this, { status, param, code, retryAfter });
  }
}

export async function request(path, { body, signal } = {}) {
  const headers = {};
  if (settings.key !== "") headers.Authorization = `Bearer ${settings.key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const options = { method: body === undefined ? "GET" : "POST", headers, signal, cache: "no-store" };
  if (body !== undefined) options.body = JSON.stringify(body);
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    // A key with letters that no header may hold never leaves the browser.
    if (/[^\x20-\x7e]/.test(settings.key)) throw new ApiError(401, "The key has characters that no key can have.");
    throw new ApiError(0, "The server does not answer.");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const told = await response.json().catch(() => null);
  const error = told?.error ?? {};
  const wait = Number.parseFloat(response.headers.get("Retry-After"));
  const message = typeof error === "string" ? error : error.message ?? `The server answered with status ${response.status}.`;
  return new ApiError(response.status, message, {
    param: error.param ?? null, code: error.code ?? null, retryAfter: Number.isFinite(wait) ? wait : null,
  });
}

export async function getJson(path, signal) {
  return (await request(path, { signal })).json();
}

export async function postJson(path, body, signal) {
  return (await request(path, { body, signal })).json();
}

/** Server-Sent Events of a response, as they arrive. */
export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
      rest = lines.pop();
      for (const block of lines) {
        const event = parseEvent(block);
        if (event !== null) yield event;
      }
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The connection broke off.");
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parseEvent(block) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
    else if (line.startsWith("event:")) name = line.slice(6).trim();
  }
  return data.length === 0 ? null : { name, data: data.join("\n") };
}

/** Whether a request failed because its text is longer than the server or the model takes. */
export function isTooLong(error) {
  return error.status === 413 || error.code === "context_length_exceeded";
}

/** A message of the server as a sentence. */
function sentence(message) {
  return `${message.charAt(0).toUpperCase()}${message.slice(1)}${/[.!?]$/.test(message) ? "" : "."}`;
}

/** What went wrong and what to do: a title, a text, and the action that helps. */
export function explain(error) {
  if (!(error instanceof ApiError)) return { title: "The page failed", text: `${sentence(error.message)} Reload the page.`, action: "retry" };
  const { status } = error;
  const message = sentence(error.message);
  if (status === 0) return { title: message, text: "See whether “troika serve” still runs on that machine, then try again.", action: "retry" };
  if (status === 401 || status === 403) {
    const text = settings.key === "" ? "Enter it in Settings. Whoever started the server knows it." : "Correct it in Settings. Whoever started the server knows it.";
    return { title: settings.key === "" ? "This server asks for a key" : "The server does not take this key", text, action: "key" };
  }
  if (status === 429 || (status === 503 && error.retryAfter !== null)) {
    return { title: "The server is busy", text: message, action: "retry", retryAfter: error.retryAfter ?? 1 };
  }
  if (status === 404) return { title: "Not found on this server", text: `${message} Choose another model in Settings.`, action: "settings" };
  if (isTooLong(error)) return { title: "Too long for the model", text: message, action: "retry" };
  if (status < 500) return { title: "The server refused the request", text: message, action: "settings" };
  return { title: "The server failed", text: `${message} Try again; its terminal may say more.`, action: "retry" };
}
