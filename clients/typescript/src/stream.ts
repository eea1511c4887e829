import { clone } from "@bufbuild/protobuf";
import type { CallOptions } from "@connectrpc/connect";
import { errorFrom, isCut, isTold, type ReasondError } from "./errors.js";
import { type ExecutionCursor, ExecutionCursorSchema } from "./gen/messages.js";
import { checkTimeout, pause } from "./transport.js";

const MAX_ATTEMPTS = 6;
const INITIAL_BACKOFF_MS = 200;
const MAX_BACKOFF_MS = 5000;
const LONGEST_WAIT_MS = 60_000;

/** Options of calls that begin an execution. */
export interface StartOptions extends CallOptions {
  /** Idempotency key: the same id with the same request finds the same execution. Random unless given. */
  requestId?: string;
}

/** Options of streams. The deadline is that of the whole stream of a task, or of each connection of a turn's. */
export interface StreamOptions extends StartOptions {
  /** Also stream the text of the model as it is written, between the steps. */
  includeDeltas?: boolean;
  /** Resume the stream if the connection breaks, up to 6 times without an event. Deltas may be repeated, steps never. */
  reconnect?: boolean;
  /** Of a task: go on if the stream ends early or breaks, so that `resume` can follow it. Turns always go on. */
  keepRunning?: boolean;
  /** Of a turn: go on with the stream after a hand-off. */
  follow?: boolean;
}

/** An event. Deltas and heartbeats have the sequence number of the last logged event. */
export type StreamEvent = { sequence: bigint; executionId?: string; turnId?: string; event: OneofValue };
type OneofValue = { case?: string; value?: unknown };

/** Makes a call that follows the cursor; if that names no execution, the call begins one. */
export type Open<E> = (cursor: ExecutionCursor, options: CallOptions) => AsyncIterable<E>;

/**
 * The events of one execution, for one loop. The call starts when the first event is asked for. It is cancelled when
 * the loop ends, for any reason; that also cancels the execution of a task, unless it is kept running.
 */
export class EventStream<E extends StreamEvent, Result> implements AsyncIterable<E> {
  /** The result after the end of the execution; partial if it failed or was cancelled. */
  result: Result | undefined;
  /** The execution, from its first event on, and the number of the last logged event that has come. */
  readonly cursor: ExecutionCursor;
  readonly #controller = new AbortController();
  readonly #events: AsyncGenerator<E, void>;

  constructor(open: Open<E>, cursor: ExecutionCursor, options: StreamOptions) {
    this.cursor = clone(ExecutionCursorSchema, cursor);
    this.#events = this.#follow(open, checkTimeout(options.timeoutMs), options);
  }

  [Symbol.asyncIterator](): AsyncIterator<E, void> {
    return this.#events;
  }

  /** Cancel the call, if it still runs; whoever waits for an event gets an error with the code Canceled. */
  close(): void {
    this.#controller.abort();
  }

  async *#follow(open: Open<E>, timeoutMs: number, { follow, reconnect, signal: outer }: StreamOptions) {
    const own = this.#controller.signal;
    const signal = outer ? AbortSignal.any([own, outer]) : own;
    let endsAt = performance.now() + timeoutMs;
    let hasExited = false;
    let failures = 0;
    try {
      for (;;) {
        try {
          const leftMs = Math.max(1, endsAt - performance.now());
          for await (const event of open(this.cursor, { signal, timeoutMs: leftMs })) {
            failures = 0;
            if (event.turnId) endsAt = performance.now() + timeoutMs;
            hasExited =
              !!event.turnId && (event.event.case === "completed" || (event.event.case === "handedOff" && !follow));
            this.cursor.executionId = event.turnId ?? event.executionId ?? "";
            if (event.sequence > this.cursor.afterSequence) this.cursor.afterSequence = event.sequence;
            if (event.event.case === "completed") this.result = event.event.value as Result;
            yield event;
          }
          return;
        } catch (failure) {
          const error = errorFrom(failure, signal);
          error.executionId ||= this.cursor.executionId || undefined;
          if (isCut(error) && hasExited) return;
          // Without its status, the result of a task may be that of a failure, which the resumed stream tells.
          const mayResume = reconnect && isCut(error) && failures < MAX_ATTEMPTS && !(this.result && isTold(error));
          const waitMs = waitBefore(error, failures++);
          if (!mayResume || signal.aborted || performance.now() + waitMs >= endsAt) throw error;
          await pause(waitMs, signal);
        }
      }
    } finally {
      // Connect goes on with a call whose loop was left.
      this.close();
    }
  }
}

/** Return the milliseconds to wait before the stream is resumed after `error`. */
function waitBefore(error: ReasondError, failures: number): number {
  const backoffMs = Math.min(INITIAL_BACKOFF_MS * 2 ** failures, MAX_BACKOFF_MS);
  return Math.max(backoffMs * (1 - Math.random() / 2), Math.min(error.retryAfterMs ?? 0, LONGEST_WAIT_MS));
}
