// OpenAI's JavaScript SDK as npm has it, through the gateway: answers, streams, pictures, refusals.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";

import OpenAI, { APIError, AuthenticationError, BadRequestError, NotFoundError } from "openai";

const { GATEWAY_URL, KEYED_URL, KEYED_KEY, METRICS_URL, PICTURES } = process.env;
const sdk = new OpenAI({ baseURL: `${GATEWAY_URL}/v1`, apiKey: "none", maxRetries: 0 });
const text = [{ role: "user", content: "What colour is the circle?" }];
const drawing = { model: "demo-draw", prompt: "a red circle", size: "64x64" };

async function seen(question) {
  const data = (await readFile(join(PICTURES, "chart.png"))).toString("base64");
  const picture = { type: "image_url", image_url: { url: `data:image/png;base64,${data}`, detail: "low" } };
  return [{ role: "user", content: [picture, { type: "text", text: question }] }];
}

async function figure(name) {
  const lines = (await (await fetch(METRICS_URL)).text()).split("\n");
  return Number(lines.find((line) => line.startsWith(`${name} `))?.split(" ").at(-1) ?? 0);
}

async function eventually(holds, seconds = 20) {
  const end = Date.now() + seconds * 1000;
  while (!(await holds())) {
    assert.ok(Date.now() < end, "it did not come to hold");
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}

test("an answer and its stream say the same, and count the same", async () => {
  const asked = { model: "demo", messages: await seen("Which bar is the tallest?"), max_tokens: 8 };
  const whole = await sdk.chat.completions.create(asked);
  let streamed = "";
  let usage;
  for await (const chunk of await sdk.chat.completions.create({
    ...asked,
    stream: true,
    stream_options: { include_usage: true },
  })) {
    streamed += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(streamed, whole.choices[0].message.content);
  assert.equal(usage.prompt_tokens, whole.usage.prompt_tokens);
  assert.ok(usage.prompt_tokens_details.image_tokens > 0);
  assert.equal(whole._request_id, whole.proteus.request_id);
});

test("our own fields go at the top level", async () => {
  const completion = await sdk.chat.completions.create({ model: "demo", messages: text, max_tokens: 4, min_tokens: 4, top_k: 3 });
  assert.equal(completion.usage.completion_tokens, 4);
});

test("the SDK's own reader of streams puts an answer together", async () => {
  const stream = sdk.chat.completions.stream({ model: "demo", messages: text, max_tokens: 6, n: 2 });
  const completion = await stream.finalChatCompletion();
  assert.equal(completion.choices.length, 2);
  assert.ok(completion.choices.every(({ message }) => message.role === "assistant"));
});

test("many ask at once", async () => {
  const asked = { model: "demo", messages: text, max_tokens: 6 };
  const answers = await Promise.all(Array.from({ length: 8 }, () => sdk.chat.completions.create(asked)));
  assert.equal(new Set(answers.map(({ choices }) => choices[0].message.content)).size, 1);
});

test("pictures are drawn, and shown while they are", async () => {
  const { data } = await sdk.images.generate({ ...drawing, n: 2, steps: 3, seed: 7 });
  const magic = data.map(({ b64_json }) => Buffer.from(b64_json, "base64").subarray(1, 4).toString());
  assert.deepEqual(magic, ["PNG", "PNG"]);
  const events = [];
  for await (const event of await sdk.images.generate({ ...drawing, stream: true, partial_images: 2, steps: 3, seed: 7 })) {
    events.push(event);
  }
  assert.equal(events.at(-1).type, "image_generation.completed");
  assert.equal(events.at(-1).b64_json, data[0].b64_json);
});

test("models are listed", async () => {
  const names = [];
  for await (const { id } of sdk.models.list()) names.push(id);
  for (const name of ["demo", "demo-draw", "auto"]) assert.ok(names.includes(name), name);
  assert.equal((await sdk.models.retrieve("demo")).object, "model");
});

test("refusals are the SDK's own errors, with code, param and fix", async () => {
  const asked = { model: "demo", messages: text };
  await assert.rejects(sdk.chat.completions.create({ ...asked, model: "gpt-4o" }), NotFoundError);
  await assert.rejects(sdk.chat.completions.create({ ...asked, max_tokens: 1e6 }), BadRequestError);
  await assert.rejects(sdk.chat.completions.create({ ...asked, tools: [] }), (error) => {
    assert.ok(error instanceof APIError);
    assert.deepEqual([error.status, error.code, error.param], [422, "unsupported_field", "tools"]);
    assert.match(error.message, /fix: /);
    return true;
  });
});

test("a key is asked for where there are tenants", async () => {
  const keyed = (apiKey) => new OpenAI({ baseURL: `${KEYED_URL}/v1`, apiKey, maxRetries: 0 });
  const asked = { model: "demo", messages: text, max_tokens: 2 };
  assert.ok((await keyed(KEYED_KEY).chat.completions.create(asked)).choices.length);
  await assert.rejects(keyed("pk-wrong").chat.completions.create(asked), AuthenticationError);
});

test("an abort stops the work at the server", async () => {
  const cancelled = 'proteus_requests_total{outcome="cancelled"}';
  const before = await figure(cancelled);
  const stream = await sdk.chat.completions.create({ model: "demo", messages: text, max_tokens: 900, min_tokens: 900, stream: true });
  for await (const _ of stream) {
    stream.controller.abort();
  }
  await eventually(async () => (await figure(cancelled)) > before);
});
