// Run by the tests: the client of @a2a-js/sdk tells what it saw over each binding.
import { ClientFactory, ClientFactoryOptions } from "@a2a-js/sdk/client";
import { GrpcTransportFactory } from "@a2a-js/sdk/client/grpc";

const [url, token] = process.argv.slice(2);
const OWN = "urn:reasond:reasoning:v1";
const SEARCH = { name: "search", description: "Searches.", parameters: { type: "object", properties: {} } };
const headers = { authorization: `Bearer ${token}` };
const options = { serviceParameters: headers };
const say = (messageId, content, more = {}) => ({
  tenant: "",
  metadata: undefined,
  configuration: undefined,
  message: {
    messageId,
    role: 1,
    parts: [{ content, metadata: undefined, filename: "", mediaType: "" }],
    contextId: "",
    taskId: "",
    metadata: undefined,
    extensions: [],
    referenceTaskIds: [],
    ...more,
  },
});
const text = (value) => ({ $case: "text", value });
const find = (task, name) => task.artifacts.find((artifact) => artifact.artifactId === name).parts[0].content.value;

for (const binding of ["JSONRPC", "GRPC", "HTTP+JSON"]) {
  const factory = new ClientFactory(
    ClientFactoryOptions.createFrom(ClientFactoryOptions.default, {
      transports: [new GrpcTransportFactory()],
      preferredTransports: [binding],
    }),
  );
  const client = await factory.createFromUrl(url);
  const whole = await client.sendMessage(say(`${binding}-1`, text("What is 6 times 7?")), options);
  const task = whole.payload?.value ?? whole;
  const kinds = [];
  for await (const event of client.sendMessageStream(say(`${binding}-2`, text("What is 6 times 7?")), options)) {
    kinds.push(event.payload?.$case ?? event.kind);
  }
  const asked = say(`${binding}-3`, text("Find it."), { metadata: { [OWN]: { tools: [SEARCH] } } });
  const waiting = await client.sendMessage(asked, options);
  const held = waiting.payload?.value ?? waiting;
  const told = held.status.message.parts[1].content.value;
  const data = { toolResults: [{ callId: told.toolCalls[0].callId, result: { found: 7 } }], etag: told.etag };
  const settle = say(`${binding}-4`, { $case: "data", value: data }, { taskId: held.id });
  const settled = await client.sendMessage(settle, options);
  const found = await client.getTask({ tenant: "", id: held.id }, options);
  const gone = await client.getTask({ tenant: "", id: "gone" }, options).catch((error) => error);
  console.log(
    JSON.stringify({
      client: binding,
      transport: client.transport?.constructor.name ?? "",
      answer: find(task, "answer"),
      kinds,
      state: held.status.state,
      settled: find(settled.payload?.value ?? settled, "answer"),
      history: found.history.map((message) => message.messageId.startsWith(binding)),
      error: gone.name,
    }),
  );
}
