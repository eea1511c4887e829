import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { type CallOptions, createClient, type Client as ServiceClient, type Transport } from "@connectrpc/connect";
import * as pb from "./gen/messages.js";
import { EventStream, type StartOptions, type StreamOptions } from "./stream.js";
import { describeTools, settleTurn, type Toolset } from "./tools.js";
import { type CallSettings, callTransport, checkTimeout } from "./transport.js";

/** A task; a text alone is its query. */
export type Task = string | MessageInitShape<typeof pb.ReasoningTaskSchema>;
/** The start of a turn; a text alone is what the user says. */
export type Start = string | MessageInitShape<typeof pb.TurnStartSchema>;
/** An execution and the number of the event after which it is followed. */
export type Cursor = MessageInitShape<typeof pb.ExecutionCursorSchema>;
/** What a stream of a turn begins with: a start, a re-entry, or a place in its log to follow it from. */
export type TurnSource = pb.ExecuteTurnRequest["source"];
type Leg = Pick<pb.RunTurnResponse, "turn" | "result">;

/** Calls a reasond server. A call that fails throws `ReasondError`. */
export class Client {
  /** The generated services: their calls have token, deadline, retries and errors, but no automatic request id. */
  readonly reasoning: ServiceClient<typeof pb.ReasoningService>;
  readonly turns: ServiceClient<typeof pb.TurnService>;
  readonly repairs: ServiceClient<typeof pb.RepairService>;
  readonly executions: ServiceClient<typeof pb.ExecutionService>;
  readonly agents: ServiceClient<typeof pb.AgentService>;
  /** Close the connection; calls that still run fail, and later ones open another connection. */
  readonly close: () => void;
  readonly #timeoutMs: number;

  /** `transport` is any transport of Connect that speaks gRPC or gRPC-Web. */
  constructor(transport: Transport, settings: CallSettings = {}, close: () => void = () => {}) {
    const calls = callTransport(transport, settings);
    this.#timeoutMs = checkTimeout(settings.timeoutMs);
    this.close = close;
    this.reasoning = createClient(pb.ReasoningService, calls);
    this.turns = createClient(pb.TurnService, calls);
    this.repairs = createClient(pb.RepairService, calls);
    this.executions = createClient(pb.ExecutionService, calls);
    this.agents = createClient(pb.AgentService, calls);
  }

  /** Run a task and return the result. */
  async reason(task: Task, options: StartOptions & { traceView?: pb.TraceView } = {}): Promise<pb.Reasoning> {
    const { requestId = newRequestId(), traceView } = options;
    const answer = await this.reasoning.reason({ task: taskOf(task), requestId, traceView }, options);
    return answer.reasoning ?? create(pb.ReasoningSchema);
  }

  /** Run a task and stream every step. Leaving the loop cancels the task unless it is kept running. */
  reasonIterations(task: Task, options: StreamOptions = {}): EventStream<pb.ReasonIterationsResponse, pb.Reasoning> {
    if (options.reconnect && !options.keepRunning)
      throw new TypeError("reconnect needs keepRunning: the run must go on");
    return this.#iterations({ case: "task", value: taskOf(task) }, options);
  }

  /** Follow a task after an event of its log: after 0 from its first, after the cursor of a stream from where that was. */
  resume(cursor: Cursor, options: StreamOptions = {}): EventStream<pb.ReasonIterationsResponse, pb.Reasoning> {
    return this.#iterations({ case: "resume", value: create(pb.ExecutionCursorSchema, cursor) }, options);
  }

  /**
   * Start a turn, go on with one or follow one, and stream its events to its next exit: its end, or a hand-off. No tool
   * runs here: see `settleTurn`. Leaving never cancels a turn. The stream resumes unless `reconnect` is false.
   */
  executeTurn(source: TurnSource, options: StreamOptions = {}): EventStream<pb.ExecuteTurnResponse, pb.TurnResult> {
    const { includeDeltas = false, follow = false, reconnect = true, timeoutMs = this.#timeoutMs } = options;
    const requestId = source.case === "start" ? (options.requestId ?? newRequestId()) : "";
    const open = (value: pb.ExecutionCursor, call: CallOptions) => {
      const request = value.executionId ? { source: { case: "attach" as const, value } } : { source, requestId };
      return this.turns.executeTurn({ ...request, includeDeltas, follow }, call);
    };
    const cursor = create(pb.ExecutionCursorSchema, source.case === "attach" ? source.value : {});
    return new EventStream(open, cursor, { ...options, reconnect, timeoutMs });
  }

  /** Run a turn to its end: whenever it waits for this client, run the tools and ask `approve`, and go on. */
  async turn(start: Start, options: StartOptions & Toolset = {}): Promise<pb.TurnResult> {
    const value = create(pb.TurnStartSchema, typeof start === "string" ? { message: start } : start);
    value.clientTools = describeTools(options.tools);
    const { requestId = newRequestId() } = options;
    return this.#drive(await this.turns.runTurn({ source: { case: "start", value }, requestId }, options), options);
  }

  /** Go on with a turn to its end, from any process. One that has ended is not run again: its result is returned. */
  async resumeTurn(turnId: string, options: CallOptions & Toolset = {}): Promise<pb.TurnResult> {
    let found = await this.turns.getTurn({ turnId }, options);
    if (found.turn?.state === pb.TurnState.RUNNING) {
      const value = create(pb.ExecutionCursorSchema, { executionId: turnId, afterSequence: found.turn.lastSequence });
      for await (const _ of this.executeTurn({ case: "attach", value }, options));
      found = await this.turns.getTurn({ turnId }, options);
    }
    return this.#drive(found, options);
  }

  async #drive(leg: Leg, options: CallOptions & Toolset): Promise<pb.TurnResult> {
    while (leg.turn?.state === pb.TurnState.AWAITING_CLIENT) {
      const value = await settleTurn(leg.turn, options);
      leg = await this.turns.runTurn({ source: { case: "reentry", value } }, options);
    }
    return leg.result ?? create(pb.TurnResultSchema);
  }

  #iterations(source: pb.ReasonIterationsRequest["source"], options: StreamOptions) {
    const {
      includeDeltas = false,
      keepRunning = false,
      requestId = newRequestId(),
      timeoutMs = this.#timeoutMs,
    } = options;
    const open = (value: pb.ExecutionCursor, call: CallOptions) => {
      const request = value.executionId ? { source: { case: "resume" as const, value } } : { source, requestId };
      return this.reasoning.reasonIterations({ ...request, includeDeltas, keepRunning }, call);
    };
    const cursor = create(pb.ExecutionCursorSchema, source.case === "resume" ? source.value : {});
    return new EventStream<pb.ReasonIterationsResponse, pb.Reasoning>(open, cursor, { ...options, timeoutMs });
  }
}

/** Return a new idempotency key, so that the retry of a call whose answer was lost finds its execution. */
export function newRequestId(): string {
  // randomUUID is missing in pages that came without TLS.
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function taskOf(task: Task): pb.ReasoningTask {
  return create(pb.ReasoningTaskSchema, typeof task === "string" ? { query: task } : task);
}
