// A unified diff: both sides beside each other where there is room, or as it is.

import { Component, html } from "./dom.js";
import { download } from "./files.js";
import { number } from "./format.js";
import { Text } from "./parts.js";

const MOST_LINES = 3_000;
const KINDS = { "+": "added", "-": "removed", "@": "place" };
const HUNK = /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@/;

const kindOf = (line) => (/^(\+\+\+|---) |^(diff|index|new|deleted|rename|similarity) /.test(line) ? "place" : (KINDS[line[0]] ?? ""));

// The rows of both sides: {place} for a head, else {old, new} with their numbers. Lines that replace one another share a row.
function rowsOf(lines) {
  const rows = [];
  let [oldAt, newAt, removed, added] = [0, 0, [], []];
  let [oldLeft, newLeft] = [0, 0];
  const flush = () => {
    for (let row = 0; row < Math.max(removed.length, added.length); row += 1) rows.push({ old: removed[row], new: added[row] });
    [removed, added] = [[], []];
  };
  for (const line of lines) {
    const hunk = HUNK.exec(line);
    // Inside a hunk a line that begins like a head is one of the code.
    if (hunk || (!oldLeft && !newLeft)) {
      flush();
      if (hunk) [oldAt, oldLeft, newAt, newLeft] = [+hunk[1], +(hunk[2] ?? 1), +hunk[3], +(hunk[4] ?? 1)];
      // Of a file's heads its path is enough, and what more is said than that it has changed.
      if (line && !/^(diff|index|---) /.test(line)) rows.push({ place: line.replace(/^\+\+\+ (b\/)?/, "") });
    } else if (line[0] === "-") {
      removed.push({ at: oldAt++, text: line.slice(1), kind: "removed" });
      oldLeft -= 1;
    } else if (line[0] === "+") {
      added.push({ at: newAt++, text: line.slice(1), kind: "added" });
      newLeft -= 1;
    } else if (line[0] !== "\\") {
      flush();
      const text = line.slice(1);
      rows.push({ old: { at: oldAt++, text, kind: "" }, new: { at: newAt++, text, kind: "" } });
      oldLeft -= 1;
      newLeft -= 1;
    }
  }
  flush();
  return rows;
}

const Side = ({ side }) => html`<span class="place">${side?.at ?? ""}</span><span class=${`code ${side?.kind ?? "none"}`}>${side ? side.text || " " : ""}</span>`;

export class Diff extends Component {
  state = { isBeside: matchMedia("(width >= 60rem)").matches };

  render({ text, name }, { isBeside }) {
    if (!text) return html`<p class="faint">No text is kept.</p>`;
    const lines = text.split("\n");
    const shown = lines.slice(0, MOST_LINES);
    return html`<div class="diff-bar">
        <button type="button" aria-pressed=${String(isBeside)} onClick=${() => this.setState({ isBeside: !isBeside })}>Side by side</button>
        ${name && html`<button type="button" onClick=${() => download(name, text)}>⤓ Download ${name}</button>`}
        ${name && html`<span class="faint">apply it with <code>git apply ${name}</code></span>`}
        ${lines.length > MOST_LINES && html`<span class="faint">the first ${number(MOST_LINES)} of ${number(lines.length)} lines</span>`}
      </div>
      ${isBeside
        ? html`<div class="beside" tabindex="0" role="group" aria-label="Before and after">
            ${rowsOf(shown).map((row, place) => (row.place ? html`<div key=${place} class="head">${row.place}</div>` : html`<div key=${place} class="row"><${Side} side=${row.old} /><${Side} side=${row.new} /></div>`))}
          </div>`
        : html`<${Text} name="diff" label="Unified diff">${shown.map((line, place) => html`<span key=${place} class=${kindOf(line)}>${line || " "}</span>`)}<//>`}`;
  }
}
