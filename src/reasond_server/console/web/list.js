// The screens of lists: executions (repairs among them), and turns. Filters are those of the methods.

import { Component, html } from "./dom.js";
import { badgeOf, clock, duration, money, number, since, tokens } from "./format.js";
import { Badge, Problem } from "./parts.js";
import { call } from "./rpc.js";

const REFRESH_MS = 5_000;
const TYPING_MS = 300;
const PAGE = 50;
const SINCE = { "": "any time", 1: "the last hour", 24: "the last day", 168: "the last week" };
const FILTER_STATES = ["running", "suspended", "succeeded", "failed", "cancelled"];

const took = (item) => (item.end_time ? Date.parse(item.end_time) : Date.now()) - Date.parse(item.create_time);

class Listing extends Component {
  constructor(props) {
    super(props);
    this.state = { items: [], more: "", error: null, isLoaded: false, refreshes: true, chosen: [], filters: {} };
  }

  componentDidMount() {
    this.load();
    this.timer = setInterval(() => {
      const isReading = this.state.items.length > PAGE || document.hidden || this.isLoading;
      if (this.state.refreshes && !isReading) this.load();
    }, REFRESH_MS);
  }

  componentWillUnmount() {
    clearInterval(this.timer);
    clearTimeout(this.waiting);
    this.isGone = true;
  }

  // A page that was asked for before the filters changed is dropped.
  async load(pageToken = "") {
    this.isLoading = true;
    const turn = (this.turn = (this.turn ?? 0) + 1);
    try {
      const page = await call(this.method, { ...this.params(), page_size: PAGE, page_token: pageToken });
      const items = page[this.member];
      if (this.isGone || turn !== this.turn) return;
      this.setState((before) => ({
        items: pageToken ? [...before.items, ...items] : items,
        more: page.next_page_token,
        error: null,
        isLoaded: true,
      }));
    } catch (error) {
      this.setState({ error, isLoaded: true });
    } finally {
      this.isLoading = false;
    }
  }

