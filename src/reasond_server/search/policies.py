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
class Widening:
    """Progressive widening: a node may have ceil(factor * n ** exponent) children at its n-th visit.

    So few children are made first, and more where the search comes back to (Couetoux et al., Continuous Upper
    Confidence Trees, 2011).
    """

    factor: float
    exponent: float = 0.5

    def bound_children(self, visit: int) -> int:
        """Return the most children at a visit, counted from 1; at least 1."""
        return max(1, math.ceil(self.factor * math.pow(visit, self.exponent)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    """What bounds and shapes a search.

    Attributes:
        max_depth: deepest level that nodes are made on.
        branching: most candidates asked for in one expansion.
        width: nodes kept of each depth (beam), or expanded at once (UCT).
        at_once: most calls in parallel.
        solved_score: a solution of at least this score ends the search.
        min_score: nodes that score less are pruned.
        unknown_score: score of a node that the evaluator could not judge.
        exploration: C_p of UCT.
        widening: how UCT expands nodes again; None expands each node once.
        patience: expansions without a better solution, once there is one, that end the search; None for never.
        novelty_patience: expansions in a row without a new signature that end the search; None for never.
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
    widening: Widening | None = None
    patience: int | None = None
    novelty_patience: int | None = None
    max_failures: int = 3
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Generic[PayloadT]):
    """A node to expand next, and the most children to ask for."""

    node: Node[PayloadT]
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion(Generic[PayloadT]):
    """A node and its new children, in order; `is_failed` where proposing them failed."""

    node: Node[PayloadT]
    children: Sequence[Node[PayloadT]]
    is_failed: bool = False


class SelectionPolicy(Protocol[PayloadT]):
    """A policy: which nodes come next, and which are given up."""

    def choose(self) -> Sequence[Choice[PayloadT]]:
        """Return the nodes to expand next, in order; none when the tree is exhausted."""
        ...

    def settle(self, chosen: Sequence[Choice[PayloadT]], expansions: Sequence[Expansion[PayloadT]]) -> Collection[str]:
        """Take what came of `chosen` and return the ids of the new nodes that are pruned.

        A chosen node without an expansion was not expanded for want of budget.
        """
        ...


def rank(node: Node[PayloadT], *, seed: int | None) -> tuple[float, str, int]:
    """Return what sorts nodes best first; a tie is broken by a hash of seed and id, without a seed by age."""
    lot = "" if seed is None else hashlib.sha256(f"{seed}:{node.node_id}".encode()).hexdigest()
    return (-node.score, lot, node.number)


class BeamSelection(Generic[PayloadT]):
    """Breadth first: of each depth the `width` best nodes that are no solutions, as ToT-BFS (arXiv 2305.10601, Alg. 1).

    Solutions take no place in the beam. A node that scores less than the best solution is pruned.
    """

    def __init__(self, root: Node[PayloadT], plan: SearchPlan) -> None:
        self._plan = plan
        self._frontier: Sequence[Node[PayloadT]] = [root]
        self._best = -math.inf

    def choose(self) -> Sequence[Choice[PayloadT]]:
        """Return the frontier, the nodes of one depth."""
        return [Choice(node=node, count=self._plan.branching) for node in self._frontier]

    def settle(self, chosen: Sequence[Choice[PayloadT]], expansions: Sequence[Expansion[PayloadT]]) -> Collection[str]:  # noqa: ARG002 - what was not expanded is left behind with its depth
        """Make the next frontier of all new nodes."""
        made = [child for expansion in expansions for child in expansion.children]
        self._best = max([self._best, *(child.score for child in made if child.is_solution)])
        least = max(self._plan.min_score, self._best)
        ahead = sorted(
            (child for child in made if not child.is_solution and child.score >= least),
            key=lambda child: rank(child, seed=self._plan.seed),
        )[: self._plan.width]
        kept = {child.node_id for child in ahead}
        self._frontier = [child for child in ahead if child.depth < self._plan.max_depth]
        return {child.node_id for child in made if not child.is_solution and child.node_id not in kept}


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

    With widening a node stays open after its expansion. The way down stops at the first open node that may have more
    children, or that has nothing open below it.

    While a node is being expanded it and its ancestors bear a virtual loss, one visit worth 0, so that the nodes
    chosen for one wave differ (Chaslot et al., Parallel Monte-Carlo Tree Search, 2008).
    """

    def __init__(self, root: Node[PayloadT], plan: SearchPlan) -> None:
        self._plan = plan
        self._root: _Standing[PayloadT] = _Standing(root)
        self._standings = {root.node_id: self._root}
        self._set_open(self._root, is_open=plan.max_depth > 0)

    def choose(self) -> Sequence[Choice[PayloadT]]:
        """Return up to `width` nodes; each is no longer open and bears its virtual loss until `settle`."""
        chosen: list[Choice[PayloadT]] = []
        while self._root.open and len(chosen) < self._plan.width:
            standing = self._descend()
            chosen.append(Choice(node=standing.node, count=max(1, self._count_room(standing))))
            self._set_open(standing, is_open=False)
            for each in self._trace(standing.node):
                each.virtual += 1
        return chosen

    def settle(self, chosen: Sequence[Choice[PayloadT]], expansions: Sequence[Expansion[PayloadT]]) -> Collection[str]:
        """Take the virtual losses back, add the new nodes and back their values up."""
        for choice in chosen:
            for each in self._trace(choice.node):
                each.virtual -= 1
        pruned = set()
        for expansion in expansions:
            standing = self._standings[expansion.node.node_id]
            pruned |= {child.node_id for child in expansion.children if self._add(standing, child)}
            if not expansion.is_failed:
                self._back_up(standing, max((child.score for child in expansion.children), default=0.0))
            # What brought nothing new is not asked again: the search must end.
            if self._plan.widening is not None and expansion.children:
                self._set_open(standing, is_open=True)
        return pruned

    def _descend(self) -> _Standing[PayloadT]:
        standing = self._root
        while not self._is_due(standing):
            visits = standing.visits + standing.virtual
            ahead = [child for child in standing.children if child.open]
            standing = min(ahead, key=lambda child: self._rank_child(child, visits))
        return standing

    def _is_due(self, standing: _Standing[PayloadT]) -> bool:
        """Return whether a node is expanded itself, rather than one below it."""
        if not standing.is_open:
            return False
        is_last = standing.open == 1
        return not standing.children or is_last or self._count_room(standing) > 0

    def _count_room(self, standing: _Standing[PayloadT]) -> int:
        """Return how many children to ask for; 0 where widening allows no more for now."""
        if self._plan.widening is None:
            return self._plan.branching
        most = self._plan.widening.bound_children(standing.visits + standing.virtual + 1)
        return min(self._plan.branching, max(most - len(standing.children), 0))

    def _rank_child(self, child: _Standing[PayloadT], parent_visits: int) -> tuple[float, float, str, int]:
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
        is_pruned = not node.is_solution and node.score < self._plan.min_score
        self._set_open(standing, is_open=not (is_pruned or node.is_solution or node.depth >= self._plan.max_depth))
        return is_pruned

    def _back_up(self, standing: _Standing[PayloadT], value: float) -> None:
        for each in self._trace(standing.node):
            each.visits += 1
            each.total += value
            each.best = max(each.best, value)

    def _set_open(self, standing: _Standing[PayloadT], *, is_open: bool) -> None:
        change = int(is_open) - int(standing.is_open)
        standing.is_open = is_open
        for each in self._trace(standing.node):
            each.open += change

    def _trace(self, node: Node[PayloadT]) -> Sequence[_Standing[PayloadT]]:
        """Return the standings from the root to `node`."""
        return [self._root, *(self._standings[each.node_id] for each in node.path)]
