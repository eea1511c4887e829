// A tree of nodes: thoughts with their scores, or the candidates of a repair. Each was made from its parent.

import { html } from "./dom.js";
import { plural } from "./format.js";

const FIRST_X = 80; // Nothing is written at the origin.
const LEAST_X = 220;
const MOST_X = 460;
const MARGIN = 220;
const NODE_Y = 48;
const CHARACTER_X = 7.8;
const MOST_NODES = 400;

// Leaves stand below one another, and a parent in the middle of its children.
function layOut(given) {
  const nodes = new Map(given.slice(0, MOST_NODES).map((each) => [each.id, { ...each, children: [] }]));
  const roots = [];
  for (const node of nodes.values()) {
    const parent = nodes.get(node.parentId);
    (parent ? parent.children : roots).push(node);
  }
  let leaves = 0;
  const put = (node, depth) => {
    node.depth = depth;
    node.children.forEach((child) => put(child, depth + 1));
    const { children } = node;
    node.y = children.length ? (children[0].y + children.at(-1).y) / 2 : leaves++ * NODE_Y;
  };
  const origin = { children: roots };
  put(origin, 0);
  const all = [...nodes.values()];
  const columns = Math.max(1, ...all.map((each) => each.depth));
  const step = Math.max(LEAST_X, Math.min(MOST_X, (Math.min(innerWidth, 1400) - MARGIN) / columns));
  for (const node of [origin, ...all]) node.x = node.depth && FIRST_X + (node.depth - 1) * step;
  return { origin, all, step, width: FIRST_X + columns * step, height: Math.max(1, leaves) * NODE_Y };
}

// Nodes are {id, parentId, place, text, title, mark, share, isPruned, isBest}; `place` is that of its step.
export function Tree({ nodes, title, label, legend, chosen, onChoose }) {
  const { origin, all, step, width, height } = layOut(nodes);
  const edges = [origin, ...all].flatMap((node) => node.children.map((child) => [node, child]));
  const left = nodes.length - all.length;
  return html`<section>
    <h2>${title}</h2>
    <p class="legend">
      ${legend.map((each) => html`<span key=${each}>${each}</span>`)}
      ${left > 0 && html`<span>${plural(left, "more node")} in the list below</span>`}
    </p>
    <div class="scroll tree" tabindex="0" role="region" aria-label=${label}>
      <svg role="img" aria-label=${`${plural(all.length, "node")}; the list of steps names them`} width=${width} height=${height} viewBox=${`-14 -30 ${width} ${height}`}>
        ${edges.map(([from, to]) => html`<path key=${to.id} class=${to.isPruned ? "edge pruned" : "edge"} d=${`M${from.x},${from.y} C${(from.x + to.x) / 2},${from.y} ${(from.x + to.x) / 2},${to.y} ${to.x},${to.y}`} />`)}
        <circle cx=${origin.x} cy=${origin.y} r="6" class="node" />
        ${all.map((node) => html`<${Node} key=${node.id} node=${node} most=${Math.floor(step / CHARACTER_X)} isChosen=${node.place === chosen} onChoose=${onChoose} />`)}
      </svg>
    </div>
  </section>`;
}

function Node({ node, most, isChosen, onChoose }) {
  const name = `node${node.isPruned ? " pruned" : ""}${node.isBest ? " best" : ""}${isChosen ? " chosen" : ""}`;
  return html`<g onClick=${() => onChoose(node.place)}>
    <title>${node.title}</title>
    <circle cx=${node.x} cy=${node.y} r=${5 + 6 * node.share} class=${name} />
    <text x=${node.x - 8} y=${node.y - 11 - 6 * node.share}>${node.mark} ${node.text.length > most ? `${node.text.slice(0, most - 1)}…` : node.text}</text>
  </g>`;
}
