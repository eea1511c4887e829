// The same call for grpcurl, curl, Python and OpenAI's client: texts to copy, which read the token from REASOND_TOKEN.

import { Component, html } from "./dom.js";
import { number, quoteForShell } from "./format.js";
import { Text } from "./parts.js";

const LONG = 2_000;

const shorten = (text) => (text.length > LONG ? `PUT THE TEXT OF ${number(text.length)} CHARACTERS HERE` : text);

const isGiven = (value) =>
  value !== null && value !== "" && value !== undefined && (typeof value !== "object" || Object.values(value).some(isGiven));

const given = (object) => Object.fromEntries(Object.entries(object ?? {}).filter(([, value]) => isGiven(value)));

// Parameters of reasoning.execute for the same task; images and long texts are left to the reader.
function paramsOf(task) {
  const { images, ...rest } = task;
  const params = given({ ...rest, budget: given(rest.budget) });
  if (params.material) params.material = shorten(params.material);
  return params;
}

function protoOf(params) {
  const { strategy_config: config, answer_schema: schema, budget, history, ...task } = params;
  if (schema) task.answer_schema_json = JSON.stringify(schema);
  if (history) task.history = history.map((each) => ({ ...each, role: `SPEAKER_${each.role.toUpperCase()}` }));
  if (budget) {
    const { max_elapsed_ms: elapsed, ...bounds } = budget;
    task.budget = elapsed ? { ...bounds, max_elapsed: `${elapsed / 1000}s` } : bounds;
  }
  // Every strategy takes its parameters so, without the list of those that have a message of their own.
  if (config) task.custom = config;
  return task;
}

// A Python literal of a JSON value.
function python(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${python(each)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}

const base = () => new URL(".", location.href).href.replace(/\/$/, "");

const grpcurl = (message, method) =>
  `grpcurl ${location.protocol === "https:" ? "" : "-plaintext "}-H "authorization: Bearer $REASOND_TOKEN" \\\n  -d ${quoteForShell(JSON.stringify(message))} \\\n  "$REASOND_TARGET" reasond.v1.${method}`;

const curl = (method, params, accept) =>
  `curl -sS${accept ? "N" : ""} ${base()}/api/v1/jsonrpc -H "Authorization: Bearer $REASOND_TOKEN" \\\n  -H 'Content-Type: application/json'${accept ? ` -H 'Accept: ${accept}'` : ""} \\\n  -d ${quoteForShell(JSON.stringify({ jsonrpc: "2.0", id: 1, method, params }))}`;

function pythonCall({ query, strategy, strategy_config: config, material, model, system }) {
  const options = Object.entries(given({ strategy, config, material, model, system }));
  const named = options.map(([name, value]) => `, ${name}=${python(value)}`).join("");
  return `import reasond\n\nwith reasond.Client.from_env() as client:\n    stream = client.reason_iterations(${python(query)}${named})\n    for event in stream:\n        print(event.sequence, event.WhichOneof("event"))\n    print(stream.result.answer)`;
}

function openai({ query, strategy, strategy_config: config, budget, history, system, material }) {
  const content = material ? `${query}\n\n${material}` : query;
  const messages = [...(system ? [{ role: "system", content: system }] : []), ...(history ?? []).map((each) => ({ role: each.role, content: each.text })), { role: "user", content }];
  const extra = given({ config, budget });
  const more = Object.keys(extra).length ? `,\n    extra_body=${python({ reasond: extra })}` : "";
  return `import os\nfrom openai import OpenAI\n\nclient = OpenAI(base_url="${base()}/v1", api_key=os.environ["REASOND_TOKEN"])\nchat = client.chat.completions.create(\n    model="reasond${strategy ? `/${strategy}` : ""}",\n    messages=${python(messages)}${more},\n)\nprint(chat.choices[0].message.content)`;
}

export function Elsewhere({ id, view, task }) {
  const follow = { execution_id: id };
  const params = task && paramsOf({ ...task, strategy: view.started.strategy });
  return html`${params &&
    html`<h2>Ask it again</h2>
      <${Command} name="grpcurl" text=${grpcurl({ task: protoOf(params) }, "ReasoningService/ReasonIterations")} />
      <${Command} name="curl" text=${curl("reasoning.execute", params, "text/event-stream")} />
      <${Command} name="Python" text=${pythonCall(params)} />
      <${Command} name="openai (Python)" text=${openai(params)} />
      ${task.images?.length > 0 && html`<p class="note">Its images are not part of these texts.</p>`}`}
    ${!params && view.kind === "reasoning" && html`<p class="note">The server does not keep the question of this run.</p>`}
    <h2>Follow this run</h2>
    <${Command} name="grpcurl" text=${grpcurl(follow, "ExecutionService/FollowExecution")} />
    <${Command} name="curl" text=${curl("executions.follow", follow, "text/event-stream")} />
    <${Command} name="reasond" text=${`reasond executions follow ${id}`} />`;
}

class Command extends Component {
  state = { isCopied: false };

  async copy() {
    await navigator.clipboard.writeText(this.props.text);
    this.setState({ isCopied: true });
  }

  render({ name, text }, { isCopied }) {
    return html`<section class="command">
      <h3>${name}</h3>
      ${navigator.clipboard && html`<button type="button" aria-label=${`Copy as ${name}`} onClick=${() => this.copy()}>${isCopied ? "✓ copied" : "Copy"}</button>`}
      <${Text} label=${name}>${text}<//>
    </section>`;
  }
}
