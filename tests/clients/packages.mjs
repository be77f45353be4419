// Packages of Node that ask language models: `node packages.mjs URL PACKAGES`, where PACKAGES is the
// folder with `node_modules`. `programs.py` runs it.

import assert from "node:assert";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [url, packages] = process.argv.slice(2);
const require = createRequire(`${packages}/`);
const load = (name) => import(pathToFileURL(require.resolve(name)));
const ai = await load("ai");
const { z } = await load("zod");
const { default: OpenAI } = await load("openai");
const { createOpenAI } = await load("@ai-sdk/openai");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
const { createAnthropic } = await load("@ai-sdk/anthropic");
globalThis.AI_SDK_LOG_WARNINGS = false;

const prompt = "How is the weather in York?";
const places = ["London", "York", "Bath"];
const inputSchema = z.object({ place: z.enum(places) });
const schema = z.object({ place: z.enum(places), wet: z.boolean() });
const baseURL = `${url}/v1`;
const common = { maxRetries: 0, maxOutputTokens: 120, prompt };

async function sdk(model) {
  const answer = await ai.generateText({ ...common, model });
  assert(answer.text && answer.usage.outputTokens && answer.finishReason);
  const stream = ai.streamText({ ...common, model, onError: ({ error }) => { throw error; } });
  let text = "";
  for await (const piece of stream.textStream) text += piece;
  assert(text && (await stream.usage).outputTokens);

  const output = ai.Output.object({ schema });
  const form = await ai.generateText({ ...common, model, output });
  assert(places.includes(form.output.place));
  const forms = ai.streamText({ ...common, model, output });
  let last;
  for await (const part of forms.partialOutputStream) last = part;
  assert(places.includes(last.place) && typeof last.wet === "boolean");

  // A loop of an agent: one forced call, its result, then an answer.
  const called = [];
  const execute = async ({ place }) => (called.push(place), `It rains in ${place}.`);
  // The small model would call it again and again where it is only required.
  const only = { type: "tool", toolName: "weather" };
  const loop = {
    ...common,
    model,
    tools: { weather: ai.tool({ description: "The weather.", inputSchema, execute }) },
    stopWhen: ai.stepCountIs(2),
    prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber ? "none" : only }),
  };
  const whole = await ai.generateText(loop);
  assert(whole.steps.length === 2 && whole.steps[0].toolCalls.length && called.length);
  called.length = 0;
  const steps = await ai.streamText(loop).steps;
  assert(steps.length === 2 && steps[0].toolResults.length && called.length);
  assert(called.every((place) => places.includes(place)));
}

async function openai() {
  const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
  const chat = { model: "any-name", messages: [{ role: "user", content: prompt }], max_tokens: 120 };
  const answer = await client.chat.completions.create(chat);
  assert(answer.choices[0].message.content && answer.usage.completion_tokens);
  const stream = client.chat.completions.stream(chat);
  assert(await stream.finalContent());

  const { zodResponseFormat } = await load("openai/helpers/zod");
  const response_format = zodResponseFormat(schema, "weather");
  const form = await client.chat.completions.parse({ ...chat, response_format });
  assert(places.includes(form.choices[0].message.parsed.place));

  const parameters = z.toJSONSchema(inputSchema);
  const tools = [{ type: "function", function: { name: "weather", parameters } }];
  const forced = { ...chat, tools, tool_choice: "required", parallel_tool_calls: false };
  const message = await client.chat.completions.stream(forced).finalMessage();
  const call = message.tool_calls[0];
  assert(places.includes(JSON.parse(call.function.arguments).place));
  const result = { role: "tool", tool_call_id: call.id, content: "It rains." };
  const turn = { ...chat, tools, messages: [...chat.messages, message, result] };
  assert((await client.chat.completions.create(turn)).choices[0].finish_reason);

  const response = await client.responses.create({ max_output_tokens: 60, model: "any-name", input: prompt });
  assert(response.output_text);
  const text = { format: { type: "json_schema", name: "weather", strict: true,
    schema: { ...z.toJSONSchema(schema), additionalProperties: false } } };
  const events = client.responses.stream({ model: "any-name", input: prompt, text });
  assert(places.includes(JSON.parse((await events.finalResponse()).output_text).place));
  const { data } = await client.embeddings.create({ model: "any-name", input: ["one", "two"] });
  assert(data.length === 2 && data[0].embedding.length);
}

const compatible = createOpenAICompatible({ name: "troika", baseURL, supportsStructuredOutputs: true, includeUsage: true });
const tests = {
  openai,
  ai_sdk_compatible: () => sdk(compatible("any-name")),
  ai_sdk_openai: () => sdk(createOpenAI({ baseURL, apiKey: "none" }).chat("any-name")),
  ai_sdk_responses: () => sdk(createOpenAI({ baseURL, apiKey: "none" }).responses("any-name")),
  ai_sdk_anthropic: () => sdk(createAnthropic({ baseURL, apiKey: "none" })("any-name")),
};
let failed = 0;
for (const [name, test] of Object.entries(tests)) {
  const start = Date.now();
  try {
    await test();
    console.log(`ok     node.${name} (${(Date.now() - start) / 1000} s)`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED node.${name} ${error.stack.replaceAll(/\s+/g, " ").slice(0, 600)}`);
  }
}
console.log(`${Object.keys(tests).length - failed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
