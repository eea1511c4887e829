// A repair: its candidates in rounds, how each was judged, and the patch.

import { html } from "./dom.js";
import { number, plural, words } from "./format.js";
import { Facts, Prose, Text } from "./parts.js";

function candidatesOf(steps) {
  const found = new Map();
  for (const { event } of steps) {
    const { body } = event;
    if (event.name === "candidate") found.set(body.candidate_id, { ...body });
    if (event.name === "critique") Object.assign(found.get(body.candidate_id) ?? {}, { critique: body });
    if (event.name === "vote") body.vote.votes.forEach((vote) => Object.assign(found.get(vote.candidate_id) ?? {}, { vote }));
    if (event.name === "validation") Object.assign(found.get(body.candidate_id) ?? {}, { validation: body });
  }
  return [...found.values()];
}

function verdictOfEnd({ goal, is_accepted: isAccepted }) {
  if (goal === "plan") return "The plan; nothing of it was run";
  return isAccepted ? "✓ The patch was accepted" : "✕ The best patch was not accepted";
}

const verdictOf = ({ status, critique }) => {
  if (status !== "proposed") return `– ${words(status)}`;
  if (!critique) return "… not judged yet";
  return `${critique.verdict === "passed" ? "✓" : "✕"} ${words(critique.verdict)}`;
};

const MOST_SHOWN = 200;

export function Repair({ view }) {
  const candidates = candidatesOf(view.steps);
  const final = view.completed;
  return html`${final &&
    html`<section aria-labelledby="patch-title">
      <h2 id="patch-title">${verdictOfEnd(final)}</h2>
      <${Facts} facts=${[["Checked with", words(final.verification)], ["Sandbox", words(final.level)], ["Checks run", number(final.checks)], ["Candidates", number(candidates.length)]]} />
      <${Diff} text=${final.patch} />
    </section>`}
    ${candidates.length > 0 &&
    html`<section aria-labelledby="candidates-title">
      <h2 id="candidates-title">Candidates</h2>
      <div class="scroll short" tabindex="0" role="region" aria-label="Candidates"><table>
        <thead><tr><th scope="col">Candidate</th><th scope="col">Made from</th><th scope="col">Verdict</th><th scope="col" class="right">Score</th><th scope="col">Checks</th><th scope="col">Vote</th><th scope="col">Held-out</th></tr></thead>
        <tbody>${candidates.slice(0, MOST_SHOWN).map((each) => html`<${CandidateRow} key=${each.candidate_id} candidate=${each} isFinal=${each.candidate_id === final?.final_candidate_id} />`)}</tbody>
      </table></div>
      ${candidates.length > MOST_SHOWN && html`<p class="faint">The first ${MOST_SHOWN} of ${number(candidates.length)}; the steps below hold all.</p>`}
    </section>`}`;
}

function CandidateRow({ candidate, isFinal }) {
  const { critique, vote, validation } = candidate;
  const passed = critique?.reports.filter((each) => each.status === "passed").length;
  return html`<tr>
    <td class="id">${isFinal ? html`<b>★ ${candidate.candidate_id}</b>` : candidate.candidate_id}</td>
    <td class="id">${candidate.parent_id || "the original"}</td>
    <td>${verdictOf(candidate)}</td>
    <td class="right">${critique ? critique.score.toFixed(1) : "–"}</td>
    <td>${critique ? `${passed} of ${plural(critique.reports.length, "check")} passed` : "–"}</td>
    <td>${vote ? `${vote.weight.toFixed(2)}, ${plural(vote.cluster_size, "alike")}`.replace("alikes", "alike") : "–"}</td>
    <td>${validation ? (validation.is_valid ? `✓ ${words(validation.verification)}` : "✕ not valid") : "–"}</td>
  </tr>`;
}

export function CandidateDetail({ detail }) {
  return html`<${Prose} title="Problem" text=${detail.problem} />
    <${Prose} title="Thought" text=${detail.thought} />
    <h3>Against the original</h3>
    <${Diff} text=${detail.code_or_plan} />`;
}

const KINDS_OF_LINES = { "+": "added", "-": "removed", "@": "place" };

const kindOfLine = (line) => (/^(\+\+\+|---) /.test(line) ? "place" : (KINDS_OF_LINES[line[0]] ?? ""));

export function Diff({ text }) {
  if (!text) return html`<p class="faint">No text is kept.</p>`;
  return html`<${Text} name="diff" label="Unified diff">${text
    .split("\n")
    .map((line, place) => html`<span key=${place} class=${kindOfLine(line)}>${line || " "}</span>`)}<//>`;
}

export function CheckReports({ reports }) {
  return reports.map(
    (each) => html`<div key=${each.name} class="call">
      <h3>${each.status === "passed" ? "✓" : "✕"} ${each.name}: ${words(each.status)}${each.total ? `, ${each.passed} of ${plural(each.total, "test")}` : ""}</h3>
      ${each.failed.length > 0 && html`<p class="faint">Failed: ${each.failed.join(", ")}</p>`}
      <${Prose} title="What it printed" text=${each.evidence} />
    </div>`,
  );
}

export function Findings({ findings }) {
  if (!findings.length) return null;
  return html`<h3>New findings</h3>
    <ul>${findings.map((each, place) => html`<li key=${place}>${words(each.severity)}: ${each.path}:${each.line} ${each.rule_id} ${each.message}</li>`)}</ul>`;
}
