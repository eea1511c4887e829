// Run by the tests: the clients of Node talk to a server, and each tells what it saw, as python_clients.py does.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";

const [baseURL, apiKey] = process.argv.slice(2);
const QUESTION = "What is 6 times 7?";
const SLOWLY = "What is 6 times 7? Think slowly.";
const FOREVER = "What is 6 times 7? Think forever.";
const AS_JSON = "What is 6 times 7, as JSON?";
const BY_TOOL = "What is 40 plus 2? Use the tool.";
const IN_WINDOWS = "in-windows";

const NUMBERS = {
  type: "object",
  properties: { a: { type: "integer" }, b: { type: "integer" } },
  required: ["a", "b"],
};
const tell = (client, seen) => console.log(JSON.stringify({ client, ...seen }));
const said = (content) => [{ role: "user", content }];

async function runOpenAI() {
  const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
  const completions = client.chat.completions;
  const whole = await completions.create({ model: "reasond", messages: said(QUESTION) });
  const { content, reasoning } = whole.choices[0].message;
  const models = (await client.models.list()).data.map((model) => model.id);
  tell("openai-node", { answer: content, reasoning, tokens: whole.usage.total_tokens, models });
  let [steps, answer, tokens] = ["", "", 0];
  const options = { stream: true, stream_options: { include_usage: true } };
  for await (const chunk of await completions.create({ model: IN_WINDOWS, messages: said(SLOWLY), ...options })) {
    tokens = chunk.usage?.total_tokens ?? tokens;
    const delta = chunk.choices[0]?.delta ?? {};
    if (delta.reasoning && !steps) tell("openai-node", { first_step: delta.reasoning });
    steps += delta.reasoning ?? "";
    answer += delta.content ?? "";
  }
  tell("openai-node", { streamed: answer, steps, streamed_tokens: tokens });
  const wrong = await completions.create({ model: "reasond", messages: said(QUESTION), n: 9 }).catch((error) => error);
  tell("openai-node", { error: [wrong.constructor.name, wrong.code, wrong.param] });
  const sums = [];
  const add = {
    name: "add",
    description: "Adds.",
    parse: JSON.parse,
    parameters: NUMBERS,
    function: ({ a, b }) => (sums.push([a, b]), a + b),
  };
  const runner = completions.runTools({
    model: "reasond",
    messages: said(BY_TOOL),
    tools: [{ type: "function", function: add }],
  });
  tell("openai-node", { by_tool: await runner.finalContent(), sums });
  const left = await completions.create({ model: IN_WINDOWS, messages: said(FOREVER), stream: true });
  for await (const chunk of left) if (chunk.choices[0].delta.reasoning) break;
  tell("openai-node", { has_left: true });
}

async function runAiSdk() {
  const provider = createOpenAICompatible({ name: "reasond", baseURL, apiKey, includeUsage: true });
  const whole = await generateText({ model: provider("reasond"), prompt: QUESTION, maxRetries: 0 });
  tell("ai-sdk", { answer: whole.text, reasoning: whole.reasoningText, tokens: whole.usage.totalTokens });
  let [steps, answer] = ["", ""];
  const streamed = streamText({ model: provider(IN_WINDOWS), prompt: SLOWLY, maxRetries: 0 });
  for await (const part of streamed.fullStream) {
    if (part.type === "reasoning-delta") {
      if (part.text && !steps) tell("ai-sdk", { first_step: part.text });
      steps += part.text;
    } else if (part.type === "text-delta") answer += part.text;
  }
  tell("ai-sdk", { streamed: answer, steps, streamed_tokens: (await streamed.usage).totalTokens });
  const exact = createOpenAICompatible({ name: "reasond", baseURL, apiKey, supportsStructuredOutputs: true });
  const schema = jsonSchema({ type: "object", properties: { n: { type: "integer" } }, required: ["n"] });
  const parsed = await generateObject({ model: exact("reasond"), system: "You are exact.", prompt: AS_JSON, schema });
  tell("ai-sdk", { parsed: parsed.object.n });
  const sums = [];
  const execute = async ({ a, b }) => (sums.push([a, b]), a + b);
  const add = tool({ description: "Adds.", inputSchema: jsonSchema(NUMBERS), execute });
  const agent = streamText({
    model: provider("reasond"),
    prompt: BY_TOOL,
    tools: { add },
    stopWhen: stepCountIs(4),
  });
  await agent.consumeStream();
  tell("ai-sdk", { by_tool: await agent.text, sums });
  let found;
  const wrong = streamText({ model: provider("reasond/nothing"), prompt: QUESTION, maxRetries: 0, onError() {} });
  for await (const part of wrong.fullStream) if (part.type === "error") found = part.error;
  tell("ai-sdk", { error: [found.statusCode, found.data?.error?.code] });
}

await runOpenAI();
await runAiSdk();
