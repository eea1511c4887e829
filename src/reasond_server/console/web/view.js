// What a log says, as a pure function of its first events: live runs, ended runs and replay show the same thing.

import { checkedWith, firstLine, plural, tokens, words } from "./format.js";

const DETAILS = {
  thought: (detail) => ["thought", detail.text || detail.answer],
  bounded_context: (detail) => [
    detail.reading ? `read ${detail.reading.segment} of ${detail.reading.segment_count}` : "reason",
    detail.text,
  ],
  react: (detail) => [
    detail.actions.map((each) => each.tool).join(", ") || "answer",
    detail.thought || detail.actions.map((each) => each.arguments_json).join(" "),
  ],
  tree: (detail) => [`${detail.is_pruned ? "✕ " : ""}score ${detail.score.toFixed(2)}`, detail.thought],
  sample: (detail) => ["sample", detail.answer || detail.text],
  stage: (detail) => [words(detail.stage), detail.answer || detail.text],
  custom: (detail) => ["step", Object.values(detail).find((each) => typeof each === "string") ?? JSON.stringify(detail)],
};

const EVENTS = {
  model_call: (body) => [
    `model: ${words(body.goal)}`,
    body.calls.length ? `calls ${body.calls.map((each) => each.tool).join(", ")}` : body.text,
  ],
  tool: (body) => [`tool: ${body.tool}`, `${words(body.state)}${body.is_error ? ", an error" : ""}`],
  mode_change: (body) => ["mode", `${body.old_mode} → ${body.new_mode}`],
  handed_off: (body) => ["handed off", body.calls.map((each) => `${words(each.kind)} ${each.call.tool}`).join(", ")],
  reentered: (body) => ["re-entered", plural(body.call_ids.length, "call")],
  baseline: (body) => ["baseline", body.is_reproduced ? "the fault is reproduced" : "no check fails on the original"],
  candidate: (body) => [`candidate ${body.candidate_id}`, `${words(body.status)}. ${firstLine(body.thought)}`],
  critique: (body) => [
    `judged ${body.candidate_id}`,
    `${body.is_accepted ? "✓ accepted, " : ""}${words(body.verdict)}, score ${body.score}`,
  ],
  reflection: (body) => [`round ${body.reflection.iteration}`, body.reflection.notes],
  vote: (body) => ["vote", `best: ${body.vote.votes[0]?.candidate_id ?? "none"}`],
  validation: (body) => [`validated ${body.candidate_id}`, body.is_valid ? `passed ${checkedWith(body)}` : body.problem],
};

const OTHERS = new Set(["index", "answer_found", "usage", "elapsed_ms"]);

// The part of an iteration that its strategy wrote: [kind, value].
export function detailOf(event) {
  if (event.name !== "iteration") return [event.name, event.body];
  return Object.entries(event.body).find(([name]) => !OTHERS.has(name)) ?? ["custom", {}];
}

function stepOf(event) {
  const [kind, detail] = detailOf(event);
  const describe = event.name === "iteration" ? DETAILS[kind] : EVENTS[event.name];
  const [label, text] = describe ? describe(detail) : [words(event.name), ""];
  return {
    event,
    kind,
    detail,
    label,
    headline: firstLine(text),
    tokens: tokens(event.body.usage),
    from: event.at - (event.body.elapsed_ms ?? 0),
    to: event.at,
    hasAnswer: Boolean(event.body.answer_found),
  };
}

const KINDS = [
  ["turn", "session_revision"],
  ["repair", "snapshot_id"],
];

// Steps are kept with their events: a long log is not described again for each event that comes.
const described = new WeakMap();

function stepOnce(event) {
  if (!described.has(event)) described.set(event, stepOf(event));
  return described.get(event);
}

export function fold(events) {
  const first = events[0];
  const last = events.at(-1);
  const started = first?.name === "started" ? first.body : null;
  const completed = last?.name === "completed" ? last.body : null;
  const kind = started ? (KINDS.find(([, key]) => key in started)?.[0] ?? "reasoning") : "";
  const steps = events.filter((each) => each.name !== "started" && each.name !== "completed").map(stepOnce);
  const usage = completed?.metrics?.usage ?? completed?.usage ?? null;
  return {
    kind,
    started,
    completed,
    steps,
    id: first?.data.execution_id ?? "",
    begin: first?.at ?? 0,
    end: last?.at ?? 0,
    spent: usage ? tokens(usage) : steps.reduce((sum, each) => sum + each.tokens, 0),
    cost: usage?.cost_usd ?? costOf(steps),
    calls: usage?.model_calls ?? steps.reduce((sum, each) => sum + (each.event.body.usage?.model_calls ?? 0), 0),
    title: started ? titleOf(kind, started) : "",
  };
}

// What the steps cost so far; unknown as soon as one of them has tokens and no price.
function costOf(steps) {
  const paid = steps.filter((each) => each.tokens).map((each) => each.event.body.usage.cost_usd ?? null);
  return paid.length && !paid.includes(null) ? paid.reduce((sum, each) => sum + each, 0) : null;
}

function titleOf(kind, started) {
  if (kind === "turn") return started.session_id ? `turn of session ${started.session_id}` : "turn";
  if (kind === "repair") return `repair: ${words(started.goal)}`;
  return started.strategy;
}

// The calls of a turn with their states, in their order; what the server knows of each has the results.
export function ledgerOf(steps, known = []) {
  const entries = new Map();
  let pending = null;
  for (const { event } of steps) {
    const { name, body } = event;
    if (name === "model_call") {
      body.calls.forEach((each) => entries.set(each.call_id, { ...each, state: "expected", by: "server" }));
    } else if (name === "tool") {
      entries.set(body.call_id, { ...entries.get(body.call_id), ...body, by: "server" });
    } else if (name === "handed_off") {
      pending = body;
      for (const each of body.calls) {
        entries.set(each.call.call_id, { ...each.call, state: "handed_off", by: `client: ${words(each.kind)}` });
      }
    } else if (name === "reentered") {
      pending = null;
      for (const id of body.call_ids) {
        const entry = entries.get(id);
        if (entry?.by === "client: execute") entries.set(id, { ...entry, state: "settled" });
      }
    }
  }
  const told = new Map(known.map((each) => [each.call_id, each]));
  const withResult = (each) => {
    const { result_json, result_bytes, refusal } = told.get(each.call_id) ?? {};
    return { ...each, result_json, refusal, result_bytes: result_bytes || each.result_bytes };
  };
  return { entries: [...entries.values()].map(withResult), pending };
}

// Votes by answer, the most first: counted from the samples until the run says them.
export function votesOf(view) {
  const told = view.completed?.metrics?.strategy_specific;
  // Votes are counted by a form that equal answers share; people read what one of them said.
  const said = new Map(view.steps.map(({ detail }) => [detail.normalized_answer, detail.answer]).reverse());
  if (told?.votes) return told.votes.map((each) => ({ ...each, answer: said.get(each.answer) || each.answer, score: null }));
  if (told?.answers) return told.answers;
  const counts = new Map();
  for (const { kind, detail } of view.steps) {
    const isVote = kind === "sample" || (kind === "stage" && detail.stage === "sample");
    const answer = detail.normalized_answer ?? detail.answer;
    if (isVote && answer) counts.set(answer, (counts.get(answer) ?? 0) + 1);
  }
  const found = [...counts].map(([answer, votes]) => ({ answer: said.get(answer) || answer, votes, score: null }));
  return found.sort((one, other) => other.votes - one.votes);
}
