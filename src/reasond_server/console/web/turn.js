// A turn: the ledger of its calls, and the calls that wait for their client, which can be settled here.

import { Component, html } from "./dom.js";
import { clock, duration, number, plural, words } from "./format.js";
import { Problem, Prose } from "./parts.js";
import { call } from "./rpc.js";
import { ledgerOf } from "./view.js";

const EXAMPLE = '"a text", or {"key": 1}';
const SHOWN_BYTES = 100_000;
const TICK_MS = 1_000;
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

export function Turn({ view, told }) {
  const { entries, pending } = ledgerOf(view.steps, told?.turn.ledger ?? []);
  return html`${told?.conversation && html`<${Conversation} said=${told.conversation} isOpen=${Boolean(pending)} />`}
    ${pending && !view.completed && html`<${Pending} key=${pending.etag} turnId=${view.id} handoff=${pending} />`}
    ${entries.length > 0 &&
    html`<section aria-labelledby="ledger-title">
      <h2 id="ledger-title">Ledger of calls</h2>
      <div class="scroll" tabindex="0" role="region" aria-label="Calls and their results"><table>
        <thead><tr><th scope="col">Call</th><th scope="col">Tool and arguments</th><th scope="col">Who</th><th scope="col">State</th><th scope="col">Result</th></tr></thead>
        <tbody>
          ${entries.map(
            (each) => html`<tr key=${each.call_id}>
              <td class="id">${each.call_id}</td><td class="asked"><b>${each.tool}</b><div><code>${each.arguments_json}</code></div></td><td>${each.by}</td>
              <td class=${`state ${each.is_error ? "failed" : each.state}`}>${MARKS[each.state] ?? "•"} ${words(each.state)}${each.is_error ? ", an error" : ""}</td>
              <td class="asked">${each.result_json ? html`<code>${each.result_json}</code>` : each.result_bytes ? html`<${LongResult} turnId=${view.id} entry=${each} />` : "–"}${each.refusal && html`<div>Refused: ${each.refusal}</div>`}</td>
            </tr>`,
          )}
        </tbody>
      </table></div>
    </section>`}`;
}

// What a person must know before a call is approved: open while one waits.
function Conversation({ said, isOpen }) {
  const count = said.history.length + said.left_out_messages;
  if (!count && !said.system && !said.material && !said.context.length) return null; // The message stands above.
  return html`<details class="said" aria-label="What was said" open=${isOpen}>
    <summary>What was said${count ? `, and ${plural(count, "message")} before` : ""}</summary>
    <${Prose} title="Instructions of the application" text=${said.system} />
    ${said.left_out_messages > 0 && html`<p class="note">${plural(said.left_out_messages, "older message")} left out here.</p>`}
    ${count > 0 && html`<ol class="talk" tabindex="0" aria-label="Said before">${said.history.map((each, place) => html`<li key=${place} class=${each.role}><b>${each.role}</b> ${saidBy(each)}</li>`)}</ol>`}
    <${Prose} title="About this text" text=${said.material} />
    ${said.context.map((each) => html`<${Prose} key=${each.name} title=${`Context: ${each.name}`} text=${each.text} />`)}
  </details>`;
}

const saidBy = ({ text, tool_calls: calls, tool_results: results }) =>
  [text, ...(calls ?? []).map((each) => `${each.tool} ${each.arguments_json}`), ...(results ?? []).map((each) => each.result_json)].filter(Boolean).join("\n");

// A result that is too long for the ledger is read when somebody wants it.
class LongResult extends Component {
  state = { text: null, error: null };

  read() {
    const { turnId, entry } = this.props;
    call("turns.read_tool_result", { turn_id: turnId, call_id: entry.call_id, max_bytes: SHOWN_BYTES }).then(
      ({ text, next_offset: more }) => this.setState({ text: more ? `${text}…` : text }),
      (error) => this.setState({ error }),
    );
  }

  render({ entry }, { text, error }) {
    if (error) return html`<${Problem} error=${error} />`;
    if (text !== null) return html`<pre class="result" tabindex="0" role="group" aria-label="Result">${text}</pre>`;
    return html`<button type="button" onClick=${() => this.read()}>Show ${number(entry.result_bytes)} bytes</button>`;
  }
}

class Pending extends Component {
  state = { error: null, isSent: false };

  componentDidMount() {
    this.ticking = setInterval(() => this.setState({}), TICK_MS);
  }

  componentWillUnmount() {
    clearInterval(this.ticking);
  }

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
    const left = Date.parse(handoff.expire_time) - Date.now();
    return html`<section class="pending" aria-labelledby="pending-title">
      <h2 id="pending-title">◐ Waits for its client</h2>
      <p>${left > 0 ? `Settle it within ${duration(left)}` : "The time to settle it is over"}: until ${clock(handoff.expire_time)}.</p>
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
    <label>Why not; the model reads it <input name=${`${each.call_id}-reason`} maxlength="1000" /></label>
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
