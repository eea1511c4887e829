// The clients of MCP for TypeScript, unmodified: what each sees of a server. Prints one line of JSON.
import { Client as Client2, StreamableHTTPClientTransport as Transport2 } from "@modelcontextprotocol/client";
import { Client as Client1 } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport as Transport1 } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const url = new URL(process.env.REASOND_MCP_URL);
const requestInit = { headers: { authorization: `Bearer ${process.env.REASOND_TOKEN}` } };
const question = { query: "What is 6 times 7?" };

async function see(Client, Transport, options) {
  const client = new Client({ name: "test", version: "1" }, options);
  await client.connect(new Transport(url, { requestInit }));
  const steps = [];
  const call = (name, args, more) =>
    Client === Client1
      ? client.callTool({ name, arguments: args }, undefined, more)
      : client.callTool({ name, arguments: args }, more);
  const tools = (await client.listTools()).tools.map((tool) => tool.name);
  const result = await call("reason", question, { onprogress: (step) => steps.push(step.message) });
  const wrong = await call("reason", { query: "" });
  const { resources } = await client.listResources();
  const read = await client.readResource({ uri: resources[0].uri });
  await client.close();
  return {
    has: tools.includes("reason_react"),
    answer: result.content[0].text,
    step: steps.at(-1),
    wrong: [wrong.isError, wrong.content[0].text.split(":")[0]],
    read: JSON.parse(read.contents[0].text).result.answer,
  };
}

const seen = {
  sdk: await see(Client1, Transport1),
  client: await see(Client2, Transport2),
  modern: await see(Client2, Transport2, { versionNegotiation: { mode: "auto" } }),
};
console.log(JSON.stringify(seen));
