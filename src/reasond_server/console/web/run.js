// One run of any kind, live or ended: what it says of itself, its steps in time, and replay.

import { Component, html } from "./dom.js";
import { Elsewhere } from "./elsewhere.js";
import { clock, duration, money, number, words } from "./format.js";
import { Badge, Facts, Problem, Prose, Rows, Tabs, Text } from "./parts.js";
import { Pictures } from "./pictures.js";
import { Prompts } from "./prompts.js";
import { call, follow } from "./rpc.js";
import { Detail } from "./detail.js";
import { fold } from "./view.js";

const DRAW_MS = 60;
const TICK_MS = 1_000;
const PLAY_MS = 100;
const PLAY_FRAMES = 80;
const ENDED_BEFORE_MS = 1_500; // A run that has ended when it is opened is read from its first step.
const SLIDER = 1_000;
const ROW_PX = 32;
const MOST_WRITING = 2_000;
const SHOWN_WRITING = 600;
const FORMS = { reasoning: "ask", turn: "ask_turn", repair: "ask_repair" };
const TOLD_BY = new Set(["started", "handed_off", "completed"]); // What a turn was told and did is read again after these.

export class Run extends Component {
  constructor(props) {
    super(props);
    this.state = { count: 0, link: "", error: null, tab: "Steps", chosen: -1, until: null, isPlaying: false };
    this.events = [];
    this.writings = new Map(); // What is being written now, by the step that it will be.
    this.leaving = new AbortController();
    this.opened = performance.now();
  }

  componentDidMount() {
    const { id } = this.props;
    follow(id, {
      signal: this.leaving.signal,
      onEvent: (event) => {
        this.events.push(event);
        const hadEnded = event.name === "completed" && performance.now() - this.opened < ENDED_BEFORE_MS;
        if (hadEnded && this.state.chosen < 0) this.setState({ chosen: 0 });
        this.writings.delete(event.body?.index ?? [...this.writings.keys()][0]);
        if (TOLD_BY.has(event.name) && "session_revision" in this.events[0].body) this.readTurn();
        this.draw();
      },
      onText: ({ text, iteration_index: index }) => {
        this.writings.set(index, ((this.writings.get(index) ?? "") + text).slice(-MOST_WRITING));
        this.draw();
      },
      onLink: (text) => {
        if (this.state.link === text) return;
        // What is written while the stream is cut is not told again.
        if (text && !this.state.link) this.writings.forEach((had, index) => this.writings.set(index, `${had} […] `));
        this.setState({ link: text });
      },
    }).catch((error) => this.setState({ error }));
    this.ticking = setInterval(() => this.events.at(-1)?.name !== "completed" && this.setState({}), TICK_MS);
    call("executions.get", { execution_id: id }, this.leaving.signal).then(
      ({ task }) => this.setState({ task }),
      // A turn tells by itself what it was asked, and a task may not be kept.
      () => call("repair.get", { execution_id: id }, this.leaving.signal).then(({ execution }) => this.setState({ asked: execution.question }), () => {}),
    );
  }

  componentWillUnmount() {
    this.leaving.abort();
    clearTimeout(this.drawing);
    clearTimeout(this.reading);
    clearInterval(this.playing);
    clearInterval(this.ticking);
  }

  // What a turn was asked and what its calls gave is no part of its events; a log that is read again asks once.
  readTurn() {
    clearTimeout(this.reading);
    this.reading = setTimeout(() => {
      call("turns.get", { turn_id: this.props.id }, this.leaving.signal).then(
        (told) => this.setState({ told }),
        () => {}, // The events say the rest.
      );
    }, DRAW_MS);
  }

  // Many events may come at once: the screen is drawn some times a second.
  draw() {
    this.drawing ??= setTimeout(() => {
      this.drawing = undefined;
      this.setState({ count: this.events.length });
    }, DRAW_MS);
  }

  stop(view) {
    const { id } = this.props;
    const asked = view.kind === "turn" ? call("turns.cancel", { turn_id: id }) : call("executions.cancel", { execution_id: id });
    asked.catch((error) => this.setState({ error }));
  }

