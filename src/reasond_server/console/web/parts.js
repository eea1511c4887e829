// Parts of screens: state marks, notes, tabs, a list that keeps few rows in the page, and a bar of parts.

import { Component, createRef, html } from "./dom.js";
import { badgeOf, words } from "./format.js";

export function Badge({ state, reason }) {
  const [mark, text, kind] = badgeOf(state, reason);
  return html`<span class="badge ${kind}"><span aria-hidden="true">${mark}</span> ${text}</span>`;
}

export function Problem({ error }) {
  return html`<div class="problem" role="alert">
    <strong>${error.message}</strong> ${error.remedy}
    ${error.violations?.map((each) => html`<div>${each.field}: ${each.description}</div>`)}
    ${error.reason && html`<div class="faint">${error.reason}</div>`}
  </div>`;
}

export function Facts({ facts }) {
  return html`<dl class="facts">
    ${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

// A text that scrolls. Its role gives a screen reader its name when the keyboard is on it.
export function Text({ label, name, children }) {
  return html`<pre class=${name} role="group" tabindex="0" aria-label=${label}>${children}</pre>`;
}

// A text of a model or a tool, as it was written.
export function Prose({ title, text, heading = "h3" }) {
  if (!text) return null;
  return html`<section class="prose"><${heading}>${title}<//><${Text} label=${title}>${text}<//></section>`;
}

export class Tabs extends Component {
  move(event) {
    const { names, chosen, onChoose } = this.props;
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = names[(names.indexOf(chosen) + step + names.length) % names.length];
    onChoose(next);
    document.getElementById(`tab-${words(next)}`)?.focus();
  }

  render({ names, chosen, onChoose, label }) {
    return html`<div class="tabs" role="tablist" aria-label=${label} onKeyDown=${(event) => this.move(event)}>
      ${names.map(
        (name) => html`<button
          key=${name}
          id=${`tab-${words(name)}`}
          role="tab"
          type="button"
          aria-selected=${String(name === chosen)}
          tabindex=${name === chosen ? 0 : -1}
          onClick=${() => onChoose(name)}
        >
          ${name}
        </button>`,
      )}
    </div>`;
  }
}

const BEFORE_AND_AFTER = 6;

// A list of any length: only the rows near the visible ones are in the page.
export class Rows extends Component {
  constructor(props) {
    super(props);
    this.state = { top: 0 };
    this.box = createRef();
    this.isAtEnd = true;
  }

  componentDidUpdate(before) {
    const { count, height, chosen, follows } = this.props;
    const box = this.box.current;
    if (follows && this.isAtEnd && count !== before.count) box.scrollTop = count * height;
    if (chosen !== before.chosen && chosen >= 0) {
      if (chosen * height < box.scrollTop) box.scrollTop = chosen * height;
      if ((chosen + 1) * height > box.scrollTop + box.clientHeight) {
        box.scrollTop = (chosen + 1) * height - box.clientHeight;
      }
    }
  }

  scroll() {
    const box = this.box.current;
    this.isAtEnd = box.scrollTop + box.clientHeight >= this.props.count * this.props.height - this.props.height;
    this.setState({ top: box.scrollTop });
  }

  press(event) {
    const { count, chosen, onChoose, visible } = this.props;
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: visible, PageUp: -visible, Home: -count, End: count };
    if (!(event.key in moves) || !count) return;
    event.preventDefault();
    onChoose(Math.min(count - 1, Math.max(0, chosen + moves[event.key])));
  }

  render({ count, height, visible, row, chosen, onChoose, label, name }, { top }) {
    const first = Math.max(0, Math.floor(top / height) - BEFORE_AND_AFTER);
    const end = Math.min(count, first + visible + 2 * BEFORE_AND_AFTER);
    const shown = Array.from({ length: Math.max(0, end - first) }, (_, place) => first + place);
    const isChosenShown = chosen >= first && chosen < end;
    return html`<div
      class="rows ${name}"
      ref=${this.box}
      role="listbox"
      tabindex="0"
      aria-label=${label}
      aria-activedescendant=${isChosenShown ? `${name}-${chosen}` : undefined}
      style=${{ height: `${Math.max(1, Math.min(visible, count)) * height + 2}px` }}
      onScroll=${() => this.scroll()}
      onKeyDown=${(event) => this.press(event)}
    >
      <div role="presentation" class="all" style=${{ height: `${count * height}px` }}>
        ${shown.map(
          (place) => html`<div
            key=${place}
            id=${`${name}-${place}`}
            role="option"
            aria-selected=${String(place === chosen)}
            aria-setsize=${count}
            aria-posinset=${place + 1}
            style=${{ top: `${place * height}px`, height: `${height}px` }}
            onClick=${() => onChoose(place)}
          >
            ${row(place)}
          </div>`,
        )}
      </div>
    </div>`;
  }
}

// A bar out of parts [class, amount], of a whole; its label says the same in words.
export function Bar({ parts, whole, label }) {
  let left = 0;
  return html`<svg class="bar" role="img" aria-label=${label} viewBox="0 0 100 10" preserveAspectRatio="none">
    <rect class="whole" width="100" height="10" />
    ${parts.map(([name, amount]) => {
      const width = Math.max(0, Math.min(100 - left, (100 * amount) / Math.max(1, whole)));
      const x = left;
      left += width;
      return html`<rect key=${name} class=${name} x=${x} width=${width} height="10" />`;
    })}
  </svg>`;
}