  filter(name, value, waitMs = 0) {
    this.setState((before) => ({ filters: { ...before.filters, [name]: value } }));
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => {
      this.setState({ items: [], more: "", isLoaded: false });
      this.load();
    }, waitMs);
  }

  choice(label, name, options) {
    return html`<label>${label}
      <select value=${this.state.filters[name] ?? ""} onChange=${(event) => this.filter(name, event.target.value)}>
        ${options.map(([value, text]) => html`<option key=${value} value=${value}>${text}</option>`)}
      </select>
    </label>`;
  }

  render(_, { items, more, error, isLoaded, refreshes }) {
    return html`<h1>${this.title}</h1>
      <form class="filters" onSubmit=${(event) => event.preventDefault()}>
        ${this.filters()}
        <label class="check">
          <input type="checkbox" checked=${refreshes} onChange=${() => this.setState({ refreshes: !refreshes })} />
          refresh every 5 s
        </label>
        <button type="button" onClick=${() => this.load()}>Refresh</button>
        ${this.actions()}
      </form>
      ${error && html`<${Problem} error=${error} />`}
      ${isLoaded && !items.length && !error && html`<p class="empty">${more ? "Nothing among the newest runs. There are older ones." : html`${Object.values(this.state.filters).some(Boolean) ? "Nothing kept fits these filters." : this.emptyText} <a href=${`#/${this.form}`}>Begin one</a>`}</p>`}
      ${items.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label=${this.title}>${this.table(items)}</div>`}
      ${more && html`<p><button type="button" onClick=${() => this.load(more)}>${items.length ? "Show more" : "Look further back"}</button></p>`}`;
  }

  actions() {
    return null;
  }
}

export class Executions extends Listing {
  title = "Runs";
  method = "executions.list";
  member = "executions";
  emptyText = "No run yet.";
  form = "ask";

  componentDidMount() {
    super.componentDidMount();
    call("reasoning.list_strategies").then(
      ({ strategies }) => this.setState({ strategies: strategies.map((each) => each.name) }),
      () => {},
    );
  }

  params() {
    const { state, strategy, since, text } = this.state.filters;
    return {
      ...(state && { state }),
      ...(strategy && { strategy }),
      ...(text && { text }),
      ...(since && { create_time_after: new Date(Date.now() - since * 3_600_000).toISOString() }),
    };
  }

  filters() {
    const strategies = [...(this.state.strategies ?? []), "repair"];
    return html`<label class="search">Search
        <input type="search" maxlength="200" placeholder="question, answer, id, client" value=${this.state.filters.text ?? ""} onInput=${(event) => this.filter("text", event.target.value.trim(), TYPING_MS)} />
      </label>
      ${this.choice("State", "state", [["", "any"], ...FILTER_STATES.map((each) => [each, each])])}
      ${this.choice("Strategy", "strategy", [["", "any"], ...strategies.map((each) => [each, each])])}
      ${this.choice("Begun in", "since", Object.entries(SINCE))}`;
  }

  actions() {
    const { chosen, items } = this.state;
    if (items.length < 2) return null;
    if (chosen.length !== 2) return html`<span class="faint">Tick two runs to compare them.</span>`;
    return html`<a class="button" href=${`#/compare/${chosen.join("/")}`}>Compare these two</a>`;
  }

  tick(id) {
    this.setState(({ chosen }) => ({
      chosen: chosen.includes(id) ? chosen.filter((each) => each !== id) : [...chosen, id].slice(-2),
    }));
  }

  table(items) {
    const most = Math.max(...items.map((each) => tokens(each.usage)), 1);
    const hasCost = items.some((each) => each.usage.cost_usd !== null);
    return html`<table class="runs">
      <thead>
        <tr>
          <th scope="col"><span class="hidden">Compare</span></th>
          <th scope="col">Asked, and what came of it</th><th scope="col">State</th><th scope="col">Strategy</th>
          <th scope="col" class="right">Tokens</th>${hasCost && html`<th scope="col" class="right">Cost</th>`}
          <th scope="col" class="right">Time</th><th scope="col">Begun</th><th scope="col">By</th>
        </tr>
      </thead>
      <tbody>
        ${items.map((item) => this.row(item, { most, hasCost }))}
      </tbody>
    </table>`;
  }

  row(item, { most, hasCost }) {
    const id = item.execution_id;
    const spent = tokens(item.usage);
    return html`<tr key=${id}>
      <td>
        <input
          type="checkbox"
          aria-label=${`compare ${id}`}
          checked=${this.state.chosen.includes(id)}
          onChange=${() => this.tick(id)}
        />
      </td>
      <${Asked} id=${id} item=${item} />
      <td><${Badge} state=${item.state} reason=${item.finish_reason} /></td>
      <td>${item.strategy}</td>
      <td class="right" data-unit="tokens">
        ${number(spent)}
        <svg class="spark" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">
          <rect x=${100 - (100 * spent) / most} width=${(100 * spent) / most} height="4" />
        </svg>
      </td>
      ${hasCost && html`<td class="right">${money(item.usage.cost_usd) || "–"}</td>`}
      <td class="right">${duration(took(item))}</td>
      <${Begun} item=${item} />
    </tr>`;
  }
}

// What was asked leads to the run; where no content is kept, its id does.
function Asked({ id, item }) {
  const [, , kind] = badgeOf(item.state, item.finish_reason);
  return html`<td class="asked">
    <a href=${`#/run/${id}`}>${item.question || html`<span class="id">${id.slice(0, 12)}</span>`}</a>
    ${item.outcome && html`<div class=${`outcome ${kind}`}>${kind === "bad" ? "" : "→ "}${item.outcome}</div>`}
  </td>`;
}

function Begun({ item }) {
  return html`<td class="begun" title=${clock(item.create_time)}>${since(item.create_time)}</td>
    <td>${item.client || "–"}<div class="faint">${item.wire}</div></td>`;
}

export class Turns extends Listing {
  title = "Turns";
  method = "turns.list";
  member = "turns";
  emptyText = "No turn yet: a conversation with tools is one.";
  form = "ask_turn";

  params() {
    const { session } = this.state.filters;
    return session ? { session_id: session } : {};
  }

  componentDidMount() {
    super.componentDidMount();
    call("sessions.list", { page_size: PAGE }).then(
      ({ sessions }) => this.setState({ sessions: sessions.map((each) => each.session_id) }),
      () => {},
    );
  }

  filters() {
    const sessions = (this.state.sessions ?? []).map((each) => [each, each]);
    return this.choice("Session", "session", [["", "all"], ...sessions]);
  }

  table(items) {
    return html`<table class="runs">
      <thead>
        <tr>
          <th scope="col">Asked, and what came of it</th><th scope="col">State</th><th scope="col">Session</th><th scope="col">Mode</th>
          <th scope="col" class="right">Tokens</th><th scope="col" class="right">Time</th><th scope="col">Begun</th><th scope="col">By</th>
        </tr>
      </thead>
      <tbody>
        ${items.map(
          (item) => html`<tr key=${item.turn_id}>
            <${Asked} id=${item.turn_id} item=${item} />
            <td><${Badge} state=${item.state} reason=${item.finish_reason} /></td>
            <td>${item.session_id || "–"}</td>
            <td>${item.mode || "–"}</td>
            <td class="right" data-unit="tokens">${number(tokens(item.usage))}</td>
            <td class="right">${duration(took(item))}</td>
            <${Begun} item=${item} />
          </tr>`,
        )}
      </tbody>
    </table>`;
  }
}
