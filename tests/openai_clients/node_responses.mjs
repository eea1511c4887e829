// Run by the tests: clients of Node that speak the Responses interface tell what they saw.
import { createOpenAI } from "@ai-sdk/openai";
import { generateObject, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";

const [baseURL, apiKey] = process.argv.slice(2);
const QUESTION = "What is 6 times 7?";
const AS_JSON = "What is 6 times 7, as JSON?";
const BY_TOOL = "What is 40 plus 2? Use the tool.";
const BY_TEXT = "Shout that it is 42.";
const NUMBERS = {
  type: "object",
  properties: { a: { type: "integer" }, b: { type: "integer" } },
  required: ["a", "b"],
};
const tell = (client, seen) => console.log(JSON.stringify({ client, ...seen }));

async function runOpenAI() {
  const { responses } = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
  const whole = await responses.create({ model: "reasond", input: QUESTION });
  let streamed = "";
  for await (const event of await responses.create({ model: "reasond", input: QUESTION, stream: true }))
    if (event.type === "response.output_text.delta") streamed += event.delta;
  const tools = [{ type: "function", name: "add", description: "Adds.", parameters: NUMBERS, strict: false }];
  const asked = await responses.create({ model: "reasond", input: BY_TOOL, tools });
  const call = asked.output.find((item) => item.type === "function_call");
  const result = { type: "function_call_output", call_id: call.call_id, output: "42" };
  const used = await responses.create({
    model: "reasond",
    input: [{ role: "user", content: BY_TOOL }, ...asked.output, result],
    tools,
  });
  const wrong = await responses.create({ model: "nothing", input: QUESTION }).catch((error) => error);
  tell("openai-node", { answer: whole.output_text, streamed, by_tool: used.output_text });
  tell("openai-node", { error: [wrong.status, wrong.code] });
}

async function runAiSdk() {
  const provider = createOpenAI({ baseURL, apiKey });
  const whole = await generateText({ model: provider("reasond"), prompt: QUESTION, maxRetries: 0 });
  const add = tool({ description: "Adds.", inputSchema: jsonSchema(NUMBERS), execute: async ({ a, b }) => a + b });
  const agent = streamText({ model: provider("reasond"), prompt: BY_TOOL, tools: { add }, stopWhen: stepCountIs(4) });
  await agent.consumeStream();
  const shout = provider.tools.customTool({ name: "shout", description: "Shouts.", execute: async (text) => text.toUpperCase() });
  const loud = { model: provider("reasond"), prompt: BY_TEXT, tools: { shout }, stopWhen: stepCountIs(4) };
  tell("ai-sdk", { by_text: (await generateText(loud)).text });
  const schema = jsonSchema({ type: "object", properties: { n: { type: "integer" } }, required: ["n"] });
  const exact = { model: provider("reasond"), system: "You are exact.", prompt: AS_JSON, schema };
  const parsed = (await generateObject(exact)).object.n;
  tell("ai-sdk", { answer: whole.text, reasoning: whole.reasoningText, by_tool: await agent.text, parsed });
}

await runOpenAI();
await runAiSdk();
