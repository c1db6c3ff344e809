// The official SDK for Node against a server at $REJOINDER_URL.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const url = process.env.REJOINDER_URL;
const apiKey = process.env.REJOINDER_KEY;
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
const deepinfra = new OpenAI({ baseURL: `${url}/v1/openai`, apiKey, maxRetries: 0 });

const say = (content) => [{ role: "user", content }];
const Weather = z.object({ city: z.string() });
const tools = [zodFunction({ name: "weather", parameters: Weather })];
const Person = z.object({ name: z.string(), age: z.number() });

// What a caller sees of an answer: ids of calls differ from request to request.
function essence(completion) {
  return {
    model: completion.model,
    object: completion.object,
    fingerprint: completion.system_fingerprint,
    tier: completion.service_tier,
    choices: completion.choices.map(({ index, finish_reason, logprobs, message }) => ({
      index,
      finish_reason,
      logprobs: logprobs?.content ?? logprobs?.refusal ?? null,
      content: message.content ?? null,
      refusal: message.refusal ?? null,
      role: message.role,
      calls: (message.tool_calls ?? []).map((call) => [
        call.type, call.function.name, call.function.arguments,
      ]),
    })),
  };
}

test("create", async () => {
  const { data, response, request_id } = await client.chat.completions
    .create({ model: "m", messages: say("hi") })
    .withResponse();
  assert.equal(data.choices[0].message.content, "Hello there. Bye");
  assert.equal(data.choices[0].finish_reason, "stop");
  assert.equal(data.usage.completion_tokens, 4);
  assert.equal(data.usage.total_tokens, data.usage.prompt_tokens + 4);
  assert.match(request_id, /./);
  assert.equal(response.headers.get("x-request-id"), request_id);
});

test("create with stream iterates chunks and ends with usage", async () => {
  const stream = await client.chat.completions.create({
    model: "m", messages: say("umlauts"), stream: true, stream_options: { include_usage: true },
  });
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  const text = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
  assert.equal(text, "Grüße 👋🏽 aus Zürich");
  assert.deepEqual(chunks.at(-1).choices, []);
  assert.ok(chunks.at(-1).usage.completion_tokens > 0);
  assert.ok(chunks.slice(0, -1).every((chunk) => chunk.usage === null));
});

const BODIES = {
  plain: { messages: say("hi") },
  "n=3": { messages: say("hi"), n: 3 },
  logprobs: { messages: say("hi"), logprobs: true, top_logprobs: 2 },
  "a stop string": { messages: say("hi"), stop: [" there"] },
  "a limit": { messages: say("hi"), max_completion_tokens: 2 },
  "one call": { messages: say("weather in Oslo"), tools },
  "text and two calls": { messages: say("two cities"), tools },
  "a forced call": {
    messages: say("weather in Oslo"), tools, tool_choice: "required", parallel_tool_calls: false,
  },
  "a named call": {
    messages: say("weather in Oslo"), tools,
    tool_choice: { type: "function", function: { name: "weather" } },
  },
  refusal: { messages: say("no thanks") },
  "a schema": { messages: say("a person"), response_format: zodResponseFormat(Person, "person") },
  "a json object": { messages: say("a person, in json"), response_format: { type: "json_object" } },
  "a tier": { messages: say("hi"), service_tier: "priority" },
  moderation: { messages: say("hi"), moderation: { model: "omni-moderation-latest" } },
};

test("finalChatCompletion equals the unary answer", async (t) => {
  for (const [name, body] of Object.entries(BODIES)) {
    await t.test(name, async () => {
      const unary = await client.chat.completions.create({ model: "m", ...body });
      const stream = client.chat.completions.stream({
        model: "m", ...body, stream_options: { include_usage: true },
      });
      const final = await stream.finalChatCompletion();
      assert.deepEqual(essence(final), essence(unary));
      assert.deepEqual(final.usage, unary.usage);
    });
  }
});

test("the stream helper's events", async () => {
  const seen = { content: "", chunks: 0, events: [] };
  const stream = client.chat.completions
    .stream({ model: "m", messages: say("hi"), logprobs: true })
    .on("content", (delta, snapshot) => {
      seen.content += delta;
      assert.equal(seen.content, snapshot);
    })
    .on("content.done", () => seen.events.push("content.done"))
    .on("logprobs.content.done", () => seen.events.push("logprobs.content.done"))
    .on("chunk", () => (seen.chunks += 1));
  assert.equal(await stream.finalContent(), "Hello there. Bye");
  assert.equal(seen.content, "Hello there. Bye");
  assert.ok(seen.chunks >= 6);
  assert.deepEqual(seen.events.sort(), ["content.done", "logprobs.content.done"]);
});