  play(full) {
    clearInterval(this.playing);
    if (this.state.isPlaying) return this.setState({ isPlaying: false });
    const span = Math.max(1, full.end - full.begin);
    const from = this.state.until === null || this.state.until >= span ? 0 : this.state.until;
    this.setState({ isPlaying: true, until: from });
    this.playing = setInterval(() => {
      const until = this.state.until + span / PLAY_FRAMES;
      const isOver = until >= span;
      if (isOver) clearInterval(this.playing);
      this.setState({ until: isOver ? null : until, isPlaying: !isOver });
    }, PLAY_MS);
  }

  render({ id }, { error, task, told, asked, link, tab, chosen, until, isPlaying }) {
    const full = fold(this.events);
    const isReplay = until !== null;
    const shown = isReplay ? this.events.filter((each) => each.at - full.begin <= until) : this.events;
    const view = isReplay ? fold(shown) : full;
    const place = Math.min(chosen < 0 ? view.steps.length - 1 : chosen, view.steps.length - 1);
    return html`<div class="title">
        <h1>${view.title || "Run"}</h1>
        ${full.started && html`<${Badge} state=${stateOf(view)} reason=${view.completed?.finish_reason} />`}
        <span class="id">${id}</span>
        ${!full.completed && full.started && html`<button type="button" onClick=${() => this.stop(full)}>■ Stop</button>`}
        ${full.started && html`<a class="button" href=${`#/${FORMS[full.kind]}/${id}`}>Change and run again</a>`}
      </div>
      ${error && html`<${Problem} error=${error} />`}
      <div role="status">${link && html`<p class="cut">⟳ ${link}</p>`}</div>
      ${full.started && this.summary(view, full, task?.query ?? told?.conversation?.message ?? asked)}
      ${!isReplay && full.started && stateOf(full) === "running" && html`<${Writing} writings=${[...this.writings.values()]} />`}
      ${full.steps.length > 0 && this.replay(full, { until, isPlaying, count: view.steps.length })}
      <div class="hidden" role="status" aria-live="polite">${isReplay ? "" : newsOf(view)}</div>
      ${full.started &&
      html`<${Tabs}
          names=${["Steps", "Prompts", "Raw events", "Same call elsewhere"]}
          chosen=${tab}
          label="Views of the run"
          onChoose=${(name) => this.setState({ tab: name })}
        />
        <div role="tabpanel" aria-label=${tab}>
          ${tab === "Steps" && this.steps(view, full, place)}
          ${tab === "Prompts" && html`<${Prompts} id=${id} steps=${full.steps.length} isOver=${Boolean(full.completed)} />`}
          ${tab === "Raw events" && html`<${RawEvents} events=${shown} />`}
          ${tab === "Same call elsewhere" && html`<${Elsewhere} id=${id} view=${full} task=${task} />`}
        </div>`}`;
  }

  summary(view, full, asked) {
    const { completed, started } = view;
    const isOver = full.completed || this.state.until !== null;
    return html`<${Facts}
        facts=${[
          ["Steps", number(view.steps.length)],
          ["Model calls", number(view.calls)],
          ["Tokens", number(view.spent)],
          ...(money(view.cost) ? [["Cost", money(view.cost)]] : []),
          ["Time", duration(isOver ? view.end - view.begin : Date.now() - full.begin)],
          ["Begun", clock(new Date(full.begin).toISOString())],
          ["Model", started?.model || "–"],
        ]}
      />
      <div class="halves">
        <${Prose} heading="h2" title="Asked" text=${asked} />
        <${Prose} heading="h2" title="Answer" text=${completed?.answer} />
        ${completed && !completed.answer && html`<${Prose} heading="h2" title="Written until then" text=${lastTextOf(view)} />`}
      </div>
      ${completed?.error && html`<${Problem} error=${completed.error} />`}
      ${completed?.warnings?.map((each) => html`<p class="note">Note: ${each}</p>`)}`;
  }

