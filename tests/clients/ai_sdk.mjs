// The Vercel AI SDK against a server at $REJOINDER_URL, through its providers for both dialects.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createDeepInfra } from "@ai-sdk/deepinfra";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import {
  APICallError, NoObjectGeneratedError, Output, generateObject, generateText, stepCountIs,
  streamObject, streamText, tool,
} from "ai";
import { z } from "zod";

const url = process.env.REJOINDER_URL;
const apiKey = process.env.REJOINDER_KEY;

const openai = createOpenAICompatible({
  name: "rejoinder", baseURL: `${url}/v1`, apiKey, includeUsage: true, supportsStructuredOutputs: true,
});
const loose = createOpenAICompatible({ name: "rejoinder", baseURL: `${url}/v1`, apiKey });
const deepinfra = createDeepInfra({ baseURL: `${url}/v1`, apiKey });
const PROVIDERS = { openai, deepinfra };

async function bothProviders(t, check) {
  for (const [name, provider] of Object.entries(PROVIDERS)) {
    await t.test(name, () => check(provider, name));
  }
}

const Person = z.object({ name: z.string(), age: z.number() });
const settings = { maxRetries: 0, onError: () => {} };

function weather(seen) {
  return tool({
    description: "The weather of a city",
    inputSchema: z.object({ city: z.string() }),
    strict: true,
    execute: async ({ city }) => {
      seen.push(city);
      return "12 degrees";
    },
  });
}

test("generateText", async (t) => {
  await bothProviders(t, async (provider) => {
    const answer = await generateText({
      ...settings, model: provider("m"), system: "Be brief.", prompt: "hi",
      temperature: 0.5, topP: 0.9, seed: 1, presencePenalty: 0.1, frequencyPenalty: 0.1,
      stopSequences: ["\n\n\n"], maxOutputTokens: 100,
    });
    assert.equal(answer.text, "Hello there. Bye");
    assert.equal(answer.finishReason, "stop");
    assert.equal(answer.usage.outputTokens, 4);
    assert.ok(answer.usage.inputTokens > 4);
    assert.equal(answer.usage.totalTokens, answer.usage.inputTokens + 4);
    assert.match(answer.response.id, /^chatcmpl-/);
    assert.equal(answer.response.modelId, "m");
    assert.deepEqual(answer.warnings ?? [], []);
  });
});

test("streamText", async (t) => {
  await bothProviders(t, async (provider) => {
    const stream = streamText({ ...settings, model: provider("m"), prompt: "hi" });
    const parts = [];
    for await (const part of stream.textStream) parts.push(part);
    assert.equal(parts.join(""), "Hello there. Bye");
    assert.equal(parts.length, 4);
    assert.equal(await stream.finishReason, "stop");
    const unary = await generateText({ ...settings, model: provider("m"), prompt: "hi" });
    const { raw: _, ...usage } = await stream.usage;
    const { raw: __, ...expected } = unary.usage;
    assert.deepEqual(usage, expected);
    assert.equal(usage.outputTokens, 4);
  });
});

test("text in other scripts", async (t) => {
  await bothProviders(t, async (provider) => {
    const stream = streamText({ ...settings, model: provider("m"), prompt: "umlauts" });
    assert.equal(await stream.text, "Grüße 👋🏽 aus Zürich");
  });
});

test("a limit", async (t) => {
  await bothProviders(t, async (provider) => {
    const request = { ...settings, model: provider("m"), prompt: "hi", maxOutputTokens: 2 };
    const answer = await generateText(request);
    assert.deepEqual([answer.text, answer.finishReason], ["Hello", "length"]);
    const stream = streamText(request);
    assert.deepEqual([await stream.text, await stream.finishReason], ["Hello", "length"]);
  });
});

test("reasoning is shown in DeepInfra's dialect, hidden in OpenAI's", async () => {
  const request = { ...settings, prompt: "think first" };
  const shown = await generateText({ ...request, model: deepinfra("thinker") });
  assert.deepEqual([shown.reasoningText, shown.text], ["Six times seven.", "It is 42."]);
  const stream = streamText({ ...request, model: deepinfra("thinker") });
  const kinds = [];
  for await (const { type } of stream.fullStream) if (kinds.at(-1) !== type) kinds.push(type);
  assert.deepEqual(
    kinds.filter((type) => /^(reasoning|text)/.test(type)),
    ["reasoning-start", "reasoning-delta", "reasoning-end", "text-start", "text-delta", "text-end"],
  );
  assert.equal(await stream.reasoningText, "Six times seven.");
  const hidden = await generateText({ ...request, model: openai("thinker") });
  assert.deepEqual([hidden.reasoningText, hidden.text], [undefined, "It is 42."]);
  const reasoning =
    hidden.usage.outputTokenDetails?.reasoningTokens ?? hidden.usage.reasoningTokens;
  assert.ok(reasoning > 0);
});