test("the stream helper's events of a refusal", async () => {
  let refusal = "";
  const stream = client.chat.completions
    .stream({ model: "m", messages: say("no thanks") })
    .on("refusal.delta", ({ delta }) => (refusal += delta));
  const message = await stream.finalMessage();
  assert.equal(message.refusal, "I cannot.");
  assert.equal(refusal, "I cannot.");
});

test("the stream helper's events of calls", async () => {
  const fragments = {};
  const done = [];
  const stream = client.chat.completions
    .stream({ model: "m", messages: say("two cities"), tools })
    .on("tool_calls.function.arguments.delta", ({ index, arguments_delta }) => {
      fragments[index] = (fragments[index] ?? "") + arguments_delta;
    })
    .on("tool_calls.function.arguments.done", ({ name, parsed_arguments }) => {
      done.push([name, parsed_arguments.city]);
    });
  await stream.done();
  assert.deepEqual(Object.values(fragments).map((text) => JSON.parse(text).city), ["Oslo", "Łódź"]);
  assert.deepEqual(done, [["weather", "Oslo"], ["weather", "Łódź"]]);
});

test("a stream read again through toReadableStream", async () => {
  const stream = client.chat.completions.stream({ model: "m", messages: say("hi") });
  const { ChatCompletionStream } = await import("openai/lib/ChatCompletionStream");
  const again = ChatCompletionStream.fromReadableStream(stream.toReadableStream());
  assert.equal(await again.finalContent(), "Hello there. Bye");
});

const runnable = (seen) => ({
  type: "function",
  function: {
    name: "weather",
    parameters: { type: "object", properties: { city: { type: "string" } } },
    parse: JSON.parse,
    function: ({ city }) => {
      seen.push(city);
      return "12 degrees";
    },
  },
});

test("runTools", async () => {
  const seen = [];
  const runner = client.chat.completions.runTools({
    model: "m", messages: say("weather in Oslo"), tools: [runnable(seen)],
  });
  assert.equal(await runner.finalContent(), "It is 12 degrees in Oslo.");
  assert.deepEqual(seen, ["Oslo"]);
  assert.equal((await runner.allChatCompletions()).length, 2);
  assert.ok((await runner.totalUsage()).completion_tokens > 0);
});

test("runTools with a stream and two calls", async () => {
  const seen = [];
  const runner = client.chat.completions.runTools({
    model: "m", messages: say("two cities"), tools: [runnable(seen)], stream: true,
  });
  assert.equal(await runner.finalContent(), "It is 12 degrees in Oslo.");
  assert.deepEqual(seen, ["Oslo", "Łódź"]);
});

test("parse", async () => {
  const person = await client.chat.completions.parse({
    model: "m", messages: say("a person"), response_format: zodResponseFormat(Person, "person"),
  });
  assert.deepEqual(person.choices[0].message.parsed, { name: "Ada", age: 36 });
  const call = await client.chat.completions.parse({
    model: "m", messages: say("weather in Oslo"), tools,
  });
  assert.deepEqual(call.choices[0].message.tool_calls[0].function.parsed_arguments, {
    city: "Oslo",
  });
  const refused = await client.chat.completions.parse({
    model: "m", messages: say("no thanks"), response_format: zodResponseFormat(Person, "person"),
  });
  assert.equal(refused.choices[0].message.refusal, "I cannot.");
  await assert.rejects(
    client.chat.completions.parse({ model: "m", messages: say("hi"), max_completion_tokens: 2 }),
    OpenAI.LengthFinishReasonError ?? /length/,
  );
});

test("answers are sent back as the SDK made them", async (t) => {
  const ways = {
    create: (body) => client.chat.completions.create(body),
    parse: (body) => client.chat.completions.parse(body),
    stream: (body) => client.chat.completions.stream(body).finalChatCompletion(),
  };
  for (const name of ["plain", "one call", "text and two calls", "refusal", "a schema"]) {
    for (const [way, ask] of Object.entries(ways)) {
      await t.test(`${name}, ${way}`, async () => {
        const body = { model: "m", ...BODIES[name] };
        const { message } = (await ask(body)).choices[0];
        const results = (message.tool_calls ?? []).map(({ id }) => ({
          role: "tool", tool_call_id: id, content: "12 degrees",
        }));
        const messages = [...body.messages, message, ...results, ...say("Ada is my name")];
        const again = await client.chat.completions.create({ ...body, messages });
        assert.equal(again.choices[0].finish_reason, "stop");
      });
    }
  }
});

