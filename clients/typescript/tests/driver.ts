/** The scenario driver of this client; clients/README.md describes what it reads and writes. */
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { fromJson, type JsonValue } from "@bufbuild/protobuf";
import {
  type Client,
  connect,
  FinishReason,
  ReasondError,
  type ReasoningTask,
  ReasoningTaskSchema,
  statusName,
} from "../src/node.js";

interface Request {
  name: string;
  action: keyof typeof ACTIONS;
  target: string;
  token: string | null;
  token_file: string | null;
  task: JsonValue;
  options: { request_id?: string; deadline_s?: number; cancel_after_sequence?: number };
}

const LOGGED = ["started", "iteration", "completed"];
const ACTIONS = { execute, stream, cancel: stream, strategies, turn };

function emptyAnswer(name: string) {
  return {
    name,
    outcome: "ok",
    sequences: [] as number[],
    answer: "",
    finish_reason: "",
    execution_id: "",
    code: "",
    reason: "",
    violations: [] as { field: string; description: string }[],
    retry_after_s: null as number | null,
    tool_calls: [] as string[],
    tool_results: [] as string[],
    token_reads: 0,
  };
}

type Answer = ReturnType<typeof emptyAnswer>;

function taskOf(request: Request): ReasoningTask {
  return fromJson(ReasoningTaskSchema, request.task ?? {});
}

function optionsOf({ options }: Request) {
  const { request_id: requestId, deadline_s } = options;
  return { requestId, timeoutMs: deadline_s === undefined ? undefined : deadline_s * 1000 };
}

function take(result: { answer: string; finishReason: FinishReason }, executionId: string, answer: Answer): void {
  answer.answer = result.answer;
  answer.finish_reason = `FINISH_REASON_${FinishReason[result.finishReason]}`;
  answer.execution_id = executionId;
}

async function execute(client: Client, request: Request, answer: Answer): Promise<void> {
  const result = await client.reason(taskOf(request), optionsOf(request));
  take(result, result.executionId, answer);
}

async function stream(client: Client, request: Request, answer: Answer): Promise<void> {
  const isKept = request.action === "stream";
  const options = { ...optionsOf(request), keepRunning: isKept, reconnect: isKept };
  const events = client.reasonIterations(taskOf(request), options);
  for await (const { executionId, sequence, event } of events) {
    answer.execution_id = executionId;
    if (LOGGED.includes(event.case ?? "")) answer.sequences.push(Number(sequence));
    if (!isKept && sequence >= (request.options.cancel_after_sequence ?? 0)) break;
  }
  if (events.result) take(events.result, events.cursor.executionId, answer);
}

async function strategies(client: Client, _request: Request, answer: Answer): Promise<void> {
  const listed = await client.reasoning.listStrategies({});
  answer.answer = listed.strategies
    .map((each) => each.name)
    .sort()
    .join(",");
}

async function turn(client: Client, request: Request, answer: Answer): Promise<void> {
  const integer = { type: "integer" };
  const add = {
    name: "add",
    description: "Add two numbers.",
    parameters: { type: "object", properties: { a: integer, b: integer }, required: ["a", "b"] },
    run({ a, b }: { a: number; b: number }) {
      answer.tool_calls.push("add");
      answer.tool_results.push(JSON.stringify(a + b));
      return a + b;
    },
  };
  const result = await client.turn(taskOf(request).query, { ...optionsOf(request), tools: [add] });
  take(result, result.turnId, answer);
}

async function workOut(request: Request): Promise<void> {
  const answer = emptyAnswer(request.name);
  const { target, token, token_file: file } = request;
  const provider = () => {
    answer.token_reads += 1;
    return readFileSync(file ?? "", "utf8");
  };
  const client = connect({ target, token: file ? provider : (token ?? "") });
  try {
    await ACTIONS[request.action](client, request, answer);
  } catch (error) {
    if (!(error instanceof ReasondError)) throw error;
    answer.outcome = "error";
    answer.code = statusName(error.code);
    answer.reason = error.reason;
    answer.violations = error.violations.map(({ field, description }) => ({ field, description }));
    answer.retry_after_s = error.retryAfterMs === undefined ? null : error.retryAfterMs / 1000;
    answer.execution_id = error.executionId ?? answer.execution_id;
  } finally {
    client.close();
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}

for await (const line of createInterface({ input: process.stdin })) {
  void workOut(JSON.parse(line) as Request);
}
