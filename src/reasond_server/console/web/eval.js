// What strategies are worth: the record that `reasond eval` writes, read from a file of this machine. Nothing is sent.

import { Component, html } from "./dom.js";
import { firstLine, money, number, plural, words } from "./format.js";
import { Problem } from "./parts.js";

const Z = 1.959963984540054; // The 97.5 % quantile of the normal distribution: intervals cover 95 %.
const MOST_WRONG = 200;
const MOST_SHOWN = 100;
const MOST_WIDTH = 900;
const HEIGHT = 300;
const LEFT = 48;
const BOTTOM = 34;
const TOP = 16;
const RIGHT = 28;

const mean = (trials, read) => trials.reduce((sum, each) => sum + read(each), 0) / trials.length;
const percent = (share) => `${(100 * share).toFixed(0)} %`;

// Wilson's interval (1927) of a share.
function intervalOf(right, n) {
  const [share, square] = [right / n, Z * Z];
  const middle = (share + square / (2 * n)) / (1 + square / n);
  const half = (Z / (1 + square / n)) * Math.sqrt((share * (1 - share)) / n + square / (4 * n * n));
  return [Math.max(0, middle - half), Math.min(1, middle + half)];
}

// Trials of a record; a last line that was cut is left out, and of equal trials the last counts.
function readTrials(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    try {
      const trial = JSON.parse(line);
      if (trial?.key && trial.way) found.set(trial.key + trial.way, trial);
    } catch {
      continue;
    }
  }
  if (!found.size) throw new Error("This file holds no trials; reasond eval writes them to SET.trials.jsonl.");
  return [...found.values()];
}

// The figures of each way, the cheapest first. An efficient one is beaten by no other in right answers and tokens at once.
function waysOf(trials) {
  const ways = [...Map.groupBy(trials, (each) => each.way)].map(([name, own]) => {
    const right = own.filter((each) => each.is_right).length;
    return {
      name,
      n: own.length,
      right,
      share: right / own.length,
      interval: intervalOf(right, own.length),
      tokens: mean(own, (each) => each.input_tokens + each.output_tokens),
      calls: mean(own, (each) => each.calls),
      seconds: mean(own, (each) => each.seconds),
      cost: own.every((each) => Number.isFinite(each.cost_usd)) ? mean(own, (each) => each.cost_usd) : null,
    };
  });
  ways.sort((one, other) => one.tokens - other.tokens);
  const beats = (one, other) => one.share >= other.share && one.tokens <= other.tokens && (one.share > other.share || one.tokens < other.tokens);
  return ways.map((way, place) => ({ ...way, letter: String.fromCharCode(65 + place), isEfficient: !ways.some((other) => beats(other, way)) }));
}

export class Evaluation extends Component {
  state = { trials: null, error: null };
  redraw = () => this.setState({}); // The picture is as wide as the window, also after a phone is turned.

  componentDidMount() {
    addEventListener("resize", this.redraw);
  }

  componentWillUnmount() {
    removeEventListener("resize", this.redraw);
  }

  async read(event) {
    const [file] = event.target.files;
    if (!file) return;
    try {
      this.setState({ trials: readTrials(await file.text()), name: file.name, error: null });
    } catch (error) {
      this.setState({ trials: null, error });
    }
  }

  render(_, { trials, name, error }) {
    const ways = trials && waysOf(trials);
    return html`<h1>What is a strategy worth?</h1>
      <div class="ask">
        <label>Record of <code>reasond eval</code> <input type="file" accept=".jsonl" onChange=${(event) => this.read(event)} />
          <small>SET.trials.jsonl, which the command writes beside the questions. It is read here and sent nowhere.</small>
        </label>
      </div>
      ${error && html`<${Problem} error=${error} />`}
      ${ways && html`<${Picture} ways=${ways} name=${name} /><${Figures} ways=${ways} /><${Wrong} trials=${trials} ways=${ways} />`}`;
  }
}

