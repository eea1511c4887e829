// One step in full, and what its numbers mean.

import { html } from "./dom.js";
import { duration, number, plural, words } from "./format.js";
import { Bar, Facts, Prose, Text } from "./parts.js";
import { partsOf } from "./pictures.js";
import { CandidateDetail, CheckReports, Findings } from "./repair.js";

export function Detail({ step, number: place, view }) {
  const { body } = step.event;
  const usage = body.usage;
  const facts = [
    ["Took", duration(step.to - step.from)],
    ...(usage
      ? [
          ["Tokens in", number(usage.input_tokens) + (usage.cached_input_tokens ? `, ${number(usage.cached_input_tokens)} cached` : "")],
          ["Tokens out", number(usage.output_tokens) + (usage.reasoning_tokens ? `, ${number(usage.reasoning_tokens)} hidden` : "")],
          ["Model calls", number(usage.model_calls)],
        ]
      : []),
  ];
  const Body = BODIES[step.kind] ?? Custom;
  return html`<section class="detail" aria-labelledby="detail-title">
    <h2 id="detail-title">Step ${place}: ${step.label}</h2>
    <${Facts} facts=${facts} />
    <${Body} detail=${step.detail} step=${step} view=${view} />
  </section>`;
}

const BODIES = {
  thought: ({ detail }) => html`<${Prose} title="Reasoning" text=${detail.text} /><${Prose} title="Answer" text=${detail.answer} />`,
  bounded_context: Window,
  react: Cycle,
  tree: ({ detail }) => html`<${Facts}
      facts=${[["Node", detail.node_id], ["Score", detail.score.toFixed(2)], ["Depth", detail.depth], ["Grew from", detail.parent_id || "the question"], ["Followed", detail.is_pruned ? "✕ no" : "yes"]]}
    />
    <${Prose} title="Thought" text=${detail.thought} /><${Prose} title="Answer" text=${detail.answer} />`,
  sample: ({ detail }) => html`<${Facts} facts=${[["Counted as", detail.normalized_answer || "no answer"], ["Temperature", detail.temperature]]} />
    <${Prose} title="Reasoning" text=${detail.text} /><${Prose} title="Answer" text=${detail.answer} />`,
  stage: ({ detail }) => html`${detail.score !== null && detail.score !== undefined && html`<${Facts} facts=${[["Score", detail.score.toFixed(2)]]} />`}
    <${Prose} title=${words(detail.stage)} text=${detail.text} /><${Prose} title="Answer" text=${detail.answer} />`,
  model_call: ModelCall,
  tool: ({ detail }) => html`<${Facts} facts=${[["State", words(detail.state)], ["Result", `${number(detail.result_bytes)} bytes`]]} />`,
  handed_off: ({ detail }) => html`${detail.calls.map(
    ({ call, kind }) => html`<${Prose} key=${call.call_id} title=${`The client shall ${words(kind)} ${call.tool}`} text=${call.arguments_json} />`,
  )}
    <p class="faint">etag <code>${detail.etag}</code></p>`,
  candidate: CandidateDetail,
  critique: ({ detail }) => html`<${Facts} facts=${[["Verdict", words(detail.verdict)], ["Score", detail.score], ["Accepted", detail.is_accepted ? "✓ yes" : "no"]]} />
    <${CheckReports} reports=${detail.reports} /><${Findings} findings=${detail.findings} />`,
  baseline: ({ detail }) => html`<${CheckReports} reports=${detail.reports} />`,
  validation: ({ detail }) => html`<${Prose} title="Problem" text=${detail.problem} /><${CheckReports} reports=${detail.reports} />`,
};

function Window({ detail, step, view }) {
  const report = detail.carryover_report;
  const { all, notes, written, read } = partsOf(step, view.steps[view.steps.indexOf(step) - 1]);
  const parts = [
    ["Question and text", number(read)],
    ["Notes from before", number(notes)],
    ["Written", report?.has_own_call ? "not told apart" : number(written)],
    ["Free", number(Math.max(0, (view.started.config?.chunk_size ?? all) - all))],
  ];
  return html`<${Facts} facts=${parts} /><${Prose} title="Written in this window" text=${detail.text} />
    ${report &&
    html`<h3>Notes for the next window: ${number(report.before_tokens)} → ${number(report.after_tokens)} tokens</h3>
      ${report.dropped.length > 0 &&
      html`<ul>
        ${report.dropped.map((each) => html`<li key=${each.part}>left out: ${number(each.tokens)} tokens of the ${each.part}</li>`)}
      </ul>`}
      ${report.has_own_call && html`<p>A model call of its own wrote them.</p>`}
      ${report.fallback_reason && html`<p>⚠ ${report.fallback_reason}</p>`}`}
    <${Prose} title="Notes" text=${detail.carryover} />
    ${!detail.is_window_exact && html`<p class="faint">The tokens of this window are estimated.</p>`}`;
}

function Cycle({ detail }) {
  return html`<${Prose} title="Thought" text=${detail.thought} />
    ${detail.actions.map((action, place) => {
      const seen = detail.observations[place];
      return html`<div key=${action.call_id} class="call">
        <${Prose} title=${`Calls ${action.tool}`} text=${action.arguments_json} />
        <${Prose} title=${seen?.is_error ? "✕ Error" : "Result"} text=${seen?.result_json} />
      </div>`;
    })}`;
}

function ModelCall({ detail }) {
  const whole = Math.max(...detail.context.map((each) => each.full_tokens), 1);
  return html`<h3>The prompt: ${plural(detail.context.length, "part")}</h3>
    <ul class="context">
      ${detail.context.map(
        (each, place) => html`<li key=${place}>
          <span>${each.source}</span>
          <${Bar} parts=${[["read", each.tokens]]} whole=${whole} label=${`${number(each.tokens)} of ${number(each.full_tokens)} tokens`} />
          <span>${number(each.tokens)}${each.tokens < each.full_tokens ? ` of ${number(each.full_tokens)}, ${words(each.rendering)}` : ""}</span>
        </li>`,
      )}
    </ul>
    <p class="faint">Tools on offer: ${detail.tools.join(", ") || "none"}. Mode: ${detail.mode || "none"}.</p>
    <${Prose} title="Written" text=${detail.text} />
    ${detail.calls.map((each) => html`<${Prose} key=${each.call_id} title=${`Calls ${each.tool}`} text=${each.arguments_json} />`)}`;
}

function Custom({ detail }) {
  return html`<${Text} name="json" label="The step as JSON">${JSON.stringify(detail, null, 2)}<//>`;
}
