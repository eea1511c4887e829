// A turn: the ledger of its calls, and the calls that wait for their client, which can be settled here.

import { Component, html } from "./dom.js";
import { clock, number, words } from "./format.js";
import { Problem, Prose } from "./parts.js";
import { call } from "./rpc.js";
import { ledgerOf } from "./view.js";

const EXAMPLE = '"a text", or {"key": 1}';
const MARKS = {
  expected: "○",
  started: "▶",
  handed_off: "◐",
  succeeded: "✓",
  settled: "✓",
  failed: "✕",
  unknown: "?",
  not_run: "–",
};

export function Turn({ view }) {
  const { entries, pending } = ledgerOf(view.steps);
  return html`${pending && !view.completed && html`<${Pending} key=${pending.etag} turnId=${view.id} handoff=${pending} />`}
    ${entries.length > 0 &&
    html`<section aria-labelledby="ledger-title">
      <h2 id="ledger-title">Ledger of calls</h2>
      <div class="scroll" tabindex="0" role="region" aria-label="Ledger of calls"><table>
        <thead><tr><th scope="col">Call</th><th scope="col">Tool</th><th scope="col">Arguments</th><th scope="col">Who</th><th scope="col">State</th><th scope="col" class="right">Result</th></tr></thead>
        <tbody>
          ${entries.map(
            (each) => html`<tr key=${each.call_id}>
              <td class="id">${each.call_id}</td><td>${each.tool}</td><td><code>${each.arguments_json}</code></td><td>${each.by}</td>
              <td class=${`state ${each.is_error ? "failed" : each.state}`}>${MARKS[each.state] ?? "•"} ${words(each.state)}${each.is_error ? ", an error" : ""}</td>
              <td class="right">${each.result_bytes ? `${number(each.result_bytes)} bytes` : "–"}</td>
            </tr>`,
          )}
        </tbody>
      </table></div>
    </section>`}`;
}

class Pending extends Component {
  state = { error: null, isSent: false };

  settle(event) {
    event.preventDefault();
    const { turnId, handoff } = this.props;
    const form = new FormData(event.target);
    const results = [];
    const decisions = [];
    for (const { call: each, kind } of handoff.calls) {
      const said = form.get(each.call_id) ?? "";
      if (kind === "approve") decisions.push({ call_id: each.call_id, is_approved: said === "approve", reason: form.get(`${each.call_id}-reason`) ?? "" });
      else results.push({ call_id: each.call_id, result_json: said, is_error: form.has(`${each.call_id}-error`) });
    }
    this.setState({ isSent: true, error: null });
    call("turns.reenter", { turn_id: turnId, etag: handoff.etag, results, decisions }).catch((error) => this.setState({ error, isSent: false }));
  }

  render({ handoff }, { error, isSent }) {
    return html`<section class="pending" aria-labelledby="pending-title">
      <h2 id="pending-title">◐ Waits for its client until ${clock(handoff.expire_time)}</h2>
      <form onSubmit=${(event) => this.settle(event)}>
        ${handoff.calls.map(({ call: each, kind }) => (kind === "approve" ? html`<${Approval} call=${each} />` : html`<${Result} call=${each} kind=${kind} />`))}
        ${error && html`<${Problem} error=${error} />`}
        <button class="main" disabled=${isSent}>Settle ${handoff.calls.length === 1 ? "this call" : `all ${handoff.calls.length} calls`}</button>
        <span class="faint"> The program that began the turn usually does this.</span>
      </form>
    </section>`;
  }
}

function Approval({ call: each }) {
  return html`<fieldset>
    <legend>May the server call <b>${each.tool}</b>? <span class="id">${each.call_id}</span></legend>
    <${Prose} title="Arguments" text=${each.arguments_json} />
    <label class="check"><input type="radio" name=${each.call_id} value="approve" required /> approve</label>
    <label class="check"><input type="radio" name=${each.call_id} value="refuse" /> refuse</label>
    <label>Why not <input name=${`${each.call_id}-reason`} maxlength="1000" /></label>
  </fieldset>`;
}

function Result({ call: each, kind }) {
  return html`<fieldset>
    <legend>${kind === "resolve" ? "What came of" : "The client runs"} <b>${each.tool}</b> <span class="id">${each.call_id}</span></legend>
    <${Prose} title="Arguments" text=${each.arguments_json} />
    <label>Result as JSON <textarea name=${each.call_id} required rows="2" placeholder=${EXAMPLE}></textarea></label>
    <label class="check"><input type="checkbox" name=${`${each.call_id}-error`} /> it failed</label>
  </fieldset>`;
}
