// A form to ask, made from the schemas that the strategies publish.

import { Component, html } from "./dom.js";
import { words } from "./format.js";
import { Problem } from "./parts.js";
import { call, events } from "./rpc.js";

const BUDGET = [
  ["max_total_tokens", "Most tokens"],
  ["max_model_calls", "Most model calls"],
  ["max_elapsed_ms", "Longest time in ms"],
];

export class Ask extends Component {
  state = { strategies: null, models: [], chosen: "", error: null, isSent: false };

  async componentDidMount() {
    try {
      const { strategies, models } = await call("reasoning.list_strategies");
      const before = this.props.from ? await call("executions.get", { execution_id: this.props.from }) : null;
      const task = before?.task ?? {};
      const chosen = before?.execution.strategy ?? strategies.find((each) => each.is_default)?.name ?? "";
      this.setState({ strategies, models, chosen, task });
    } catch (error) {
      this.setState({ error });
    }
  }

  componentWillUnmount() {
    this.isGone = true;
  }

  // The run goes on when this stream is left, which happens with its first event: its own screen follows it.
  async submit(event) {
    event.preventDefault();
    const leaving = new AbortController();
    this.setState({ isSent: true, error: null });
    try {
      const params = { ...paramsOf(new FormData(event.target), this.strategy()), keep_running: true };
      for await (const { name, data, isLogged } of events("reasoning.execute", params, leaving.signal)) {
        if (name === "error") throw Object.assign(new Error(data.message), data.data);
        if (!isLogged) continue;
        location.hash = `#/run/${data.execution_id}`;
        return;
      }
    } catch (error) {
      this.setState({ error, isSent: false });
    } finally {
      leaving.abort();
    }
  }

  strategy() {
    return this.state.strategies.find((each) => each.name === this.state.chosen);
  }

  render(_, { strategies, models, chosen, error, isSent, task }) {
    const strategy = strategies?.find((each) => each.name === chosen);
    return html`<h1>Ask</h1>
      ${error && html`<${Problem} error=${error} />`}
      ${strategies &&
      html`<form class="ask" onSubmit=${(event) => this.submit(event)}>
        <label>Question <textarea name="query" required maxlength="100000" rows="3" defaultValue=${task.query ?? ""}></textarea></label>
        <label>Text that it is about, if there is one <textarea name="material" rows="4" defaultValue=${task.material ?? ""}></textarea></label>
        <label>Strategy
          <select value=${chosen} onChange=${(event) => this.setState({ chosen: event.target.value })}>
            ${strategies.map((each) => html`<option key=${each.name} value=${each.name}>${each.name}</option>`)}
          </select>
        </label>
        <p class="faint">${strategy.description} Cost: ${strategy.cost_formula || "not told"}.</p>
        ${models.length > 0 && html`<label>Model <select name="model"><option value="">the server's</option>${models.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>`}
        <fieldset key=${chosen}>
          <legend>Configuration; what is left empty takes the server's value</legend>
          <div class="grid">
            ${Object.entries(strategy.config_schema.properties ?? {}).map(
              ([name, schema]) => html`<${Field} key=${name} name=${name} schema=${resolve(schema, strategy.config_schema)}
                given=${task.strategy_config?.[name]} usual=${strategy.default_config[name]} most=${strategy.ceilings[name]} />`,
            )}
          </div>
        </fieldset>
        <fieldset>
          <legend>Budget; what is left empty sets no limit</legend>
          <div class="grid">
            ${BUDGET.map(([name, text]) => html`<label key=${name}>${text} <input type="number" min="1" name=${`budget.${name}`} defaultValue=${task.budget?.[name] ?? ""} /></label>`)}
          </div>
        </fieldset>
        <button class="main" disabled=${isSent}>Ask</button>
      </form>`}`;
  }
}

// A schema of a configuration refers to enumerations, and offers null beside a type.
function resolve(schema, whole) {
  const one = schema.anyOf?.find((each) => each.type !== "null") ?? schema;
  const target = one.$ref ? whole.$defs[one.$ref.split("/").at(-1)] : one;
  return { ...target, description: schema.description ?? target.description };
}

const show = (value) => (value === null || value === undefined ? "none" : String(value));

function Field({ name, schema, given, usual, most }) {
  const id = `config-${name}`;
  const bounds = [schema.minimum, most ?? schema.maximum];
  const range = bounds.every((each) => each !== undefined) ? ` ${bounds[0]} to ${bounds[1]}.` : "";
  return html`<div class="field">
    <label for=${id}>${words(name)}</label>
    ${inputFor({ id, name: `config.${name}`, schema, given, usual, bounds })}
    <small id=${`${id}-help`}>${schema.description}${range}</small>
  </div>`;
}

function inputFor({ id, name, schema, given, usual, bounds }) {
  const shared = { id, name, "aria-describedby": `${id}-help` };
  const options = schema.type === "boolean" ? ["true", "false"] : schema.enum;
  if (options) {
    return html`<select ...${shared} data-type=${schema.type}>
      <option value="">${show(usual)} (the server's)</option>
      ${options.map((each) => html`<option key=${each} value=${each} selected=${String(given) === String(each)}>${each}</option>`)}
    </select>`;
  }
  if (schema.type === "integer" || schema.type === "number") {
    return html`<input ...${shared} type="number" min=${bounds[0]} max=${bounds[1]} step=${schema.type === "integer" ? 1 : "any"} placeholder=${show(usual)} defaultValue=${given ?? ""} />`;
  }
  return html`<input ...${shared} placeholder=${schema.type === "string" ? show(usual) : "JSON"} defaultValue=${given === undefined ? "" : schema.type === "string" ? given : JSON.stringify(given)} />`;
}

function valueOf(text, schema) {
  if (schema.type === "integer" || schema.type === "number") return Number(text);
  return schema.type === "string" || schema.enum ? text : JSON.parse(text);
}

function paramsOf(form, strategy) {
  const config = {};
  const budget = {};
  for (const [name, text] of form) {
    const [group, key] = name.split(".");
    if (!text || !key) continue;
    if (group === "budget") budget[key] = Number(text);
    else config[key] = valueOf(text, resolve(strategy.config_schema.properties[key], strategy.config_schema));
  }
  const params = { query: form.get("query"), strategy: strategy.name };
  if (form.get("material")) params.material = form.get("material");
  if (form.get("model")) params.model = form.get("model");
  if (Object.keys(config).length) params.strategy_config = config;
  if (Object.keys(budget).length) params.budget = budget;
  return params;
}
