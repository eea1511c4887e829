import type { DescMethod } from "@bufbuild/protobuf";
import { Code, type Transport } from "@connectrpc/connect";
import { createAsyncIterable } from "@connectrpc/connect/protocol";
import { errorFrom } from "./errors.js";
import { RETRIED_METHODS, RETRY_POLICY, RETRY_THROTTLING } from "./gen/service_config.js";

/** A token, or a function that is asked before each call, and again if the server says that the token has expired. */
export type Token = string | (() => string | Promise<string>);

/** Settings of all calls of a client. */
export interface CallSettings {
  /** Sent with every call. */
  token?: Token;
  /** The default deadline of a call in milliseconds, 120,000 unless given; Infinity: none. */
  timeoutMs?: number;
}

type Call = { method: DescMethod; signal?: AbortSignal; timeoutMs?: number; header?: HeadersInit };

/** Return `timeoutMs` if it is above 0 (Infinity included); throw a RangeError if not. */
export function checkTimeout(timeoutMs = 120_000): number {
  if (timeoutMs > 0) return timeoutMs;
  throw new RangeError(`timeoutMs must be above 0, not ${timeoutMs}; Infinity sets no deadline`);
}

/** Wait; throw if `signal` is aborted meanwhile. */
export function pause(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    const leave = () => reject(errorFrom(signal?.reason, signal));
    signal?.addEventListener("abort", () => [clearTimeout(timer), leave()], { once: true });
  });
}

/** Return a transport that adds the token, the deadline and retries to another one, and throws `ReasondError`. */
export function callTransport(transport: Transport, settings: CallSettings): Transport {
  const { token = "" } = settings;
  const { maxTokens, tokenRatio } = RETRY_THROTTLING;
  let throttleTokens = maxTokens;

  async function authorize(header: HeadersInit | undefined): Promise<Headers> {
    const headers = new Headers(header);
    const text = (typeof token === "function" ? await token() : token).trim();
    if (!/^[!-~]*$/.test(text))
      throw new TypeError("the token must be printable ASCII without spaces, without 'Bearer'");
    if (text) headers.set("Authorization", `Bearer ${text}`);
    return headers;
  }

  /** Make a call by the retry policy of its method, and once more with another token if the first has expired. */
  async function attempt<T>({ method, signal, ...call }: Call, send: (header: Headers, ms: number) => Promise<T>) {
    const endsAt = performance.now() + checkTimeout(call.timeoutMs ?? settings.timeoutMs);
    const isRetried = RETRIED_METHODS.has(`${method.parent.typeName}/${method.name}`);
    let headers = await authorize(call.header);
    let mayRefresh = typeof token === "function";
    for (let attempts = 1; ; ) {
      const leftMs = Math.max(1, Math.ceil(endsAt - performance.now()));
      try {
        // 0 sets no deadline: a timer that is longer than the longest would strike at once.
        const answer = await send(headers, leftMs >= 2 ** 31 ? 0 : leftMs);
        throttleTokens = Math.min(throttleTokens + tokenRatio, maxTokens);
        return answer;
      } catch (failure) {
        const error = errorFrom(failure, signal);
        if (error.reason === "TOKEN_EXPIRED" && mayRefresh) {
          mayRefresh = false;
          headers = await authorize(call.header);
          continue;
        }
        if (!isRetried || error.code !== Code.Unavailable || signal?.aborted) throw error;
        throttleTokens = Math.max(throttleTokens - 1, 0);
        const backoffMs = RETRY_POLICY.initialBackoffMs * RETRY_POLICY.backoffMultiplier ** (attempts - 1);
        const ownMs = Math.min(backoffMs, RETRY_POLICY.maxBackoffMs) * (0.8 + 0.4 * Math.random());
        // The server's word goes first: how long to wait, or a negative number where a retry cannot help.
        const waitMs = Number(error.cause.metadata.get("grpc-retry-pushback-ms") ?? ownMs);
        const mayRetry = waitMs >= 0 && ++attempts <= RETRY_POLICY.maxAttempts && throttleTokens > maxTokens / 2;
        if (!mayRetry || performance.now() + waitMs >= endsAt) throw error;
        await pause(waitMs, signal);
      }
    }
  }

  return {
    unary(method, signal, timeoutMs, header, input, context) {
      return attempt({ method, signal, timeoutMs, header }, (headers, leftMs) =>
        transport.unary(method, signal, leftMs, headers, input, context),
      );
    },
    async stream(method, signal, timeoutMs, header, input, context) {
      const { value } = await input[Symbol.asyncIterator]().next();
      // A stream is retried only before its first message, which is why that is waited for.
      const opened = await attempt({ method, signal, timeoutMs, header }, async (headers, leftMs) => {
        const response = await transport.stream(method, signal, leftMs, headers, createAsyncIterable([value]), context);
        const rest = response.message[Symbol.asyncIterator]();
        return { response, first: await rest.next(), rest };
      });
      signal?.addEventListener("abort", () => drain(opened.rest), { once: true });
      async function* read() {
        try {
          for (let next = opened.first; !next.done; next = await opened.rest.next()) yield next.value;
        } catch (failure) {
          throw errorFrom(failure, signal);
        }
      }
      return { ...opened.response, message: read() };
    },
  };
}

/** Read an aborted call to its end: only there Connect ends the timer of its deadline, which keeps a process alive. */
async function drain(rest: AsyncIterator<unknown>): Promise<void> {
  for (let isDone = false; !isDone; ) isDone = (await rest.next().catch(() => ({ done: true }))).done === true;
}
