// Pictures of a run: windows against their size, savings with their signs, a tree, votes, calls of tools.

import { html } from "./dom.js";
import { firstLine, number, plural, savingInWords } from "./format.js";
import { Bar, Rows } from "./parts.js";
import { Repair } from "./repair.js";
import { Turn } from "./turn.js";
import { votesOf } from "./view.js";

export function Pictures(props) {
  const { view } = props;
  if (view.kind === "turn") return html`<${Turn} view=${view} told=${props.told} />`;
  if (view.kind === "repair") return html`<${Repair} view=${view} />`;
  const kind = view.steps[0]?.kind;
  if (kind === "bounded_context") return html`<${Windows} ...${props} /><${Savings} view=${view} />`;
  if (kind === "tree") return html`<${Tree} ...${props} />`;
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

const NODE_X = 220;
const NODE_Y = 48;
const SHOWN_CHARACTERS = 26;
const MOST_NODES = 400;

// Leaves stand below one another, and a parent in the middle of its children.
function layOut(steps) {
  const nodes = new Map();
  steps.slice(0, MOST_NODES).forEach((step, place) => nodes.set(step.detail.node_id, { step, place, children: [] }));
  const roots = [];
  for (const node of nodes.values()) {
    const parent = nodes.get(node.step.detail.parent_id);
    (parent ? parent.children : roots).push(node);
  }
  let leaves = 0;
  const put = (node, depth) => {
    node.x = depth * NODE_X;
    node.children.forEach((child) => put(child, depth + 1));
    const { children } = node;
    node.y = children.length ? (children[0].y + children.at(-1).y) / 2 : leaves++ * NODE_Y;
  };
  const origin = { children: roots, step: null };
  put(origin, 0);
  return { origin, all: [...nodes.values()], height: Math.max(1, leaves) * NODE_Y };
}

export function Tree({ view, chosen, onChoose }) {
  const { origin, all, height } = layOut(view.steps);
  const width = Math.max(0, ...all.map((each) => each.x)) + 1.3 * NODE_X;
  const edges = [origin, ...all].flatMap((node) => node.children.map((child) => [node, child]));
  const left = view.steps.length - all.length;
  return html`<section>
    <h2>Tree: a node for each thought, with its score</h2>
    <p class="legend">
      <span>○ kept</span><span>┄ ✕ not followed</span><span>✓ has an answer</span>
      ${left > 0 && html`<span>${plural(left, "more node")} in the list below</span>`}
    </p>
    <div class="scroll tree" tabindex="0" role="region" aria-label="Tree of thoughts">
      <svg role="img" aria-label=${`${plural(all.length, "node")}; the list of steps names them`} width=${width} height=${height} viewBox=${`-14 -30 ${width} ${height}`}>
        ${edges.map(([from, to]) => html`<path key=${to.place} class=${to.step.detail.is_pruned ? "edge pruned" : "edge"} d=${`M${from.x},${from.y} C${from.x + 70},${from.y} ${to.x - 70},${to.y} ${to.x},${to.y}`} />`)}
        <circle cx=${origin.x} cy=${origin.y} r="6" class="node" />
        ${all.map((node) => html`<${Node} key=${node.place} node=${node} isChosen=${node.place === chosen} onChoose=${onChoose} />`)}
      </svg>
    </div>
  </section>`;
}

function Node({ node, isChosen, onChoose }) {
  const { detail } = node.step;
  const mark = detail.answer ? "✓ " : detail.is_pruned ? "✕ " : "";
  const name = `node${detail.is_pruned ? " pruned" : ""}${isChosen ? " chosen" : ""}`;
  return html`<g onClick=${() => onChoose(node.place)}>
    <title>${detail.thought}</title>
    <circle cx=${node.x} cy=${node.y} r=${5 + 6 * detail.score} class=${name} />
    <text x=${node.x - 8} y=${node.y - 14}>${mark}${detail.score.toFixed(2)} ${firstLine(detail.thought).slice(0, SHOWN_CHARACTERS)}</text>
  </g>`;
}
