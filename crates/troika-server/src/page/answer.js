// Asks the server for an answer and fills a message with it. Draws nothing.

import { ApiError, eventsOf, isTooLong, postJson, request } from "./api.js";
import { server, usualLimit } from "./server.js";
import { sampling, settings } from "./store.js";

/** The messages as the server wants them, up to the one that is being answered. */
function conversation(messages) {
  const told = [];
  for (const { role, content } of messages) {
    if (content === "") continue;
    // A question that got no answer joins the next: many templates want turns to alternate.
    if (told.at(-1)?.role === role) told.at(-1).content += `\n\n${content}`;
    else told.push({ role, content });
  }
  return settings.system.trim() === "" ? told : [{ role: "system", content: settings.system }, ...told];
}

/**
 * Leaves out the oldest turns of a chat that does not fit the model's context with an eighth of it for the answer.
 * The newest message is never left out. Returns the index of the first message that is kept, and the request's fields.
 */
async function fit(messages, model, signal) {
  const starts = [...messages.keys()].filter((at) => messages[at].role === "user");
  const fields = sampling();
  const before = messages.findLast((message) => message.role === "assistant");
  let low = before?.model === model ? Math.max(0, starts.indexOf(before.omitted)) : 0;
  let [at, high, share] = [low, starts.length - 1, 1];
  do {
    const body = { model, messages: conversation(messages.slice(starts[at])) };
    const { count = Infinity, max_model_len: context = 0 } = await postJson("tokenize", body, signal).catch((error) => {
      if (isTooLong(error)) return {};
      throw error;
    });
    fields.max_tokens ??= usualLimit(context);
    if (count + Math.min(fields.max_tokens ?? Infinity, Math.floor(context / 8)) <= context * share) high = at;
    else low = at + 1;
    at = (low + high) >> 1;
    // What is left out frees half of the context: the next requests begin with the same turns, which the server has cached.
    share = 0.5;
  } while (low < high);
  return { from: starts[at], fields };
}

export function emptyAnswer() {
  return { role: "assistant", content: "", reasoning: "", tools: [], state: "running", note: null, omitted: 0, model: server.model, stats: null, time: Date.now() };
}

/** Streams an answer into `message`; `changed` is called after each piece. Throws what went wrong. */
export async function ask(messages, message, signal, changed) {
  const clock = { sent: performance.now(), first: null, last: null, pieces: 0, thought: null };
  let ended = false;
  try {
    const model = message.model || undefined;
    const { from, fields } = await fit(messages, model, signal);
    message.omitted = from;
    const body = { model, messages: conversation(messages.slice(from)), stream: true, stream_options: { include_usage: true }, return_progress: true, ...fields };
    const response = await request("v1/chat/completions", { body, signal });
    for await (const { data } of eventsOf(response)) {
      if (data === "[DONE]") {
        ended = true;
        break;
      }
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(chunk.error.status ?? 500, chunk.error.message ?? "The answer broke off.", chunk.error);
      ended = take(message, chunk, clock) || ended;
      changed();
    }
    if (!ended) throw new ApiError(0, "The connection broke off.");
    message.state = "done";
  } finally {
    measure(message, clock);
  }
}

/** Adds a chunk to the message; true if it says why the answer ended. */
function take(message, chunk, clock) {
  if (chunk.model) message.model = chunk.model;
  if (chunk.usage) message.usage = chunk.usage;
  if (chunk.prompt_progress) message.reading = chunk.prompt_progress;
  const choice = chunk.choices?.[0];
  if (!choice) return false;
  const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta ?? {};
  if (content || reasoning || calls) {
    clock.last = performance.now();
    clock.first ??= clock.last;
    clock.pieces += 1;
  }
  if (reasoning) message.reasoning += reasoning;
  if (content) {
    if (message.reasoning !== "" && message.content === "") message.thought = (clock.last - clock.first) / 1000;
    message.content += content;
  }
  for (const call of calls ?? []) takeCall(message.tools, call);
  if (!choice.finish_reason) return false;
  if (choice.finish_reason === "length") message.note = "Stopped at a limit: Max tokens in Settings, or the model's context.";
  if (choice.finish_reason === "content_filter") message.note = "Stopped by the server's filter.";
  return true;
}

function takeCall(tools, { index = 0, function: called = {} }) {
  tools[index] ??= { name: "", arguments: "" };
  tools[index].name += called.name ?? "";
  tools[index].arguments += called.arguments ?? "";
}

/** Speed as the reader saw it: after the first piece, so that waiting does not count. */
function measure(message, clock) {
  delete message.reading;
  if (clock.first === null) return;
  const tokens = message.usage?.completion_tokens ?? clock.pieces;
  const seconds = (clock.last - clock.first) / 1000;
  message.stats = {
    tokens, exact: message.usage !== undefined, prompt: message.usage?.prompt_tokens ?? null,
    ttft: (clock.first - clock.sent) / 1000, speed: tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : null,
  };
  delete message.usage;
}

/** Notes on a message why its answer ended early. */
export function settle(message, error) {
  if (error.name === "AbortError") {
    Object.assign(message, { state: "stopped", note: "You stopped this answer." });
    return;
  }
  const { status = null, param = null, code = null, retryAfter = null } = error;
  message.state = message.content === "" ? "failed" : "broken";
  if (message.content !== "") message.note = "The answer is not complete.";
  message.error = { status: error instanceof ApiError ? status : 500, message: error.message, param, code, retryAfter };
}
