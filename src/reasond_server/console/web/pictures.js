// Pictures of a run: windows against their size, savings with their signs, a tree, votes, calls of tools.

import { html } from "./dom.js";
import { firstLine, number, plural, savingInWords } from "./format.js";
import { Bar, Rows } from "./parts.js";
import { Repair } from "./repair.js";
import { Tree } from "./tree.js";
import { Turn } from "./turn.js";
import { votesOf } from "./view.js";

export function Pictures(props) {
  const { view } = props;
  if (view.kind === "turn") return html`<${Turn} view=${view} told=${props.told} />`;
  if (view.kind === "repair") return html`<${Repair} ...${props} />`;
  const kind = view.steps[0]?.kind;
  if (kind === "bounded_context") return html`<${Windows} ...${props} /><${Savings} view=${view} />`;
  if (kind === "tree") return html`<${Thoughts} ...${props} />`;
  if (kind === "react") return html`<${ToolUse} view=${view} />`;
  return html`<${Votes} view=${view} />`;
}

const WINDOW_PX = 26;

// What a window is filled with. Where its notes took a call of their own, what it wrote is not known apart.
export function partsOf(step, before) {
  const { window_tokens: all, carryover_report: report } = step.detail;
  const notes = Math.min(all, before?.detail.carryover_tokens ?? 0);
  const written = report?.has_own_call ? 0 : Math.min(all - notes, step.event.body.usage.output_tokens);
  return { all, notes, written, read: all - notes - written };
}

function Windows({ view, chosen, onChoose }) {
  const size = view.started.config?.chunk_size ?? 0;
  const row = (place) => html`<${WindowRow} step=${view.steps[place]} before=${view.steps[place - 1]} number=${place + 1} size=${size} />`;
  return html`<section aria-labelledby="windows-title">
    <h2 id="windows-title">Windows: each against its size of ${number(size)} tokens</h2>
    <p class="legend">
      <span><i class="swatch read" />question and text</span>
      <span><i class="swatch notes" />notes from the window before</span>
      <span><i class="swatch written" />written</span>
      <span><i class="swatch whole" />free</span>
      <span><i class="swatch dropped" />left out of the notes</span>
    </p>
    <${Rows} name="window" label="Windows" count=${view.steps.length} height=${WINDOW_PX} visible=${10} chosen=${chosen} onChoose=${onChoose} row=${row} />
  </section>`;
}

function WindowRow({ step, before, number: place, size }) {
  const { all, notes, written, read } = partsOf(step, before);
  const report = step.detail.carryover_report;
  const dropped = report?.dropped.reduce((sum, each) => sum + each.tokens, 0) ?? 0;
  const label = `${number(all)} of ${number(size)} tokens: ${number(read)} question and text, ${number(notes)} notes, ${number(written)} written`;
  return html`<span class="place">${place}</span>
    <span class="label">${step.label}</span>
    <${Bar} parts=${[["read", read], ["notes", notes], ["written", written]]} whole=${size} label=${label} />
    <span class="tokens">${number(all)}</span>
    <span class="carry">
      ${report ? `notes ${number(report.before_tokens)} → ${number(report.after_tokens)}` : step.hasAnswer ? "✓ answer" : ""}
      ${dropped > 0 && html` <i class="swatch dropped" /><b class="dropped">−${number(dropped)} ${report.dropped.map((each) => each.part).join(", ")}</b>`}
    </span>`;
}

const FIGURES = [
  ["attention_pct", "attention"],
  ["kv_read_pct", "reads of the cache"],
  ["peak_context_pct", "largest context"],
  ["tokens_pct", "tokens"],
];

export function Savings({ view }) {
  const told = view.completed?.metrics?.strategy_specific ?? {};
  const found = [told.savings, told.reprompt_savings].filter(Boolean);
  return html`<div class="halves">${found.map(
    (savings) => html`<section key=${savings.baseline}>
      <h2>Against ${savings.baseline === "single_pass" ? "one pass over everything" : "sending the history again each time"}</h2>
      <div class="savings">
        ${FIGURES.map(([key, name]) => html`<${Saving} key=${key} name=${name} percent=${savings[key]} />`)}
      </div>
      <p class="faint">${savings.is_measured ? "Measured: the model reported its usage." : "Partly estimated."}</p>
    </section>`,
  )}</div>`;
}

function Saving({ name, percent }) {
  const width = Math.min(50, Math.abs(percent) / 2);
  return html`<span>${name}</span>
    <svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
      <rect class=${percent >= 0 ? "saved" : "more"} x=${percent >= 0 ? 50 : 50 - width} width=${width} y="1" height="8" />
      <line x1="50" x2="50" y1="0" y2="10" />
    </svg>
    <b>${percent < 0 ? "▲ " : percent > 0 ? "▼ " : ""}${savingInWords(percent)}</b>`;
}

export function Votes({ view }) {
  const votes = votesOf(view);
  if (!votes.length) return null;
  const most = Math.max(...votes.map((each) => each.votes));
  const all = votes.reduce((sum, each) => sum + each.votes, 0);
  return html`<section aria-labelledby="votes-title">
    <h2 id="votes-title">Votes: ${plural(all, "sample")} with an answer</h2>
    <ol class="votes">
      ${votes.slice(0, 20).map(
        ({ answer, votes: count, score }, place) => html`<li key=${answer}>
          <span class="answer">${answer}</span>
          <${Bar} parts=${[[place ? "read" : "written", count]]} whole=${most} label=${plural(count, "vote")} />
          <b>${plural(count, "vote")}${score === null ? "" : `, score ${score.toFixed(2)}`}</b>
        </li>`,
      )}
    </ol>
  </section>`;
}

function ToolUse({ view }) {
  const uses = new Map();
  for (const { detail } of view.steps) {
    detail.actions.forEach((action, place) => {
      const use = uses.get(action.tool) ?? { calls: 0, failures: 0 };
      use.calls += 1;
      use.failures += detail.observations[place]?.is_error ? 1 : 0;
      uses.set(action.tool, use);
    });
  }
  if (!uses.size) return null;
  return html`<section>
    <h2>Tools</h2>
    <p>${[...uses].map(([name, use]) => html`<span key=${name} class="chip"><b>${name}</b> ${plural(use.calls, "call")}${use.failures ? `, ${number(use.failures)} failed` : ""}</span> `)}</p>
  </section>`;
}

function Thoughts({ view, chosen, onChoose }) {
  const nodes = view.steps.map(({ detail }, place) => ({
    id: detail.node_id,
    parentId: detail.parent_id,
    place,
    text: `${detail.score.toFixed(2)} ${firstLine(detail.thought)}`,
    title: detail.thought,
    mark: detail.answer ? "✓" : detail.is_pruned ? "✕" : "",
    share: detail.score,
    isPruned: detail.is_pruned,
  }));
  return html`<${Tree}
    nodes=${nodes}
    title="Tree: a node for each thought, with its score"
    label="Tree of thoughts"
    legend=${["○ kept", "┄ ✕ not followed", "✓ has an answer"]}
    chosen=${chosen}
    onChoose=${onChoose}
  />`;
}