test("reasoning effort", async () => {
  const low = await generateText({
    ...settings, model: deepinfra("thinker"), prompt: "think first",
    providerOptions: { deepinfra: { reasoningEffort: "low" } },
  });
  assert.equal(low.reasoningText, "Six times seven.");
  await assert.rejects(
    generateText({
      ...settings, model: deepinfra("thinker"), prompt: "hi",
      providerOptions: { deepinfra: { reasoningEffort: "enormous" } },
    }),
    (error) => APICallError.isInstance(error) && error.statusCode === 422,
  );
});

test("a loop of tools", async (t) => {
  await bothProviders(t, async (provider) => {
    const seen = [];
    const answer = await generateText({
      ...settings, model: provider("m"), prompt: "weather in Oslo",
      tools: { weather: weather(seen) }, stopWhen: stepCountIs(3),
    });
    assert.deepEqual(seen, ["Oslo"]);
    assert.equal(answer.text, "It is 12 degrees in Oslo.");
    assert.deepEqual(answer.steps.map((step) => step.finishReason), ["tool-calls", "stop"]);
  });
});

test("a streamed loop of tools with two calls", async (t) => {
  await bothProviders(t, async (provider) => {
    const seen = [];
    const stream = streamText({
      ...settings, model: provider("m"), prompt: "two cities",
      tools: { weather: weather(seen) }, stopWhen: stepCountIs(3),
    });
    const inputs = {};
    for await (const part of stream.fullStream) {
      if (part.type === "tool-input-delta") {
        inputs[part.id] = (inputs[part.id] ?? "") + part.delta;
      }
    }
    assert.deepEqual(seen, ["Oslo", "Łódź"]);
    assert.deepEqual(Object.values(inputs).map((text) => JSON.parse(text)), [
      { city: "Oslo" }, { city: "Łódź" },
    ]);
    const steps = await stream.steps;
    assert.equal(steps[0].text.trim(), "Let me look.");
    assert.equal(steps.at(-1).text, "It is 12 degrees in Oslo.");
  });
});

test("tool choice", async (t) => {
  await bothProviders(t, async (provider, name) => {
    const request = {
      ...settings, model: provider("m"), prompt: "weather in Oslo", tools: { weather: weather([]) },
    };
    const named = await generateText({
      ...request, toolChoice: { type: "tool", toolName: "weather" },
    });
    assert.equal(named.toolCalls[0].toolName, "weather");
    assert.equal(named.finishReason, name === "openai" ? "stop" : "tool-calls");
    const required = await generateText({ ...request, toolChoice: "required" });
    assert.deepEqual(required.toolCalls[0].input, { city: "Oslo" });
    assert.equal(required.finishReason, "tool-calls");
    const none = await generateText({ ...request, toolChoice: "none" });
    assert.deepEqual(none.toolCalls, []);
  });
});

test("structured output", async (t) => {
  await bothProviders(t, async (provider) => {
    const request = {
      ...settings, model: provider("m"), prompt: "a person",
      output: Output.object({ schema: Person }),
    };
    const answer = await generateText(request);
    assert.deepEqual(answer.output, { name: "Ada", age: 36 });
    const partial = [];
    const stream = streamText(request);
    for await (const part of stream.partialOutputStream) partial.push(part);
    assert.deepEqual(partial.at(-1), { name: "Ada", age: 36 });
    assert.ok(partial.length > 1);
  });
});

test("generateObject and streamObject", async (t) => {
  await bothProviders(t, async (provider) => {
    const request = { ...settings, model: provider("m"), prompt: "a person", schema: Person };
    const answer = await generateObject(request);
    assert.deepEqual(answer.object, { name: "Ada", age: 36 });
    assert.ok(answer.usage.outputTokens > 0);
    const stream = streamObject(request);
    const partial = [];
    for await (const part of stream.partialObjectStream) partial.push(part);
    assert.deepEqual(await stream.object, { name: "Ada", age: 36 });
    assert.ok(partial.length > 1);
  });
});