  replay(full, { until, isPlaying, count }) {
    const span = full.end - full.begin;
    const now = until ?? span;
    return html`<div class="replay">
      <button type="button" onClick=${() => this.play(full)} disabled=${!span}>${isPlaying ? "❚❚ Pause" : "▶ Replay"}</button>
      <label>
        <span class="hidden">Time in the run</span>
        <input
          type="range"
          min="0"
          max=${SLIDER}
          step=${SLIDER / 200}
          value=${span ? (SLIDER * now) / span : SLIDER}
          aria-valuetext=${`${duration(now)} of ${duration(span)}, ${count} steps`}
          onInput=${(event) => this.setState({ until: (span * event.target.value) / SLIDER, chosen: -1 })}
        />
      </label>
      <span class="at">${duration(now)} of ${duration(span)}</span>
      <button type="button" disabled=${until === null} onClick=${() => this.setState({ until: null, isPlaying: false })}>
        ${full.completed ? "Show the end" : "Show live"}
      </button>
    </div>`;
  }

  steps(view, full, place) {
    const span = Math.max(1, full.end - full.begin);
    const choose = (chosen) => this.setState({ chosen });
    const pictures = html`<${Pictures} view=${view} told=${this.state.told} onChoose=${choose} chosen=${place} />`;
    if (!full.steps.length) return html`${pictures}<p class="empty">${full.completed ? "It ended before its first step." : "No step yet: one stands here as soon as it has ended."}</p>`;
    return html`${pictures}
      <div class="halves steps">
        <section aria-labelledby="steps-title">
          <h2 id="steps-title">Steps in time</h2>
          <${Rows}
            name="step"
            label="Steps"
            count=${view.steps.length}
            height=${ROW_PX}
            visible=${12}
            chosen=${place}
            follows=${!full.completed}
            onChoose=${choose}
            row=${(index) => html`<${StepRow} step=${view.steps[index]} number=${index + 1} begin=${full.begin} span=${span} />`}
          />
        </section>
        ${place >= 0 && html`<${Detail} step=${view.steps[place]} number=${place + 1} view=${view} />`}
      </div>`;
  }
}

// What the model writes now, in large letters: of calls at the same time the one that began first.
function Writing({ writings }) {
  const more = writings.length - 1;
  return html`<section class="writing" aria-label="Being written" aria-hidden="true">
    <p>${writings[0]?.slice(-SHOWN_WRITING) || "At work …"}<span class="caret" /></p>
    ${more > 0 && html`<small>${number(more)} more at the same time</small>`}
  </section>`;
}

// What the last step of a run without an answer had written.
const lastTextOf = (view) =>
  view.kind === "repair" ? "" : view.steps.map(({ detail }) => detail.text || detail.thought).findLast(Boolean);

function stateOf(view) {
  if (view.completed) return view.completed.finish_reason;
  if (view.steps.at(-1)?.event.name === "handed_off") return "awaiting_client";
  return "running";
}

function newsOf(view) {
  if (view.completed) return `The run has ended: ${words(view.completed.finish_reason)}.`;
  const step = view.steps.at(-1);
  return step ? `Step ${view.steps.length}: ${step.label}` : "";
}

function StepRow({ step, number: place, begin, span }) {
  const x = (100 * (step.from - begin)) / span;
  const width = (100 * (step.to - step.from)) / span;
  return html`<span class="place">${place}</span>
    <span class="label">${step.hasAnswer ? html`<b>✓</b> ` : ""}${step.label}</span>
    <svg class="lane" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
      <line x1="0" x2="100" y1="5" y2="5" />
      <rect x=${Math.max(0, x)} width=${Math.max(0.8, width)} y="1" height="8" />
    </svg>
    <span class="headline">${step.headline}</span>
    <span class="tokens">${step.tokens ? `${number(step.tokens)} tok` : ""}</span>`;
}

class RawEvents extends Component {
  state = { chosen: 0 };

  render({ events }, { chosen }) {
    const event = events[Math.min(chosen, events.length - 1)];
    return html`<div class="halves steps">
      <${Rows}
        name="event"
        label="Events of the log"
        count=${events.length}
        height=${ROW_PX}
        visible=${14}
        chosen=${chosen}
        onChoose=${(place) => this.setState({ chosen: place })}
        row=${(place) => html`<span class="place">${events[place].sequence}</span>
          <span class="label">${events[place].name}</span>
          <span class="headline">${duration(events[place].at - events[0].at)}</span>`}
      />
      <${Text} name="json" label="The event as JSON">${event ? JSON.stringify(event.data, null, 2) : ""}<//>
    </div>`;
  }
}
