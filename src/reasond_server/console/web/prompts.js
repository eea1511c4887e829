// The model calls of a run: what each was sent and what came back, with its tokens, cached share and seconds.

import { Component, html } from "./dom.js";
import { duration, money, number, plural, words } from "./format.js";
import { Facts, Problem, Prose, Rows } from "./parts.js";
import { call } from "./rpc.js";

const ROW_PX = 32;
const AGAIN_MS = 1_000;

const share = ({ input_tokens: all, cached_input_tokens: cached }) => (all ? `${Math.round((100 * cached) / all)} %` : "–");

export class Prompts extends Component {
  state = { calls: [], error: null, chosen: 0, isRead: false };
  leaving = new AbortController();

  componentDidMount() {
    this.read();
  }

  // New calls come with new steps; a page that was read is not asked for again.
  componentDidUpdate(before) {
    if (before.steps === this.props.steps && before.isOver === this.props.isOver) return;
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.read(), AGAIN_MS);
  }

  componentWillUnmount() {
    this.leaving.abort();
    clearTimeout(this.waiting);
  }

  async read() {
    if (this.isReading) return;
    this.isReading = true;
    try {
      const calls = [];
      let token = "";
      do {
        const page = await call("executions.list_calls", { execution_id: this.props.id, page_token: token, page_size: 100 }, this.leaving.signal);
        calls.push(...page.calls);
        token = page.next_page_token;
      } while (token);
      this.setState({ calls, isRead: true, error: null });
    } catch (error) {
      if (!this.leaving.signal.aborted) this.setState({ error });
    } finally {
      this.isReading = false;
    }
  }

  render({ isOver }, { calls, error, chosen, isRead }) {
    if (error) return html`<${Problem} error=${error} />`;
    if (!calls.length) return html`<p class="empty">${!isRead ? "Reading …" : html`${isOver ? "No prompt of this run is kept." : "No model call has ended yet, or none is kept."} <code>[store] record_prompts = true</code> keeps those of later runs.`}</p>`;
    const one = calls[Math.min(chosen, calls.length - 1)];
    return html`<div class="halves steps">
      <section aria-labelledby="calls-title">
        <h2 id="calls-title">${plural(calls.length, "model call")} that ended</h2>
        <${Rows}
          name="call-row"
          label="Model calls"
          count=${calls.length}
          height=${ROW_PX}
          visible=${12}
          chosen=${chosen}
          onChoose=${(place) => this.setState({ chosen: place })}
          row=${(place) => html`<${CallRow} told=${calls[place]} />`}
        />
      </section>
      <${CallDetail} told=${one} />
    </div>`;
  }
}

function CallRow({ told }) {
  const { usage } = told;
  return html`<span class="place">${told.number}</span>
    <span class="tokens">${number(usage.input_tokens)} in</span>
    <span class="tokens">${share(usage)} cached</span>
    <span class="tokens">${number(usage.output_tokens)} out</span>
    <span class="tokens">${duration(told.elapsed_ms)}</span>
    <span class="headline">${told.text || told.tool_calls.join(", ")}</span>`;
}

function CallDetail({ told }) {
  const { usage } = told;
  const perSecond = told.elapsed_ms ? (1000 * usage.output_tokens) / told.elapsed_ms : 0;
  const facts = [
    ["Tokens in", number(usage.input_tokens)],
    ["Cached", share(usage)],
    ["Tokens out", number(usage.output_tokens) + (usage.reasoning_tokens ? `, ${number(usage.reasoning_tokens)} hidden` : "")],
    ["Took", duration(told.elapsed_ms)],
    ["Speed", perSecond ? `${perSecond.toFixed(perSecond < 10 ? 1 : 0)} tokens/s` : "–"],
    ...(money(usage.cost_usd) ? [["Cost", money(usage.cost_usd)]] : []),
    ["Ended", words(told.outcome)],
    ["Temperature", told.temperature],
    ["Most tokens", number(told.max_tokens)],
    ["Model", told.model],
  ];
  return html`<section class="detail" aria-labelledby="call-title">
    <h2 id="call-title">Call ${told.number}${told.label ? `: ${told.label}` : ""}</h2>
    <${Facts} facts=${facts} />
    ${told.left_out_characters > 0 && html`<p class="note">${number(told.left_out_characters)} characters are not kept: they are more than a call or a run may keep.</p>`}
    <h3>What came back</h3>
    <${Prose} heading="h4" title="Hidden reasoning" text=${told.thinking} />
    <${Prose} heading="h4" title="Text" text=${told.text} />
    <${Prose} heading="h4" title="Calls of tools" text=${told.tool_calls.join("\n")} />
    <h3>What it was sent</h3>
    ${told.prompt.map((each, place) => html`<${Prose} key=${place} heading="h4" title=${`${place + 1}. ${each.role}${each.images ? `, with ${plural(each.images, "image")}` : ""}`} text=${each.text} />`)}
    ${told.tools.length > 0 && html`<p class="faint">Tools on offer: ${told.tools.join(", ")}.</p>`}
  </section>`;
}
