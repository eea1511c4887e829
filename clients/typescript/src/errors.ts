import { Code, ConnectError } from "@connectrpc/connect";
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from "./gen/google/rpc/error_details_pb.js";
import type { ErrorReason } from "./gen/reasond/v1/errors_pb.js";

const DOMAIN = "reasond";
/** With these codes Connect reports a connection that broke before the server's status came. */
const CODES_OF_LOST_CONNECTIONS = new Set([Code.Aborted, Code.Canceled, Code.Internal, Code.Unknown]);

/**
 * The name of an `ErrorReason`; that of the status code, such as "UNAVAILABLE", if the answer did not come from reasond. A
 * newer server may send reasons that this version does not list.
 */
export type Reason = Exclude<keyof typeof ErrorReason, "UNSPECIFIED"> | (string & {});

/** The error of a failed call. Its cause is the error of Connect. */
export class ReasondError extends Error {
  override readonly name = "ReasondError";
  /** What went wrong, for programs. */
  readonly reason: Reason;
  /** The invalid fields, if any: the path of each, and a description of valid values. */
  readonly violations: readonly { readonly field: string; readonly description: string }[];
  /** Milliseconds to wait before a retry; undefined if waiting does not help. */
  readonly retryAfterMs: number | undefined;
  /** Limits and names. */
  readonly metadata: Readonly<Record<string, string>>;
  /** The execution whose partial result `executions.getExecution` returns. */
  executionId: string | undefined;

  /** `code` is the gRPC status, `text` the problem and the remedy as the server describes them. */
  constructor(
    readonly code: Code,
    readonly text: string,
    override readonly cause: ConnectError,
  ) {
    // A proxy may add its own details, with reasons of another meaning.
    const info = cause.findDetails(ErrorInfoSchema).find((each) => each.domain === DOMAIN);
    const delay = cause.findDetails(RetryInfoSchema)[0]?.retryDelay;
    const reason = info?.reason || statusName(code);
    super(`${reason}: ${text}`);
    this.reason = reason;
    this.violations = cause.findDetails(BadRequestSchema).flatMap((each) => each.fieldViolations);
    this.retryAfterMs = delay && Number(delay.seconds) * 1000 + delay.nanos / 1e6;
    this.metadata = info?.metadata ?? {};
    this.executionId = info?.metadata.execution_id || undefined;
  }
}

/** Return the error for what a call threw; `signal` is the signal with which the caller ends the call. */
export function errorFrom(failure: unknown, signal?: AbortSignal): ReasondError {
  if (failure instanceof ReasondError) return failure;
  const cause = ConnectError.from(failure);
  // The headers of an answer are in the metadata of its error: without any, no answer came.
  const hasAnswer = cause.details.length > 0 || !cause.metadata.keys().next().done;
  const isLost = !hasAnswer && !signal?.aborted && CODES_OF_LOST_CONNECTIONS.has(cause.code);
  if (isLost) return new ReasondError(Code.Unavailable, `the connection was lost: ${cause.rawMessage}`, cause);
  return new ReasondError(cause.code, cause.rawMessage, cause);
}

/** Return gRPC's name of a status code, such as "DEADLINE_EXCEEDED". */
export function statusName(code: Code): string {
  if (code === Code.Canceled) return "CANCELLED";
  return (Code[code] ?? "Unknown").replace(/(?<=[a-z])[A-Z]/g, "_$&").toUpperCase();
}

/**
 * Return whether `error` says that a stream was cut, so that its execution may continue. A proxy that loses its server
 * ends the stream with INTERNAL or UNKNOWN; an error of the server itself has the id of the request.
 */
export function isCut(error: ReasondError): boolean {
  const { code } = error;
  if (code === Code.Internal || code === Code.Unknown) return !isTold(error);
  return code === Code.Unavailable || error.reason === "SLOW_CONSUMER";
}

/** Return whether the server ended the call with `error`: after the result of an execution, it is how that failed. */
export function isTold(error: ReasondError): boolean {
  return "request_id" in error.metadata;
}
