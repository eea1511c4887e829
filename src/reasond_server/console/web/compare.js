// Two runs beside each other: their numbers with the difference, their steps on one axis of time, their answers.

import { Component, html } from "./dom.js";
import { duration, money, number, words } from "./format.js";
import { Problem, Prose } from "./parts.js";
import { call, follow } from "./rpc.js";
import { fold } from "./view.js";

const DRAW_MS = 60;
const MOST_BARS = 1_000;

export class Comparison extends Component {
  state = { error: null, asked: [] };
  logs = [[], []];
  leaving = new AbortController();

  componentDidMount() {
    this.props.ids.slice(0, 2).forEach((id, side) => {
      const onEvent = (event) => {
        this.logs[side].push(event);
        this.drawing ??= setTimeout(() => {
          this.drawing = undefined;
          this.setState({});
        }, DRAW_MS);
      };
      const told = { onEvent, onText: () => {}, onLink: () => {}, signal: this.leaving.signal };
      call("executions.list", { text: id, page_size: 1 }, this.leaving.signal).then(
        ({ executions: [one] }) => this.setState(({ asked }) => ({ asked: Object.assign([...asked], { [side]: one?.question }) })),
        () => {}, // The runs say the rest.
      );
      follow(id, told).catch((error) => this.setState({ error }));
    });
  }

  componentWillUnmount() {
    this.leaving.abort();
    clearTimeout(this.drawing);
  }

  render({ ids }, { error, asked }) {
    const views = this.logs.map(fold);
    const questions = asked[0] === asked[1] ? [["Asked", asked[0]]] : [["Asked in A", asked[0]], ["Asked in B", asked[1]]];
    const span = Math.max(1, ...views.map((each) => each.end - each.begin));
    return html`<h1>Two runs</h1>
      ${error && html`<${Problem} error=${error} />`}
      ${views.every((each) => each.started) &&
      html`<div class="halves">${questions.map(([title, text]) => html`<${Prose} key=${title} heading="h2" title=${title} text=${text} />`)}</div>
        <div class="scroll" tabindex="0" role="region" aria-label="Comparison"><table class="compare">
          <thead>
            <tr>
              <th scope="col"><span class="hidden">Figure</span></th>
              ${views.map((view, side) => html`<th scope="col" class="right" key=${side}>${"AB"[side]}: <a href=${`#/run/${ids[side]}`}>${breakable(view.title)}</a></th>`)}
              <th scope="col" class="right">B against A</th>
            </tr>
          </thead>
          <tbody>
            ${FIGURES.map(([name, read, showOne]) => [name, views.map(read), showOne])
              .filter(([, values]) => values.some((each) => each !== undefined))
              .map(([name, values, showOne]) => html`<${FigureRow} key=${name} name=${name} values=${values} showOne=${showOne} />`)}
          </tbody>
        </table></div>
        <h2>Steps on one axis: ${duration(span)}</h2>
        ${views.map((view, side) => html`<${Track} key=${side} name=${`${"AB"[side]}: ${view.title}`} view=${view} span=${span} />`)}
        <div class="halves">
          ${views.map((view, side) => html`<${Prose} key=${side} title=${`Answer of ${"AB"[side]}`} text=${view.completed?.answer || "none yet"} />`)}
        </div>`}`;
  }
}

// A long name may be broken after each of its words.
const breakable = (name) => name.split("_").flatMap((word, place) => (place ? ["_", html`<wbr />`, word] : [word]));

const usageOf = (view) => view.completed?.metrics?.usage ?? view.completed?.usage;

const FIGURES = [
  ["Ended as", (view) => words(view.completed?.finish_reason) || "not yet", String],
  ["Steps", (view) => view.steps.length, number],
  ["Model calls", (view) => view.calls, number],
  ["Tokens", (view) => view.spent, number],
  ["Cost", (view) => view.cost ?? undefined, money],
  ["Tokens in", (view) => usageOf(view)?.input_tokens, number],
  ["of them cached", (view) => usageOf(view)?.cached_input_tokens, number],
  ["Tokens out", (view) => usageOf(view)?.output_tokens, number],
  ["Largest window", (view) => view.completed?.metrics?.strategy_specific?.peak_window_tokens, number],
  ["Time", (view) => view.end - view.begin, duration],
];

function FigureRow({ name, values, showOne }) {
  const [one, other] = values;
  const hasBoth = values.every(Number.isFinite);
  const percent = hasBoth && one ? (100 * (other - one)) / one : null;
  const sign = percent > 0 ? "+" : percent < 0 ? "−" : "";
  return html`<tr>
    <th scope="row">${name}</th>
    ${values.map((value, side) => html`<td key=${side} class="right">${value === undefined ? "–" : showOne(value)}</td>`)}
    <td class="right">${percent === null ? (typeof one === "string" && one !== other ? "differs" : "") : `${sign}${Math.abs(percent).toFixed(0)} %`}</td>
  </tr>`;
}

function Track({ name, view, span }) {
  return html`<div class="track">
    <span>${name}</span>
    <svg role="img" aria-label=${`${name}: ${number(view.steps.length)} steps in ${duration(view.end - view.begin)}`} viewBox="0 0 1000 20" preserveAspectRatio="none">
      <line x1="0" x2="1000" y1="10" y2="10" />
      ${view.steps.slice(0, MOST_BARS).map((step, place) => html`<rect key=${place} class=${place % 2 ? "odd" : ""} x=${(1000 * Math.max(0, step.from - view.begin)) / span} width=${Math.max(2, (1000 * (step.to - step.from)) / span)} y="2" height="16" />`)}
    </svg>
  </div>`;
}
