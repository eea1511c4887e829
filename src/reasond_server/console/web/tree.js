// A tree of nodes: thoughts with their scores, or the candidates of a repair. Each was made from its parent.

import { html } from "./dom.js";
import { plural } from "./format.js";

const NODE_X = 220;
const NODE_Y = 48;
const SHOWN_CHARACTERS = 27;
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
    node.x = depth * NODE_X;
    node.children.forEach((child) => put(child, depth + 1));
    const { children } = node;
    node.y = children.length ? (children[0].y + children.at(-1).y) / 2 : leaves++ * NODE_Y;
  };
  const origin = { children: roots };
  put(origin, 0);
  return { origin, all: [...nodes.values()], height: Math.max(1, leaves) * NODE_Y };
}

// Nodes are {id, parentId, place, text, title, mark, share, isPruned, isBest}; `place` is that of its step.
export function Tree({ nodes, title, label, legend, chosen, onChoose }) {
  const { origin, all, height } = layOut(nodes);
  const width = Math.max(0, ...all.map((each) => each.x)) + 1.3 * NODE_X;
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
        ${edges.map(([from, to]) => html`<path key=${to.id} class=${to.isPruned ? "edge pruned" : "edge"} d=${`M${from.x},${from.y} C${from.x + 70},${from.y} ${to.x - 70},${to.y} ${to.x},${to.y}`} />`)}
        <circle cx=${origin.x} cy=${origin.y} r="6" class="node" />
        ${all.map((node) => html`<${Node} key=${node.id} node=${node} isChosen=${node.place === chosen} onChoose=${onChoose} />`)}
      </svg>
    </div>
  </section>`;
}

function Node({ node, isChosen, onChoose }) {
  const name = `node${node.isPruned ? " pruned" : ""}${node.isBest ? " best" : ""}${isChosen ? " chosen" : ""}`;
  return html`<g onClick=${() => onChoose(node.place)}>
    <title>${node.title}</title>
    <circle cx=${node.x} cy=${node.y} r=${5 + 6 * node.share} class=${name} />
    <text x=${node.x - 8} y=${node.y - 11 - 6 * node.share}>${node.mark} ${node.text.length > SHOWN_CHARACTERS ? `${node.text.slice(0, SHOWN_CHARACTERS)}…` : node.text}</text>
  </g>`;
}
