// JSON-RPC and its event streams: the only thing the console asks of a server, and the same that any client can ask.

const PLACE = "api/v1/jsonrpc";
const KEY = "reasond.token";
const SILENCE_MS = 45_000; // A server sends a heartbeat every 10 s.
const FIRST_WAIT_MS = 500;
const MOST_WAIT_MS = 5_000;
const PASSING = new Set(["UNAVAILABLE", "RESOURCE_EXHAUSTED", "ABORTED"]);

export class RpcError extends Error {
  constructor({ message, data }) {
    super(message);
    this.reason = data?.reason ?? "";
    this.code = data?.grpc_code ?? "";
    this.remedy = data?.remedy ?? "";
    this.violations = data?.violations ?? [];
  }

  get mayPass() {
    return PASSING.has(this.code);
  }
}

const unreachable = () =>
  new RpcError({ message: "The server cannot be reached.", data: { reason: "UNREACHABLE", grpc_code: "UNAVAILABLE" } });

// What the frame of all screens shows: whether the server answers, and whether a token is asked for.
export const link = {
  trouble: "",
  refusal: null,
  listeners: new Set(),
  tell(change) {
    if (Object.entries(change).every(([name, value]) => this[name] === value)) return;
    Object.assign(this, change);
    this.listeners.forEach((each) => each());
  },
};

let waiters = [];

export const hasToken = () => Boolean(sessionStorage.getItem(KEY));

export function takeToken(token) {
  sessionStorage.setItem(KEY, token.trim());
  link.tell({ refusal: null });
  settleWaiters(({ go }) => go());
}

// The calls that wait for a token end with the refusal that they got.
export function refuseToken() {
  const error = link.refusal;
  link.tell({ refusal: null });
  settleWaiters(({ leave }) => leave(error));
}

function settleWaiters(settle) {
  const ready = waiters;
  waiters = [];
  ready.forEach(settle);
}

export function forgetToken() {
  sessionStorage.removeItem(KEY);
  location.reload();
}

// The fragment never leaves the browser; it is taken out of the address so that no history or screenshot keeps it.
export function takeTokenFromAddress() {
  const found = /^#token=([^&]+)/.exec(location.hash);
  if (!found) return;
  history.replaceState(null, "", `${location.pathname}#/`);
  takeToken(decodeURIComponent(found[1]));
}

const tokenAgain = (error) =>
  new Promise((go, leave) => {
    waiters.push({ go, leave });
    link.tell({ refusal: error });
  });

async function post(method, params, { signal, accept } = {}) {
  const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method, params });
  const token = sessionStorage.getItem(KEY);
  const headers = { "Content-Type": "application/json", Accept: accept ?? "application/json" };
  if (token) headers.Authorization = `Bearer ${token}`;
  try {
    return await fetch(PLACE, { method: "POST", body, headers, signal, cache: "no-store", credentials: "omit" });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw unreachable();
  }
}

function noteTrouble(error) {
  if (error.reason === "DRAINING") link.tell({ trouble: "The server is stopping and takes no new work. Trying again …" });
  else if (error.reason === "UNREACHABLE") link.tell({ trouble: "The server cannot be reached. Trying again …" });
}

export async function call(method, params = {}, signal = undefined) {
  for (;;) {
    const answer = await post(method, params, { signal }).catch((error) => {
      if (error instanceof RpcError) noteTrouble(error);
      throw error;
    });
    const told = await answer.json().catch(() => null);
    if (told && "result" in told) {
      link.tell({ trouble: "" });
      return told.result;
    }
    const error = told?.error?.message ? new RpcError(told.error) : unreachable();
    noteTrouble(error);
    if (error.code !== "UNAUTHENTICATED") throw error;
    await tokenAgain(error);
  }
}

// Yields {name, data, isLogged} of one answer; ends where the connection ends.
export async function* events(method, params, signal) {
  const silence = new AbortController();
  let timer = 0;
  const heard = () => {
    clearTimeout(timer);
    timer = setTimeout(() => silence.abort(), SILENCE_MS);
  };
  const either = AbortSignal.any([signal, silence.signal]);
  try {
    heard();
    const answer = await post(method, params, { signal: either, accept: "text/event-stream" });
    if (!answer.headers.get("content-type")?.startsWith("text/event-stream")) {
      const told = await answer.json().catch(() => null);
      throw told?.error?.message ? new RpcError(told.error) : unreachable();
    }
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      heard();
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const fields = Object.fromEntries(block.split("\n").map((line) => line.split(/: ?(.*)/s, 2)));
        if (fields.data) yield { name: fields.event, data: JSON.parse(fields.data), isLogged: "id" in fields };
      }
    }
  } catch (error) {
    if (error instanceof RpcError || signal.aborted) throw error;
    throw unreachable();
  } finally {
    clearTimeout(timer);
    silence.abort();
  }
}

const pause = (ms) => new Promise((go) => setTimeout(go, ms));

// Follows an execution to its end as an observer: every logged event once, also over cuts, restarts and a new token.
export async function follow(executionId, { onEvent, onText, onLink, signal }) {
  let after = 0;
  let wait = FIRST_WAIT_MS;
  while (!signal.aborted) {
    try {
      const params = { execution_id: executionId, after_sequence: after, include_deltas: true };
      for await (const { name, data, isLogged } of events("executions.follow", params, signal)) {
        if (name === "error") throw new RpcError(data);
        link.tell({ trouble: "" });
        onLink("");
        wait = FIRST_WAIT_MS;
        if (!isLogged) {
          if (data[name]?.text) onText(data[name]);
          continue;
        }
        if (data.sequence <= after) continue;
        after = data.sequence;
        onEvent({ name, sequence: after, at: Date.parse(data.create_time), body: data[name], data });
        if (name === "completed") return;
      }
      onLink("The stream was cut. Resuming after event " + after + " …");
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof RpcError)) throw error;
      noteTrouble(error);
      if (error.code === "UNAUTHENTICATED") {
        await tokenAgain(error);
        continue;
      }
      if (!error.mayPass) throw error;
      onLink(`${error.message} Resuming after event ${after} …`);
    }
    await pause(wait);
    wait = Math.min(MOST_WAIT_MS, 2 * wait);
  }
}