test("errors are typed", async () => {
  const wrong = new OpenAI({ baseURL: `${url}/v1`, apiKey: "wrong", maxRetries: 0 });
  const create = (body, by = client) =>
    by.chat.completions.create({ model: "m", messages: say("hi"), ...body });
  await assert.rejects(create({}, wrong), (error) => {
    assert.ok(error instanceof OpenAI.AuthenticationError);
    assert.equal(error.code, "invalid_api_key");
    return true;
  });
  await assert.rejects(create({ model: "nope" }), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.code, "model_not_found");
    return true;
  });
  await assert.rejects(create({ temperature: 3 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.deepEqual([error.param, error.type], ["temperature", "invalid_request_error"]);
    assert.ok(error.requestID);
    return true;
  });
  await assert.rejects(create({ stream: true, n: 1000 }), OpenAI.BadRequestError);
  await assert.rejects(create({ messages: say("break now") }), OpenAI.InternalServerError);
});

test("an error in a stream is thrown after the text before it", async () => {
  const stream = await client.chat.completions.create({
    model: "m", messages: say("break later"), stream: true,
  });
  let text = "";
  await assert.rejects(async () => {
    for await (const chunk of stream) text += chunk.choices[0].delta.content ?? "";
  }, OpenAI.APIError);
  assert.equal(text, "abc");
  await assert.rejects(
    client.chat.completions.stream({ model: "m", messages: say("break later") }).done(),
    OpenAI.APIError,
  );
});

test("a server error is tried again", async () => {
  let tries = 0;
  const stubborn = new OpenAI({
    baseURL: `${url}/v1`, apiKey, maxRetries: 1,
    fetch: (...args) => {
      tries += 1;
      return fetch(...args);
    },
  });
  await assert.rejects(
    stubborn.chat.completions.create({ model: "m", messages: say("break now") }),
    OpenAI.InternalServerError,
  );
  assert.equal(tries, 2);
});

test("abort", async () => {
  const stream = client.chat.completions.stream({ model: "m", messages: say("slowly") });
  stream.once("content", () => stream.abort());
  await assert.rejects(stream.done(), OpenAI.APIUserAbortError);
  const after = await client.chat.completions.create({ model: "m", messages: say("hi") });
  assert.equal(after.choices[0].message.content, "Hello there. Bye");
});

test("models", async () => {
  const ids = [];
  for await (const model of client.models.list()) ids.push(model.id);
  assert.deepEqual(ids, ["m", "thinker"]);
  assert.equal((await client.models.retrieve("m")).id, "m");
});

test("stored completions", async () => {
  const made = await client.chat.completions.create({
    model: "m", messages: say("hi"), store: true, metadata: { a: "b" },
  });
  assert.equal((await client.chat.completions.retrieve(made.id)).id, made.id);
  const changed = await client.chat.completions.update(made.id, { metadata: { a: "c" } });
  assert.deepEqual(changed.metadata, { a: "c" });
  const ids = [];
  for await (const one of client.chat.completions.list({ metadata: { a: "c" } })) ids.push(one.id);
  assert.ok(ids.includes(made.id));
  const shown = [];
  for await (const one of client.chat.completions.messages.list(made.id)) shown.push(one.content);
  assert.deepEqual(shown, ["hi"]);
  assert.equal((await client.chat.completions.delete(made.id)).deleted, true);
  await assert.rejects(client.chat.completions.retrieve(made.id), OpenAI.NotFoundError);
});

test("reasoning is hidden and counted", async () => {
  const answer = await client.chat.completions.create({
    model: "thinker", messages: say("think first"),
  });
  assert.equal(answer.choices[0].message.content, "It is 42.");
  assert.ok(!("reasoning_content" in answer.choices[0].message));
  assert.ok(answer.usage.completion_tokens_details.reasoning_tokens > 0);
});

test("DeepInfra's dialect", async () => {
  const body = { model: "thinker", messages: say("think first") };
  const unary = await deepinfra.chat.completions.create(body);
  assert.equal(unary.choices[0].message.reasoning_content, "Six times seven.");
  const stream = await deepinfra.chat.completions.create({ ...body, stream: true });
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  const joined = (key) => chunks.map((chunk) => chunk.choices[0].delta[key] ?? "").join("");
  assert.equal(joined("reasoning_content"), "Six times seven.");
  assert.equal(joined("content"), "It is 42.");
  assert.equal(chunks.at(-1).choices[0].finish_reason, "stop");
  assert.deepEqual(chunks.at(-1).usage, unary.usage);
  assert.ok(unary.usage.estimated_cost > 0);
  const final = await deepinfra.chat.completions
    .stream({ model: "m", messages: say("two cities"), tools })
    .finalChatCompletion();
  assert.equal(final.choices[0].message.tool_calls.length, 2);
  await assert.rejects(
    deepinfra.chat.completions.create({ ...body, temperature: 3 }),
    OpenAI.UnprocessableEntityError,
  );
});