test("a JSON object where the provider was not told of schemas", async () => {
  const answer = await generateText({
    ...settings, model: loose("m"), prompt: "a person, in JSON",
    output: Output.object({ schema: Person }),
  });
  assert.deepEqual(answer.output, { name: "Ada", age: 36 });
});

test("an answer that is cut is no object", async () => {
  await assert.rejects(
    generateText({
      ...settings, model: openai("m"), prompt: "a person", maxOutputTokens: 2,
      output: Output.object({ schema: Person }),
    }).then((answer) => answer.output),
    (error) => NoObjectGeneratedError.isInstance(error) || /No output/.test(error.message),
  );
});

test("a conversation with everything in it", async (t) => {
  await bothProviders(t, async (provider) => {
    const toolCallId = "call_1";
    const answer = await generateText({
      ...settings, model: provider("m"), system: "Be brief.", tools: { weather: weather([]) },
      messages: [
        { role: "user", content: [{ type: "text", text: "weather" }, { type: "text", text: "?" }] },
        {
          role: "assistant",
          content: [
            { type: "text", text: "Let me look." },
            { type: "tool-call", toolCallId, toolName: "weather", input: { city: "Oslo" } },
          ],
        },
        {
          role: "tool",
          content: [
            {
              type: "tool-result", toolCallId, toolName: "weather",
              output: { type: "json", value: { weather: "12 degrees" } },
            },
          ],
        },
      ],
    });
    assert.equal(answer.text, "It is 12 degrees in Oslo.");
  });
});

test("thoughts of an earlier turn are sent back", async () => {
  const first = await generateText({
    ...settings, model: deepinfra("thinker"), prompt: "think first",
  });
  const second = await generateText({
    ...settings, model: deepinfra("thinker"),
    messages: [
      { role: "user", content: "think firstly" },
      ...first.response.messages,
      { role: "user", content: "Ada is my name" },
    ],
  });
  assert.equal(second.finishReason, "stop");
  assert.match(second.text, /./);
});

test("a refusal", async (t) => {
  await bothProviders(t, async (provider, name) => {
    const request = { ...settings, model: provider("m"), prompt: "no thanks" };
    const expected = ["I cannot.", name === "openai" ? "content-filter" : "stop"];
    const answer = await generateText(request);
    assert.deepEqual([answer.text, answer.finishReason], expected);
    const stream = streamText(request);
    assert.deepEqual([await stream.text, await stream.finishReason], expected);
  });
});

test("usage is told without being asked for in DeepInfra's dialect alone", async () => {
  const asked = streamText({ ...settings, model: loose("m"), prompt: "hi" });
  assert.equal((await asked.usage).outputTokens, undefined);
  const told = streamText({ ...settings, model: deepinfra("m"), prompt: "hi" });
  assert.equal((await told.usage).outputTokens, 4);
});

test("errors", async (t) => {
  await bothProviders(t, async (provider, name) => {
    await assert.rejects(
      generateText({ ...settings, model: provider("nope"), prompt: "hi" }),
      (error) => APICallError.isInstance(error) && error.statusCode === 404 &&
        /nope/.test(error.message) && error.isRetryable === false,
    );
    await assert.rejects(
      generateText({ ...settings, model: provider("m"), prompt: "hi", temperature: 3 }),
      (error) => error.statusCode === (name === "openai" ? 400 : 422) &&
        /temperature/.test(error.message),
    );
    await assert.rejects(
      generateText({ ...settings, model: provider("m"), prompt: "break now" }),
      (error) => error.statusCode === 500 && error.isRetryable === true,
    );
  });
});

test("an error in a stream is a part of it", async (t) => {
  await bothProviders(t, async (provider) => {
    const stream = streamText({ ...settings, model: provider("m"), prompt: "break later" });
    const parts = [];
    for await (const part of stream.fullStream) parts.push(part);
    const text = parts.filter(({ type }) => type === "text-delta").map((part) => part.text ?? part.delta);
    assert.equal(text.join(""), "abc");
    assert.ok(parts.some(({ type }) => type === "error"));
  });
});

test("abort", async (t) => {
  await bothProviders(t, async (provider) => {
    const controller = new AbortController();
    const stream = streamText({
      ...settings, model: provider("m"), prompt: "slowly", abortSignal: controller.signal,
    });
    const kinds = [];
    for await (const { type } of stream.fullStream) {
      kinds.push(type);
      if (type === "text-delta") controller.abort();
    }
    assert.ok(kinds.includes("abort") && !kinds.includes("finish"));
  });
});
