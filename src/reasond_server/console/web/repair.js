// A repair: its candidates in rounds, how each was judged, and the patch.

import { html } from "./dom.js";
import { Diff } from "./diff.js";
import { checkedWith, firstLine, number, plural, words } from "./format.js";
import { Facts, Prose } from "./parts.js";
import { Tree } from "./tree.js";

function candidatesOf(steps) {
  const found = new Map();
  steps.forEach(({ event }, place) => {
    const { body } = event;
    if (event.name === "candidate") found.set(body.candidate_id, { ...body, place });
    if (event.name === "critique") Object.assign(found.get(body.candidate_id) ?? {}, { critique: body });
    if (event.name === "vote") body.vote.votes.forEach((vote) => Object.assign(found.get(vote.candidate_id) ?? {}, { vote }));
    if (event.name === "validation") Object.assign(found.get(body.candidate_id) ?? {}, { validation: body });
  });
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

// The tree of candidates: each below the one that it was made from, with its verdict and score.
function Candidates({ candidates, finalId, chosen, onChoose }) {
  const nodes = candidates.map((each) => ({
    id: each.candidate_id,
    parentId: each.parent_id,
    place: each.place,
    text: `${each.candidate_id} ${each.critique ? each.critique.score.toFixed(0) : ""} ${firstLine(each.thought ?? "")}`,
    title: `${each.candidate_id}: ${verdictOf(each)}. ${each.thought ?? ""}`,
    mark: each.candidate_id === finalId ? "★" : verdictOf(each)[0],
    share: Math.min(1, Math.max(0, (each.critique?.score ?? 0) / 100)),
    isPruned: each.status !== "proposed" || (each.critique && each.critique.verdict !== "passed"),
    isBest: each.candidate_id === finalId,
  }));
  return html`<${Tree}
    nodes=${nodes}
    title="Candidates: each beside the one that it was made from"
    label="Tree of candidates"
    legend=${["★ the winner", "✓ passed", "✕ failed", "– not applied", "the number is its score, of 100"]}
    chosen=${chosen}
    onChoose=${onChoose}
  />`;
}

export function Repair({ view, chosen, onChoose }) {
  const final = view.completed;
  const isWinner = (each) => each.candidate_id === final?.final_candidate_id;
  const found = candidatesOf(view.steps);
  const candidates = [...found.filter(isWinner), ...found.filter((each) => !isWinner(each))];
  return html`${final &&
    html`<section aria-labelledby="patch-title">
      <h2 id="patch-title">${verdictOfEnd(final)}</h2>
      <${Facts} facts=${[["Checked with", checkedWith(final)], ["Sandbox", words(final.level)], ["Checks run", number(final.checks)], ["Candidates", number(candidates.length)]]} />
      <${Diff} text=${final.patch} name=${`${view.id.slice(0, 8)}.patch`} />
    </section>`}
    ${found.length > 0 && html`<${Candidates} candidates=${found} finalId=${final?.final_candidate_id} chosen=${chosen} onChoose=${onChoose} />`}
    ${candidates.length > 0 &&
    html`<section aria-labelledby="candidates-title">
      <h2 id="candidates-title">Candidates by their checks</h2>
      <div class="scroll short" tabindex="0" role="region" aria-label="Candidates"><table>
        <thead><tr><th scope="col">Candidate</th><th scope="col">Made from</th><th scope="col">Verdict</th><th scope="col" class="right">Score</th><th scope="col">Checks</th><th scope="col">Vote</th><th scope="col">Last check</th></tr></thead>
        <tbody>${candidates.slice(0, MOST_SHOWN).map((each) => html`<${CandidateRow} key=${each.candidate_id} candidate=${each} isFinal=${isWinner(each)} />`)}</tbody>
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
    <td>${validation ? (validation.is_valid ? `✓ passed ${checkedWith(validation)}` : "✕ not valid") : "–"}</td>
  </tr>`;
}

export function CandidateDetail({ detail }) {
  return html`<${Prose} title="Problem" text=${detail.problem} />
    <${Prose} title="Thought" text=${detail.thought} />
    <h3>Against the original</h3>
    <${Diff} text=${detail.code_or_plan} />`;
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
