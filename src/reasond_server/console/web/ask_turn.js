// The form that begins a turn: what is said, in which session, and the tools that its client runs.

import { html } from "./dom.js";
import { Area, Beginning, Budget, Images, Material, chosenFiles, filled, readBudget, readJson } from "./begin.js";
import { readImages } from "./files.js";
import { call } from "./rpc.js";

const MOST_SESSIONS = 50;
const TOOLS = '[{"name": "book_title", "description": "Reads the title of the book."}]';

export class AskTurn extends Beginning {
  title = "Begin a turn";
  place = "ask_turn";
  method = "turns.start";

  async load() {
    const { sessions } = await call("sessions.list", { page_size: MOST_SESSIONS });
    const before = this.props.from ? await call("turns.get", { turn_id: this.props.from }) : null;
    return { sessions: sessions.map((each) => each.session_id), said: before?.conversation ?? {}, turn: before?.turn ?? {} };
  }

  async params(form) {
    const schema = readJson(form, "answer_schema", "The schema");
    const images = await readImages(chosenFiles(form, "images"));
    return filled({
      message: form.get("message"),
      session_id: form.get("session_id").trim(),
      system: form.get("system"),
      material: form.get("material"),
      mode: form.get("mode").trim(),
      answer_schema_json: schema && JSON.stringify(schema),
      client_tools: readJson(form, "client_tools", "The tools"),
      images: images.length ? images : undefined,
      budget: readBudget(form),
    });
  }

  fields() {
    const { sessions, said, turn } = this.state;
    return html`<${Area} label="Message" name="message" rows="3" value=${said.message} required maxlength="100000" />
      <div class="pair">
        <label>Session; the same name goes on with the conversation
          <input name="session_id" list="sessions" defaultValue=${turn.session_id ?? ""} />
          <datalist id="sessions" aria-label="Sessions">${sessions.map((each) => html`<option key=${each} value=${each} />`)}</datalist>
        </label>
        <label>Mode, if the server has several <input name="mode" defaultValue=${turn.mode ?? ""} /></label>
      </div>
      <${Material} value=${said.material} />
      <details aria-label="More fields" open=${Boolean(said.system)}>
        <summary>Instructions, form of the answer, images, tools of the client</summary>
        <${Area} label="Instructions, as a system message" name="system" value=${said.system} />
        <${Area} label="JSON Schema of the answer" name="answer_schema" placeholder='{"type": "object"}' />
        <${Images} kept=${0} />
        <${Area} label="Tools of the client as JSON; you settle their calls on the next screen" name="client_tools" placeholder=${TOOLS} />
      </details>
      <${Budget} />`;
  }
}
