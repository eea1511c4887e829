"""Which nodes to expand next: the best of each depth (beam), or the most promising of all (UCT)."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol

from reasond_server.search.tree import Node, PayloadT

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

# C_p of Kocsis & Szepesvari for rewards in 0..1.
CLASSIC_EXPLORATION = 1 / math.sqrt(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    """What bounds and shapes a search.

    Attributes:
        max_depth: deepest level that nodes are made on.
        branching: candidates asked for in one expansion.
        width: nodes kept of each depth (beam), or expanded at once (UCT).
        at_once: most calls in parallel.
        solved_score: a terminal node of at least this score ends the search.
        min_score: nodes that score less are pruned.
        unknown_score: score of a node that the evaluator could not judge.
        exploration: C_p of UCT.
        patience: expansions without a better terminal node, once there is one, that end the search; None for never.
        max_failures: calls that fail one after the other before the search fails.
        seed: breaks ties between equal scores; None keeps the order in which nodes were made.
    """

    max_depth: int
    branching: int
    width: int = 1
    at_once: int = 8
    solved_score: float = 1.0
    min_score: float = 0.0
    unknown_score: float = 0.5
    exploration: float = CLASSIC_EXPLORATION
    patience: int | None = None
    max_failures: int = 3
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion(Generic[PayloadT]):
    """A node and its children, in order; `is_failed` where proposing them failed."""

    node: Node[PayloadT]
    children: Sequence[Node[PayloadT]]
    is_failed: bool = False


class Selection(Protocol[PayloadT]):
    """A policy: which nodes come next, and which are given up."""

    def choose(self) -> Sequence[Node[PayloadT]]:
        """Return the nodes to expand next, in order; none when the tree is exhausted."""
        ...

    def settle(self, chosen: Sequence[Node[PayloadT]], expansions: Sequence[Expansion[PayloadT]]) -> Collection[str]:
        """Take what came of `chosen` and return the ids of the new nodes that are pruned.

        A chosen node without an expansion was not expanded for want of budget.
        """
        ...


def rank(node: Node[PayloadT], *, seed: int | None) -> tuple[float, str, int]:
    """Return what sorts nodes best first; a tie is broken by a hash of seed and id, without a seed by age."""
    lot = "" if seed is None else hashlib.sha256(f"{seed}:{node.node_id}".encode()).hexdigest()
    return (-node.score, lot, node.number)


class BeamSelection(Generic[PayloadT]):
    """Breadth first: of each depth the `width` best nodes that are not terminal, as ToT-BFS (arXiv 2305.10601, Alg. 1).

    Terminal nodes take no place in the beam. A node that scores less than the best terminal one is pruned.
    """

    def __init__(self, root: Node[PayloadT], plan: SearchPlan) -> None:
        self._plan = plan
        self._frontier: Sequence[Node[PayloadT]] = [root]
        self._best = -math.inf

    def choose(self) -> Sequence[Node[PayloadT]]:
        """Return the frontier, the nodes of one depth."""
        return self._frontier

    def settle(self, chosen: Sequence[Node[PayloadT]], expansions: Sequence[Expansion[PayloadT]]) -> Collection[str]:  # noqa: ARG002 - what was not expanded is left behind with its depth
        """Make the next frontier of all new nodes."""
        made = [child for expansion in expansions for child in expansion.children]
        self._best = max([self._best, *(child.score for child in made if child.is_terminal)])
        least = max(self._plan.min_score, self._best)
        ahead = sorted(
            (child for child in made if not child.is_terminal and child.score >= least),
            key=lambda child: rank(child, seed=self._plan.seed),
        )[: self._plan.width]
        kept = {child.node_id for child in ahead}
        self._frontier = [child for child in ahead if child.depth < self._plan.max_depth]
        return {child.node_id for child in made if not child.is_terminal and child.node_id not in kept}


@dataclass(slots=True, eq=False)
class _Standing(Generic[PayloadT]):
    """What UCT knows of a node. `open` counts the nodes of its subtree that may still be expanded, itself included."""

    node: Node[PayloadT]
    children: list[_Standing[PayloadT]] = field(default_factory=list)
    visits: int = 0
    total: float = 0.0
    best: float = 0.0
    virtual: int = 0
    open: int = 0
    is_open: bool = False


class UctSelection(Generic[PayloadT]):
    """Best first over the whole tree: UCT (Kocsis & Szepesvari, Bandit based Monte-Carlo Planning, ECML 2006).

    From the root down to the child with the largest

        Q(child) + 2 * C_p * sqrt(ln N(parent) / N(child))

    where N counts the expansions at or below a node. An unvisited child (N = 0) comes before every visited one; of
    several the best score first. There are no rollouts: an expansion is worth the best score among the new children
    (0 without any), which is backed up to the root. Q is the middle between mean and maximum of what was backed up:
    the maximum, because one good path is enough, the mean, because scores err.

    While a node is being expanded it and its ancestors bear a virtual loss, one visit worth 0, so that the nodes
    chosen for one wave differ (Chaslot et al., Parallel Monte-Carlo Tree Search, 2008).
    """

    def __init__(self, root: Node[PayloadT], plan: SearchPlan) -> None:
        self._plan = plan
        self._root: _Standing[PayloadT] = _Standing(root)
        self._standings = {root.node_id: self._root}
        self._set_open(self._root, is_open=plan.max_depth > 0)

    def choose(self) -> Sequence[Node[PayloadT]]:
        """Return up to `width` nodes; each is no longer open and bears its virtual loss until `settle`."""
        chosen: list[Node[PayloadT]] = []
        while self._root.open and len(chosen) < self._plan.width:
            standing = self._descend()
            self._set_open(standing, is_open=False)
            for each in self._line(standing):
                each.virtual += 1
            chosen.append(standing.node)
        return chosen

    def settle(self, chosen: Sequence[Node[PayloadT]], expansions: Sequence[Expansion[PayloadT]]) -> Collection[str]:
        """Take the virtual losses back, add the new nodes and back their values up."""
        for node in chosen:
            for each in self._line(self._standings[node.node_id]):
                each.virtual -= 1
        pruned = set()
        for expansion in expansions:
            standing = self._standings[expansion.node.node_id]
            pruned |= {child.node_id for child in expansion.children if self._add(standing, child)}
            if not expansion.is_failed:
                self._back_up(standing, max((child.score for child in expansion.children), default=0.0))
        return pruned

    def _descend(self) -> _Standing[PayloadT]:
        standing = self._root
        while not standing.is_open:
            visits = standing.visits + standing.virtual
            ahead = [child for child in standing.children if child.open]
            standing = min(ahead, key=lambda child: self._order(child, visits))
        return standing

    def _order(self, child: _Standing[PayloadT], parent_visits: int) -> tuple[float, float, str, int]:
        """Return what sorts the children of a node, the one to descend to first."""
        visits = child.visits + child.virtual
        if not visits:
            return (-math.inf, *rank(child.node, seed=self._plan.seed))
        quality = (child.total / visits + child.best) / 2
        bonus = 2 * self._plan.exploration * math.sqrt(math.log(max(parent_visits, 1)) / visits)
        return (-(quality + bonus), *rank(child.node, seed=self._plan.seed))

    def _add(self, parent: _Standing[PayloadT], node: Node[PayloadT]) -> bool:
        """Hang a new node into the tree; return whether it is pruned."""
        standing = _Standing(node)
        self._standings[node.node_id] = standing
        parent.children.append(standing)
        is_pruned = not node.is_terminal and node.score < self._plan.min_score
        self._set_open(standing, is_open=not (is_pruned or node.is_terminal or node.depth >= self._plan.max_depth))
        return is_pruned

    def _back_up(self, standing: _Standing[PayloadT], value: float) -> None:
        for each in self._line(standing):
            each.visits += 1
            each.total += value
            each.best = max(each.best, value)

    def _set_open(self, standing: _Standing[PayloadT], *, is_open: bool) -> None:
        change = int(is_open) - int(standing.is_open)
        standing.is_open = is_open
        for each in self._line(standing):
            each.open += change

    def _line(self, standing: _Standing[PayloadT]) -> Sequence[_Standing[PayloadT]]:
        """Return the node's standing and those of its ancestors."""
        nodes = standing.node.path
        return [self._root, *(self._standings[node.node_id] for node in nodes)]
