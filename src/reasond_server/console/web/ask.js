// The form to ask, made from the schemas that the strategies publish.

import { html } from "./dom.js";
import { Area, Beginning, Budget, Images, Material, chosenFiles, filled, readBudget, readJson } from "./begin.js";
import { readImages } from "./files.js";
import { words } from "./format.js";
import { call } from "./rpc.js";

export class Ask extends Beginning {
  title = "Ask";
  place = "ask";
  method = "reasoning.execute";

  async load() {
    const { strategies, models } = await call("reasoning.list_strategies");
    const before = this.props.from ? await call("executions.get", { execution_id: this.props.from }) : null;
    const chosen = before?.execution.strategy ?? strategies.find((each) => each.is_default)?.name ?? strategies[0].name;
    return { strategies, models, chosen, task: before?.task ?? {} };
  }

  strategy() {
    return this.state.strategies.find((each) => each.name === this.state.chosen);
  }

  // What the run before was asked, where the form has no field for it, and what the form says.
  async params(form) {
    const { task } = this.state;
    const strategy = this.strategy();
    const images = await readImages(chosenFiles(form, "images"));
    const params = {
      ...task,
      query: form.get("query"),
      system: form.get("system"),
      material: form.get("material"),
      strategy: strategy.name,
      model: form.get("model"),
      answer_schema: readJson(form, "answer_schema", "The schema"),
      images: images.length ? images : task.images,
      strategy_config: configOf(form, strategy),
      budget: readBudget(form, task.budget),
    };
    return { ...filled(params), keep_running: true };
  }

  fields() {
    const { strategies, models, chosen, task } = this.state;
    const strategy = this.strategy();
    return html`<${Area} label="Question" name="query" rows="3" value=${task.query} required maxlength="100000" />
      <div class="pair">
        <label>Strategy
          <select value=${chosen} onChange=${(event) => this.setState({ chosen: event.target.value })}>
            ${strategies.map((each) => html`<option key=${each.name} value=${each.name}>${each.name}</option>`)}
          </select>
        </label>
        ${models.length > 0 && html`<label>Model <select name="model"><option value="">the server's</option>${models.map((each) => html`<option key=${each} value=${each} selected=${each === task.model}>${each}</option>`)}</select></label>`}
      </div>
      <p class="faint">${strategy.description}</p>
      ${strategy.cost_formula && html`<details aria-label="Cost"><summary>What it costs</summary><p class="faint">${strategy.cost_formula}</p></details>`}
      <${Material} value=${task.material} />
      <details aria-label="More fields" open=${Boolean(task.system || task.answer_schema || task.images?.length)}>
        <summary>Instructions, form of the answer, images</summary>
        <${Area} label="Instructions, as a system message" name="system" value=${task.system} />
        <${Area} label="JSON Schema of the answer" name="answer_schema" value=${task.answer_schema && JSON.stringify(task.answer_schema)} placeholder='{"type": "object"}' />
        <${Images} kept=${task.images?.length ?? 0} />
      </details>
      <fieldset key=${chosen}>
        <legend>Configuration; what is left empty takes the server's value</legend>
        <div class="grid">
          ${Object.entries(strategy.config_schema.properties ?? {}).map(
            ([name, schema]) => html`<${Field} key=${name} name=${name} schema=${resolve(schema, strategy.config_schema)}
              given=${task.strategy_config?.[name]} usual=${strategy.default_config[name]} most=${strategy.ceilings[name]} />`,
          )}
        </div>
      </fieldset>
      <${Budget} value=${task.budget} />`;
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

function configOf(form, strategy) {
  const config = {};
  for (const [name, schema] of Object.entries(strategy.config_schema.properties ?? {})) {
    const text = form.get(`config.${name}`);
    if (text) config[name] = valueOf(text, resolve(schema, strategy.config_schema));
  }
  return Object.keys(config).length ? config : undefined;
}
