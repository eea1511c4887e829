// The form that begins a repair: a folder of code, what is wrong with it, and the checks that say so.

import { html } from "./dom.js";
import { Area, Beginning, Budget, filled, readBudget } from "./begin.js";
import { readFolder } from "./files.js";
import { number } from "./format.js";
import { call } from "./rpc.js";

const ROLES = [
  ["reproduce", "fails now, shall pass"],
  ["regression", "passes now, shall go on passing"],
  ["held_out", "judges the winner"],
];
const FORMATS = [
  ["", "the environment's"],
  ["exit_code", "exit code"],
  ["junit", "JUnit XML"],
  ["tap", "TAP"],
  ["go_json", "go test -json"],
];
const SEARCHES = ["", "refine_beam", "lats", "greedy", "best_of_n", "tournament"];
const QUOTED = /"([^"]*)"|'([^']*)'|(\S+)/g;

// The words of a command line; no shell reads it, so quotes only keep blanks together.
const argvOf = (line) => [...line.matchAll(QUOTED)].map(([, double, single, plain]) => double ?? single ?? plain);

const lineOf = ({ command, argv = [] }) => command || argv.map((word) => (/^[^\s"']+$/.test(word) ? word : word.includes('"') ? `'${word}'` : `"${word}"`)).join(" ");

export class AskRepair extends Beginning {
  title = "Begin a repair";
  place = "ask_repair";
  method = "repair.execute";

  async load() {
    const { environments, commands } = await call("repair.list_environments");
    const told = this.props.from ? await call("repair.get", { execution_id: this.props.from }) : {};
    const before = told.task ?? {};
    return { environments, commands, before, checks: before.checks?.length || 1, found: null };
  }

  async params(form) {
    const { commands, before, checks } = this.state;
    const files = await readFolder(form.getAll("folder").filter((file) => file.name));
    const found = Array.from({ length: checks }, (_, place) => {
      const line = form.get(`check-${place}`).trim();
      const role = form.get(`role-${place}`);
      const known = before.checks?.[place];
      const isKnown = known && lineOf(known) === line;
      const run = commands.includes(line) ? { command: line } : { argv: isKnown ? known.argv : argvOf(line) };
      return line && filled({ name: `${role}-${place + 1}`, ...(isKnown && known), role, format: form.get(`format-${place}`), ...run });
    });
    return filled({
      ...before, // What the form has no field for is asked again as it was.
      goal: form.get("goal"),
      description: form.get("description"),
      environment: form.get("environment"),
      files: files.length ? files : undefined,
      snapshot_id: files.length ? undefined : before.snapshot_id,
      checks: found.filter(Boolean),
      config: filled({ ...before.config, search: form.get("search"), max_candidates: Number(form.get("max_candidates")) || undefined }),
      budget: readBudget(form, before.budget),
      keep_running: true,
    });
  }

  fields() {
    const { environments, commands, before, checks, found } = this.state;
    const count = ({ target }) => this.setState({ found: target.files.length });
    return html`${!environments.length && html`<p class="problem"><strong>This server runs no checks.</strong> Its operator allows them in <code>[repair.environments]</code>; a plan needs none.</p>`}
      <${Area} label="What is wrong, or wanted" name="description" rows="3" value=${before.description} maxlength="100000" />
      <div class="pair">
        <label>Folder of the code <input type="file" name="folder" webkitdirectory required=${!before.snapshot_id} onChange=${count} />
          <small>${found !== null ? `${number(found)} files; what tools make and fetch is left out.` : before.snapshot_id ? "Without a choice, the code of the repair before." : "Nothing is sent before you begin."}</small>
        </label>
        <label>Wanted <select name="goal"><option value="fix">a patch</option><option value="plan" selected=${before.goal === "plan"}>a plan, of which nothing is run</option></select></label>
        <label>Environment <select name="environment">${environments.map(({ name }) => html`<option key=${name} value=${name} selected=${name === before.environment}>${name}</option>`)}</select></label>
      </div>
      <fieldset>
        <legend>Checks: commands with their arguments${commands.length ? `, or one of ${commands.join(", ")}` : ""}</legend>
        ${Array.from({ length: checks }, (_, place) => html`<${CheckFields} key=${place} place=${place} known=${before.checks?.[place]} />`)}
        <button type="button" onClick=${() => this.setState({ checks: checks + 1 })}>Another check</button>
      </fieldset>
      <fieldset>
        <legend>Search; what is left empty takes the server's value</legend>
        <div class="grid">
          <label>Search <select name="search">${SEARCHES.map((each) => html`<option key=${each} value=${each} selected=${each === before.config?.search}>${each || "the server's"}</option>`)}</select></label>
          <label>Most candidates <input type="number" name="max_candidates" min="1" defaultValue=${before.config?.max_candidates ?? ""} /></label>
        </div>
      </fieldset>
      <${Budget} value=${before.budget} />`;
  }
}

const Options = ({ options, chosen }) => options.map(([value, text]) => html`<option key=${value} value=${value} selected=${value === chosen}>${text}</option>`);

const CheckFields = ({ place, known = {} }) => html`<div class="check-fields">
  <label>Command <input name=${`check-${place}`} defaultValue=${lineOf(known)} placeholder="python3 -m pytest -q" /></label>
  <label>Meaning <select name=${`role-${place}`}><${Options} options=${ROLES} chosen=${known.role} /></select></label>
  <label>It reports by <select name=${`format-${place}`}><${Options} options=${FORMATS} chosen=${known.format ?? ""} /></select></label>
</div>`;
