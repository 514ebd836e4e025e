// OpenAI's client for Node as its users write it: `node openai_client.mjs URL KEY` in a folder whose node_modules has it.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const require = createRequire(`${process.cwd()}/`);
const OpenAI = require("openai");
const { toFile } = OpenAI;
const [baseURL, apiKey, limitedKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey });
const messages = [{ role: "user", content: "Hi" }];
const tools = [{ type: "function", function: { name: "add", parameters: { type: "object", properties: {} } } }];
const schema = {
  type: "json_schema",
  json_schema: { name: "sum", schema: { type: "object", properties: { answer: { type: "integer" } } } },
};

async function talk() {
  const whole = await client.chat.completions.create({ model: "text", messages });
  assert.equal(whole.choices[0].message.content, "w w w w ");
  assert.ok(whole._request_id);
  const stream = client.chat.completions.stream({
    model: "text",
    messages,
    stream_options: { include_usage: true },
  });
  assert.equal(await stream.finalContent(), "w w w w ");
  assert.equal((await stream.totalUsage()).total_tokens, 11);
  const text = await client.completions.create({ model: "text", prompt: "Hi" });
  assert.equal(text.choices[0].text, "w w w w ");
  const answer = await client.responses.create({ model: "text", input: "Hi" });
  assert.equal(answer.output_text, "w w w w ");
  let said = "";
  for await (const event of await client.responses.create({ model: "text", input: "Hi", stream: true })) {
    if (event.type === "response.output_text.delta") said += event.delta;
  }
  assert.equal(said, "w w w w ");
}

async function call() {
  const said = await client.chat.completions.create({ model: "text", messages, tools });
  const [found] = said.choices[0].message.tool_calls;
  assert.deepEqual(JSON.parse(found.function.arguments), { a: 3, b: 4 });
  const streamed = await client.chat.completions.stream({ model: "text", messages, tools }).finalMessage();
  assert.equal(streamed.tool_calls[0].function.arguments, found.function.arguments);
}

async function structure() {
  const said = await client.chat.completions.parse({ model: "text", messages, response_format: schema });
  assert.deepEqual(JSON.parse(said.choices[0].message.content), { answer: 7 });
}

async function embed() {
  const found = await client.embeddings.create({ model: "vectors", input: ["a", "b"] });
  assert.deepEqual(
    found.data.map((one) => one.embedding.map((x) => Number(x.toFixed(5)))),
    [[0.6, 0.8], [0.6, 0.8]],
  );
}

async function batch() {
  const body = { model: "text", messages };
  const line = (one) => JSON.stringify({ custom_id: one, method: "POST", url: "/v1/chat/completions", body });
  const data = Buffer.from(["a", "b", "c"].map((one) => `${line(one)}\n`).join(""));
  const file = await client.files.create({ file: await toFile(data, "in.jsonl"), purpose: "batch" });
  let found = await client.batches.create({
    input_file_id: file.id,
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
  });
  for (let turn = 0; found.status !== "completed"; turn++) {
    assert.ok(turn < 600, found.status);
    await sleep(100);
    found = await client.batches.retrieve(found.id);
  }
  const rows = (await (await client.files.content(found.output_file_id)).text()).trim().split("\n");
  assert.deepEqual(rows.map((one) => JSON.parse(one).custom_id), ["a", "b", "c"]);
  const listed = [];
  for await (const one of client.files.list({ limit: 1 })) listed.push(one.id);
  assert.ok(listed.includes(file.id) && listed.includes(found.output_file_id));
  assert.equal((await client.files.delete(file.id)).deleted, true);
}

async function wait() {
  const limited = new OpenAI({ baseURL, apiKey: limitedKey });
  for (let turn = 0; turn < 14; turn++) await limited.chat.completions.create({ model: "text", messages });
}

async function fail() {
  const asked = (model, content, more) =>
    client.chat.completions.create({ model, messages: [{ role: "user", content }] }, more);
  await assert.rejects(asked("text", "hang", { timeout: 1000, maxRetries: 0 }), OpenAI.APIConnectionTimeoutError);
  await assert.rejects(asked("none", "Hi"), OpenAI.NotFoundError);
  await assert.rejects(asked("text", "status=500", { maxRetries: 1 }), OpenAI.InternalServerError);
  await assert.rejects(new OpenAI({ baseURL, apiKey: "sk-none" }).models.list(), OpenAI.AuthenticationError);
}

for (const one of [talk, call, structure, embed, batch, wait, fail]) {
  await one();
  console.log(one.name);
}