function Picture({ ways, name }) {
  const width = Math.min(MOST_WIDTH, innerWidth - 40); // So that letters are as large as everywhere.
  const most = Math.max(1, ...ways.map((each) => each.tokens)) * 1.05;
  const x = (tokens) => LEFT + (tokens / most) * (width - LEFT - RIGHT);
  const y = (share) => TOP + (1 - share) * (HEIGHT - TOP - BOTTOM);
  const front = ways.filter((each) => each.isEfficient);
  const told = ways.map((each) => `${each.letter} ${each.name}: ${percent(each.share)} right at ${number(Math.round(each.tokens))} tokens`).join("; ");
  return html`<section aria-labelledby="worth-title">
    <h2 id="worth-title">Right answers over tokens of a question: ${name}</h2>
    <p class="legend"><span>● no other way is better and cheaper</span><span>○ another one is</span><span>│ 95 % interval</span></p>
    <svg class="worth" role="img" aria-label=${told} width=${width} viewBox=${`0 0 ${width} ${HEIGHT}`}>
      ${[0, 0.25, 0.5, 0.75, 1].map((share) => html`<line key=${share} x1=${LEFT} x2=${width - RIGHT} y1=${y(share)} y2=${y(share)} /><text x=${LEFT - 8} y=${y(share) + 4} text-anchor="end">${percent(share)}</text>`)}
      ${[0, 0.5, 1].map((part) => html`<text key=${part} x=${x(part * most)} y=${HEIGHT - 12} text-anchor="middle">${number(Math.round(part * most))}${part ? "" : " tokens"}</text>`)}
      <polyline points=${front.map((each) => `${x(each.tokens)},${y(each.share)}`).join(" ")} />
      ${ways.map((each) => html`<g key=${each.name} class=${each.isEfficient ? "best" : ""}>
        <title>${each.name}</title>
        <line x1=${x(each.tokens)} x2=${x(each.tokens)} y1=${y(each.interval[0])} y2=${y(each.interval[1])} />
        <circle cx=${x(each.tokens)} cy=${y(each.share)} r="6" />
        <text x=${x(each.tokens) + 10} y=${y(each.share) - 8}>${each.letter}</text>
      </g>`)}
    </svg>
  </section>`;
}

function Figures({ ways }) {
  const hasCost = ways.some((each) => each.cost !== null);
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Figures of each way"><table class="worths">
    <thead><tr><th scope="col">Way</th><th scope="col" class="right">Right</th><th scope="col" class="right">Share</th><th scope="col" class="right">95 %</th><th scope="col" class="right">Tokens</th><th scope="col" class="right">Calls</th><th scope="col" class="right">Seconds</th>${hasCost && html`<th scope="col" class="right">Cost</th>`}</tr></thead>
    <tbody>${ways.map((each) => html`<tr key=${each.name}>
      <td>${each.isEfficient ? "●" : "○"} <b>${each.letter}</b> ${each.name}</td>
      <td class="right">${number(each.right)} of ${number(each.n)}</td>
      <td class="right">${percent(each.share)}</td>
      <td class="right">${each.interval.map(percent).join(" to ")}</td>
      <td class="right">${number(Math.round(each.tokens))}</td>
      <td class="right">${each.calls.toFixed(1)}</td>
      <td class="right">${each.seconds.toFixed(1)}</td>
      ${hasCost && html`<td class="right">${money(each.cost) || "–"}</td>`}
    </tr>`)}</tbody>
  </table></div>`;
}

// The wrong answers, each with its steps as long as the server keeps them.
function Wrong({ trials, ways }) {
  const letters = new Map(ways.map((each) => [each.name, each.letter]));
  const order = (each) => `${each.item_id} ${letters.get(each.way)}`;
  const wrong = trials.filter((each) => !each.is_right).sort((one, other) => order(one).localeCompare(order(other), "en", { numeric: true }));
  if (!wrong.length) return html`<p class="empty">No answer is wrong.</p>`;
  return html`<section aria-labelledby="wrong-title">
    <h2 id="wrong-title">${plural(wrong.length, "wrong answer")} by question, with their steps</h2>
    <ul>${[...Map.groupBy(wrong.slice(0, MOST_WRONG), (each) => each.item_id)].map(([id, own]) => html`<li key=${id}>
      <b>${id}</b>
      ${own.map((each) => html`<div key=${each.key + each.way}>
        ${each.execution_id ? html`<a href=${`#/run/${each.execution_id}`}>${letters.get(each.way)}</a>` : letters.get(each.way)} ${firstLine(each.answer_json || each.answer || each.note).slice(0, MOST_SHOWN) || words(each.finish.toLowerCase())}
      </div>`)}
    </li>`)}</ul>
    ${wrong.length > MOST_WRONG && html`<p class="faint">The first ${MOST_WRONG} of ${number(wrong.length)}.</p>`}
  </section>`;
}
