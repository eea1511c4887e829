// A page that calls reasond over gRPC-Web with Connect's client; what it knows of the services is the descriptor set.
import { createFileRegistry, fromBinary } from "@bufbuild/protobuf";
import { FileDescriptorSetSchema } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcWebTransport } from "@connectrpc/connect-web";

const bytes = new Uint8Array(await (await fetch("/reasond.binpb")).arrayBuffer());
const registry = createFileRegistry(fromBinary(FileDescriptorSetSchema, bytes));

function clientFor(baseUrl, token) {
  const addToken = (next) => (request) => {
    request.header.set("authorization", `Bearer ${token}`);
    return next(request);
  };
  const transport = createGrpcWebTransport({ baseUrl, interceptors: [addToken] });
  return createClient(registry.getService("reasond.v1.ReasoningService"), transport);
}

function describe(thrown) {
  const error = ConnectError.from(thrown);
  const find = (name) => error.findDetails(registry.getMessage(`google.rpc.${name}`));
  return {
    code: Code[error.code],
    reason: find("ErrorInfo").map((each) => each.reason),
    fields: find("BadRequest").flatMap((each) => each.fieldViolations.map((violation) => violation.field)),
  };
}

globalThis.ask = async ([baseUrl, token, query]) => {
  try {
    const answer = await clientFor(baseUrl, token).reason({ task: { query, strategy: "gated" } }, { timeoutMs: 60000 });
    return { answer: answer.reasoning.answer };
  } catch (thrown) {
    return describe(thrown);
  }
};

globalThis.follow = async ([baseUrl, token, query]) => {
  const sequences = [];
  const source = { case: "task", value: { query, strategy: "gated" } };
  for await (const event of clientFor(baseUrl, token).reasonIterations({ source })) {
    sequences.push(Number(event.sequence));
    await globalThis.release();
  }
  return sequences;
};

globalThis.isReady = true;
