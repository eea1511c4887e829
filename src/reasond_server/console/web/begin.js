// What all forms that begin something have in common: three kinds, a call that is left once its run has begun, fields.

import { Component, html } from "./dom.js";
import { Problem } from "./parts.js";
import { events } from "./rpc.js";

const KINDS = [
  ["ask", "A question"],
  ["ask_turn", "A turn with tools"],
  ["ask_repair", "A repair of code"],
];

export class Beginning extends Component {
  state = { error: null, isSent: false };

  componentDidMount() {
    this.load().then(
      (told) => this.setState({ ...told, isLoaded: true }),
      (error) => this.setState({ error }),
    );
  }

  // The run goes on when this stream is left, which happens with its first event: its own screen follows it.
  async submit(event) {
    event.preventDefault();
    const leaving = new AbortController();
    this.setState({ isSent: true, error: null });
    try {
      const params = await this.params(new FormData(event.target));
      for await (const { name, data, isLogged } of events(this.method, params, leaving.signal)) {
        if (name === "error") throw Object.assign(new Error(data.message), data.data);
        if (!isLogged) continue;
        location.hash = `#/run/${data.execution_id ?? data.turn_id}`;
        return;
      }
    } catch (error) {
      this.setState({ error, isSent: false });
    } finally {
      leaving.abort();
    }
  }

  render(_, { error, isSent, isLoaded }) {
    return html`<h1>${this.title}</h1>
      <div class="kinds" role="group" aria-label="What to begin">
        ${KINDS.map(([place, name]) => html`<a key=${place} href=${`#/${place}`} aria-current=${place === this.place ? "page" : undefined}>${name}</a>`)}
      </div>
      ${isLoaded &&
      html`<form class="ask" onSubmit=${(event) => this.submit(event)}>
        ${this.fields()}
        ${error && html`<${Problem} error=${error} />`}
        <button class="main" disabled=${isSent}>${this.title}</button>
      </form>`}
      ${!isLoaded && error && html`<${Problem} error=${error} />`}`;
  }
}

// The object in a field of JSON; nothing where the field is empty.
export function readJson(form, name, label) {
  const text = form.get(name)?.trim();
  if (!text) return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${label} is no JSON: ${error.message}`);
  }
}

export const Area = ({ label, name, rows = 2, value, ...rest }) =>
  html`<label>${label} <textarea name=${name} rows=${rows} defaultValue=${value ?? ""} ...${rest}></textarea></label>`;

// A long text: typed, or read from a file into the same field.
export class Material extends Component {
  async read(event) {
    const [file] = event.target.files;
    if (file) this.area.value = await file.text();
  }

  render({ value }) {
    return html`<div class="pair">
      <label>Text that it is about, if there is one
        <textarea name="material" rows="3" defaultValue=${value ?? ""} ref=${(area) => (this.area = area)}></textarea>
      </label>
      <label>from a file <input type="file" accept="text/*,.md,.csv,.json,.log" onChange=${(event) => this.read(event)} /></label>
    </div>`;
  }
}

export const Images = ({ kept }) => html`<label>Images, if the model takes any
  <input type="file" name="images" accept="image/*" multiple />
  ${kept > 0 && html`<small>Without a new choice the ${kept} of the run before are sent again.</small>`}
</label>`;

const BUDGET = [
  ["max_total_tokens", "Most tokens"],
  ["max_model_calls", "Most model calls"],
  ["max_elapsed_ms", "Longest time in ms"],
];

export const Budget = ({ value }) => html`<fieldset>
  <legend>Budget; what is left empty sets no limit</legend>
  <div class="grid">
    ${BUDGET.map(([name, text]) => html`<label key=${name}>${text} <input type="number" min="1" name=${`budget.${name}`} defaultValue=${value?.[name] ?? ""} /></label>`)}
  </div>
</fieldset>`;

// Only what was filled in: an empty field takes the server's value.
export const filled = (params) =>
  Object.fromEntries(Object.entries(params).filter(([, value]) => value !== undefined && value !== "" && value !== null));

// The bounds of the form, and those of the run before that have no field here.
export function readBudget(form, before = {}) {
  const found = filled({ ...before, ...Object.fromEntries(BUDGET.map(([name]) => [name, Number(form.get(`budget.${name}`)) || undefined])) });
  return Object.keys(found).length ? found : undefined;
}

export const chosenFiles = (form, name) => form.getAll(name).filter((file) => file.size);
