// The frame of all screens: which screen the address names, what the server is up to, and the token.

import { Component, createRef, html, render } from "./dom.js";
import { Ask } from "./ask.js";
import { AskRepair } from "./ask_repair.js";
import { AskTurn } from "./ask_turn.js";
import { Comparison } from "./compare.js";
import { Evaluation } from "./eval.js";
import { Executions, Turns } from "./list.js";
import { Run } from "./run.js";
import { forgetToken, hasToken, link, refuseToken, takeToken, takeTokenFromAddress } from "./rpc.js";

const NAVIGATION = [
  ["#/", "Runs"],
  ["#/turns", "Turns"],
  ["#/ask", "New run"],
  ["#/eval", "Eval"],
];

// The forms that begin something are one place in the navigation.
const isAt = (address, to) => address === to || (to === "#/ask" && address.startsWith(to));

const placeOf = (address) => address.replace(/^#\//, "").split("/").map(decodeURIComponent);

function titleOf(address) {
  const [name, id] = placeOf(address);
  return `${(name || "runs").replace("_", " ")}${id ? ` ${id.slice(0, 12)}` : ""} – reasond`;
}

function screenOf(address) {
  const [name, ...ids] = placeOf(address);
  if (name === "run") return html`<${Run} key=${ids[0]} id=${ids[0]} />`;
  if (name === "compare") return html`<${Comparison} key=${ids.join()} ids=${ids} />`;
  if (name === "turns") return html`<${Turns} key="turns" />`;
  if (name === "ask") return html`<${Ask} key="ask" from=${ids[0]} />`;
  if (name === "ask_turn") return html`<${AskTurn} key="ask_turn" from=${ids[0]} />`;
  if (name === "ask_repair") return html`<${AskRepair} key="ask_repair" from=${ids[0]} />`;
  if (name === "eval") return html`<${Evaluation} key="eval" />`;
  return html`<${Executions} key="runs" />`;
}

// Asks for a token over the screen, which stays as it is: the calls that wait go on with the new token.
class TokenDialog extends Component {
  dialog = createRef();
  field = createRef();

  componentDidMount() {
    this.dialog.current.showModal();
  }

  submit(event) {
    event.preventDefault();
    if (this.field.current.value.trim()) takeToken(this.field.current.value);
  }

  render({ refusal }) {
    return html`<dialog ref=${this.dialog} aria-labelledby="token-title" onCancel=${refuseToken}>
      <form onSubmit=${(event) => this.submit(event)}>
        <h2 id="token-title">A token, please</h2>
        <p role="alert">${refusal.message}${refusal.message.endsWith(".") ? "" : "."}</p>
        <label>Token <input type="password" ref=${this.field} autocomplete="off" autofocus required /></label>
        <p class="faint">
          <code>reasond serve --dev</code> prints one, <code>reasond token</code> makes one, and so
          does <code>reasond keys create</code>. It is kept in this tab until the tab is closed.
        </p>
        <button class="main">Go on</button>
        <button type="button" class="plain" onClick=${refuseToken}>Not now</button>
      </form>
    </dialog>`;
  }
}

class App extends Component {
  state = { address: location.hash };
  main = createRef();

  componentDidMount() {
    addEventListener("hashchange", () => {
      takeTokenFromAddress();
      this.setState({ address: location.hash });
      this.main.current.focus();
    });
    link.listeners.add(() => this.setState({}));
  }

  render(_, { address }) {
    document.title = titleOf(address);
    return html`<header>
        <span class="brand">reasond</span>
        <nav aria-label="Screens">
          ${NAVIGATION.map(
            ([to, name]) => html`<a
              key=${to}
              href=${to}
              aria-current=${isAt(address || "#/", to) ? "page" : undefined}
            >${name}</a>`,
          )}
        </nav>
        ${hasToken() && html`<button type="button" class="plain" onClick=${forgetToken}>Sign out</button>`}
      </header>
      <div role="alert" class="banner">${link.trouble && html`<p>⚠ ${link.trouble}</p>`}</div>
      <main tabindex="-1" ref=${this.main} aria-label=${document.title}>${screenOf(address)}</main>
      ${link.refusal && html`<${TokenDialog} refusal=${link.refusal} />`}`;
  }
}

takeTokenFromAddress();
render(html`<${App} />`, document.getElementById("app"));
