/** What the layer does beyond the scenarios: against services of Connect in this process, and settings of fromEnv. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { create } from "@bufbuild/protobuf";
import { ConnectError, type ConnectRouter, createRouterTransport } from "@connectrpc/connect";
import { ErrorInfoSchema } from "../src/gen/google/rpc/error_details_pb.js";
import {
  CallKind,
  Client,
  Code,
  connect,
  ExecutionService,
  fromEnv,
  ReasondError,
  ReasoningService,
  settleTurn,
  type Toolset,
  TurnAwaitsError,
  TurnSchema,
} from "../src/node.js";

const serve = (routes: (router: ConnectRouter) => void, settings = {}) =>
  new Client(createRouterTransport(routes), settings);
const told = (code: Code, reason: string, metadata: Record<string, string> = {}) => {
  const info = { desc: ErrorInfoSchema, value: { domain: "reasond", reason, metadata } };
  return new ConnectError("told", code, undefined, [info]);
};

test("a call of the retry table is tried four times with one request id, another call once", async () => {
  const ids: string[] = [];
  let deletions = 0;
  const client = serve((router) => {
    router.service(ReasoningService, {
      reason(request) {
        ids.push(request.requestId);
        throw told(Code.Unavailable, "OVERLOADED");
      },
    });
    router.service(ExecutionService, {
      deleteExecution() {
        deletions += 1;
        throw told(Code.Unavailable, "OVERLOADED");
      },
    });
  });
  await assert.rejects(client.reason("?"), { name: "ReasondError", reason: "OVERLOADED", code: Code.Unavailable });
  assert.equal(ids.length, 4);
  assert.equal(new Set(ids).size, 1);
  assert.match(ids[0] ?? "", /^[0-9a-f]{32}$/);
  await assert.rejects(client.executions.deleteExecution({ executionId: "e" }), ReasondError);
  assert.equal(deletions, 1);
});

test("a retry comes when the server says, and not at all where it says never", async () => {
  const pushbacks = ["1", "0", "-1"];
  let calls = 0;
  const client = serve((router) =>
    router.service(ReasoningService, {
      reason() {
        const refusal = told(Code.Unavailable, "OVERLOADED");
        refusal.metadata.set("grpc-retry-pushback-ms", pushbacks[calls++] ?? "");
        throw refusal;
      },
    }),
  );
  await assert.rejects(client.reason("?"), { reason: "OVERLOADED" });
  assert.equal(calls, 3);
});

test("an expired token is asked for once more, a token that stays expired ends the call", async () => {
  const seen: (string | null)[] = [];
  let reads = 0;
  const client = serve(
    (router) =>
      router.service(ReasoningService, {
        listStrategies(_, { requestHeader }) {
          seen.push(requestHeader.get("authorization"));
          throw told(Code.Unauthenticated, "TOKEN_EXPIRED");
        },
      }),
    { token: () => `t${++reads}` },
  );
  await assert.rejects(client.reasoning.listStrategies({}), { reason: "TOKEN_EXPIRED" });
  assert.deepEqual(seen, ["Bearer t1", "Bearer t2"]);
});

test("a stream that its server failed after the result is not resumed, and tells the failure", async () => {
  let calls = 0;
  const client = serve((router) =>
    router.service(ReasoningService, {
      async *reasonIterations() {
        calls += 1;
        yield { executionId: "e", sequence: 1n, event: { case: "completed" as const, value: { answer: "partial" } } };
        throw told(Code.Unavailable, "MODEL_UNAVAILABLE", { request_id: "r" });
      },
    }),
  );
  const stream = client.reasonIterations("?", { keepRunning: true, reconnect: true });
  const failure = (async () => {
    for await (const _ of stream);
  })();
  await assert.rejects(failure, { reason: "MODEL_UNAVAILABLE", executionId: "e" });
  assert.equal(stream.result?.answer, "partial");
  assert.equal(calls, 1);
});

test("closing a stream ends the wait for its next event, and aborting a signal ends a call", async () => {
  const client = serve(
    (router) =>
      router.service(ReasoningService, {
        reason: (_, { signal }) => new Promise((_, reject) => signal.addEventListener("abort", reject)),
        async *reasonIterations(_, { signal }) {
          yield { executionId: "e", sequence: 1n };
          await new Promise((resolve) => signal.addEventListener("abort", resolve));
        },
      }),
    // Connect's services keep the timer of a deadline whose call was aborted, which would keep this process alive.
    { timeoutMs: Number.POSITIVE_INFINITY },
  );
  const stream = client.reasonIterations("?");
  const reading = (async () => {
    for await (const _ of stream) setTimeout(() => stream.close());
  })();
  await assert.rejects(reading, { code: Code.Canceled, reason: "CANCELLED" });
  const controller = new AbortController();
  const call = client.reason("?", { signal: controller.signal });
  controller.abort();
  await assert.rejects(call, { code: Code.Canceled, reason: "CANCELLED" });
});

test("a hand-off is settled in its order: approvals, unknown outcomes, tools that fail; nothing runs if one lacks", async () => {
  const call = (callId: string, tool: string, argumentsJson = "{}") => ({ callId, tool, argumentsJson });
  const turn = create(TurnSchema, {
    turnId: "t",
    handoff: {
      etag: "7",
      calls: [
        { kind: CallKind.APPROVE, call: call("c1", "deploy") },
        { kind: CallKind.RESOLVE, call: call("c2", "pay") },
        { kind: CallKind.EXECUTE, call: call("c3", "fail") },
        { kind: CallKind.EXECUTE, call: call("c4", "fail", "[1]") },
        { kind: CallKind.EXECUTE, call: call("c5", "nothing"), idempotencyKey: "k5" },
      ],
    },
  });
  const keys: string[] = [];
  const toolset: Toolset = {
    tools: [
      { name: "fail", description: "", parameters: {}, run: () => Promise.reject(new Error("no stock")) },
      {
        name: "nothing",
        description: "",
        parameters: {},
        run: (_, { idempotencyKey }) => void keys.push(idempotencyKey),
      },
    ],
    approve: () => "not on Fridays",
    resolve: async () => ({ isPaid: true }),
  };
  const { turnId, etag, decisions, results } = await settleTurn(turn, toolset);
  assert.deepEqual([turnId, etag], ["t", "7"]);
  assert.deepEqual(
    decisions.map(({ callId, isApproved, reason }) => [callId, isApproved, reason]),
    [["c1", false, "not on Fridays"]],
  );
  assert.deepEqual(
    results.map(({ callId, resultJson, isError }) => [callId, resultJson, isError]),
    [
      ["c2", '{"isPaid":true}', false],
      ["c3", '{"error":"Error: no stock"}', true],
      ["c4", '{"error":"TypeError: the arguments must be a JSON object"}', true],
      ["c5", "null", false],
    ],
  );
  assert.deepEqual(keys, ["k5"]);
  const rejected = settleTurn(turn, { ...toolset, approve: undefined });
  await assert.rejects(
    rejected,
    (error) => error instanceof TurnAwaitsError && /APPROVE deploy \(c1\)/.test(error.message),
  );
  assert.deepEqual(keys, ["k5"]);
});

test("settings that cannot work are refused, and no message shows the token", async () => {
  assert.throws(() => fromEnv({ REASOND_TARGET: "http://127.0.0.1:50051" }), /target is one address/);
  assert.throws(() => fromEnv({ REASOND_TLS: "maybe" }), /REASOND_TLS must be one of 1, true/);
  assert.throws(() => fromEnv({ REASOND_TLS: "0", REASOND_CA_FILE: "ca.pem" }), /unset one of them/);
  assert.throws(() => fromEnv({ REASOND_TIMEOUT_S: "soon" }), /timeoutMs must be above 0, not NaN/);
  assert.throws(
    () => fromEnv({ REASOND_TARGET: "example.com:1", REASOND_TOKEN: "secret" }),
    /in plain text to example.com:1/,
  );
  fromEnv({ REASOND_TARGET: "dns:///[::1]:1", REASOND_TOKEN: "secret", REASOND_TIMEOUT_S: "inf" });
  fromEnv({ REASOND_TARGET: "example.com:1", REASOND_TOKEN: "secret", REASOND_TLS: "on" });
  fromEnv({ REASOND_TARGET: "example.com:1", REASOND_TOKEN: "secret", REASOND_ALLOW_PLAINTEXT_TOKEN: "yes" });
  const broken = connect({ token: "se\ncret" }).reasoning.listStrategies({});
  await assert.rejects(broken, (error) => error instanceof TypeError && !/cret/.test(error.message));
  assert.throws(() => connect().reasonIterations("?", { reconnect: true }), /reconnect needs keepRunning/);
});
