// Run by the tests: clients of Node that speak Anthropic's interface tell what they saw.
import { createAnthropic } from "@ai-sdk/anthropic";
import Anthropic from "@anthropic-ai/sdk";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

// The package tells on the standard output that it does not know the model.
globalThis.AI_SDK_LOG_WARNINGS = false;
const [baseURL, apiKey] = process.argv.slice(2);
const QUESTION = "What is 6 times 7?";
const BY_TOOL = "What is 40 plus 2? Use the tool.";
const NUMBERS = {
  type: "object",
  properties: { a: { type: "integer" }, b: { type: "integer" } },
  required: ["a", "b"],
};
const tell = (client, seen) => console.log(JSON.stringify({ client, ...seen }));

async function runAnthropic() {
  const { messages } = new Anthropic({ baseURL: baseURL.replace(/\/v1$/, ""), apiKey, maxRetries: 0 });
  const base = { model: "reasond", max_tokens: 2000 };
  const user = (content) => ({ role: "user", content });
  const whole = await messages.create({ ...base, messages: [user(QUESTION)] });
  const stream = messages.stream({ ...base, messages: [user(QUESTION)] });
  const streamed = await stream.finalText();
  const tools = [{ name: "add", description: "Adds.", input_schema: NUMBERS }];
  const first = await messages.stream({ ...base, tools, messages: [user(BY_TOOL)] }).finalMessage();
  const call = first.content.at(-1);
  const history = [user(BY_TOOL), { role: "assistant", content: first.content }];
  const result = user([{ type: "tool_result", tool_use_id: call.id, content: "42" }]);
  const used = await messages.create({ ...base, tools, messages: [...history, result] });
  const wrong = await messages.create({ ...base, model: "nothing", messages: [user("x")] }).catch((error) => error);
  tell("anthropic-node", { answer: whole.content[0].text, streamed, by_tool: used.content[0].text });
  tell("anthropic-node", { arguments: call.input, error: [wrong.status, wrong.error.error.type] });
}

async function runAiSdk() {
  const model = createAnthropic({ baseURL, apiKey })("reasond");
  const whole = await generateText({ model, prompt: QUESTION, maxRetries: 0 });
  const add = tool({ description: "Adds.", inputSchema: jsonSchema(NUMBERS), execute: async ({ a, b }) => a + b });
  const agent = streamText({ model, prompt: BY_TOOL, tools: { add }, stopWhen: stepCountIs(4) });
  await agent.consumeStream();
  tell("ai-sdk", { answer: whole.text, by_tool: await agent.text });
}

await runAnthropic();
await runAiSdk();
