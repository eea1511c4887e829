import { create } from "@bufbuild/protobuf";
import * as pb from "./gen/messages.js";

const MAX_ERROR_LENGTH = 2000;

/** A function of this program that a model may call during a turn. */
// biome-ignore lint/suspicious/noExplicitAny: each tool has arguments of its own type
export interface ClientFunction<Arguments = any> {
  /** 1-128 of a-z, A-Z, 0-9, _ and -. */
  readonly name: string;
  readonly description: string;
  /** The JSON Schema of the arguments, an object. */
  readonly parameters: object;
  /**
   * Run the tool. What it throws is told to the model as an error. A program that dies between the effect of a call and
   * the report of its result makes the call again when it resumes; `pending.idempotencyKey` is the same then.
   */
  run(args: Arguments, pending: pb.PendingCall): unknown;
}

/** What settles the calls that a turn waits for. */
export interface Toolset {
  /** The functions that the model may call. */
  readonly tools?: readonly ClientFunction[];
  /** Asked before a call of a server tool that needs it; returns true, false or the reason against. */
  approve?(pending: pb.PendingCall): boolean | string | Promise<boolean | string>;
  /** Asked what came of a server's call whose outcome nobody knows; returns the result of that call. */
  resolve?(pending: pb.PendingCall): unknown;
}

/** A turn waits for calls that nothing here settles; `resumeTurn` goes on with it. */
export class TurnAwaitsError extends Error {
  override readonly name = "TurnAwaitsError";
  readonly turn: pb.Turn;

  constructor(turn: pb.Turn, lacking: readonly pb.PendingCall[]) {
    const names = lacking.map(({ kind, call }) => `${pb.CallKind[kind]} ${call?.tool} (${call?.callId})`);
    super(`turn ${turn.turnId} waits for what is not given here: ${names.join(", ")}; give it to resumeTurn`);
    this.turn = turn;
  }
}

/** Return what the server and the model are told of the tools. */
export function describeTools(tools: readonly ClientFunction[] = []): pb.ClientTool[] {
  return tools.map(({ name, description, parameters }) =>
    create(pb.ClientToolSchema, { name, description, parametersJson: JSON.stringify(parameters) }),
  );
}

/**
 * Settle all calls that a turn waits for, in their order, and return the re-entry that goes on with it. Nothing is sent.
 * Throws `TurnAwaitsError` before any tool has run if something is not given.
 */
export async function settleTurn(turn: pb.Turn, toolset: Toolset): Promise<pb.TurnReentry> {
  const { calls = [], etag } = turn.handoff ?? {};
  const lacking = calls.filter((pending) => !settlerOf(pending, toolset));
  if (lacking.length) throw new TurnAwaitsError(turn, lacking);
  const reentry = create(pb.TurnReentrySchema, { turnId: turn.turnId, etag });
  for (const pending of calls) {
    const callId = pending.call?.callId;
    if (pending.kind === pb.CallKind.APPROVE) {
      const said = await toolset.approve?.(pending);
      const decision = { isApproved: said === true, reason: typeof said === "string" ? said : "" };
      reentry.decisions.push(create(pb.DecisionSchema, { callId, ...decision }));
    } else {
      reentry.results.push(create(pb.ToolResultSchema, { callId, ...(await outcomeOf(pending, toolset)) }));
    }
  }
  return reentry;
}

/** Return what settles a call; undefined if nothing here does. */
function settlerOf({ call, kind }: pb.PendingCall, { tools, approve, resolve }: Toolset) {
  if (kind === pb.CallKind.APPROVE) return approve;
  if (kind === pb.CallKind.RESOLVE) return resolve;
  const tool = tools?.find((each) => each.name === call?.tool);
  return tool && ((pending: pb.PendingCall) => tool.run(readArguments(pending), pending));
}

async function outcomeOf(pending: pb.PendingCall, toolset: Toolset) {
  try {
    // A function that returns nothing has the result null.
    return { resultJson: JSON.stringify(await settlerOf(pending, toolset)?.(pending)) ?? "null" };
  } catch (failure) {
    return { resultJson: JSON.stringify({ error: String(failure).slice(0, MAX_ERROR_LENGTH) }), isError: true };
  }
}

function readArguments({ call }: pb.PendingCall): object {
  const value: unknown = JSON.parse(call?.argumentsJson || "{}");
  if (typeof value === "object" && value !== null && !Array.isArray(value)) return value;
  throw new TypeError("the arguments must be a JSON object");
}
