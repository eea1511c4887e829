"""Policies that select the nodes to expand next: the best of each depth (beam), or the most promising of all (UCT)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol

from reasond_server.search.tree import Node, PayloadT
from reasond_server.types.values import value

# C_p of Kocsis & Szepesvari for rewards in 0..1.
CLASSIC_EXPLORATION = 1 / math.sqrt(2)


@value
class Widening:
    """Progressive widening: a node may have ceil(factor * n ** exponent) children at its n-th visit.

    A node has few children at first and gets more each time the search returns to it (Couetoux et al., Continuous
    Upper Confidence Trees, 2011).
    """

    factor: float
    exponent: float = 0.5

    def bound_children(self, visit: int) -> int:
        """Return the most children at the visit number `visit`, counted from 1; at least 1."""
        return max(1, math.ceil(self.factor * math.pow(visit, self.exponent)))


@value
class SearchPlan:
    """Bounds and parameters of a search.

    Attributes:
        max_depth: depth of the deepest nodes.
        branching: most candidates of one expansion.
        width: nodes kept at each depth (beam), or expanded at once (UCT).
        at_once: most calls in parallel.
        solved_score: a solution of at least this score ends the search.
        min_score: nodes that score less are pruned.
        unknown_score: score of a node that the evaluator could not judge.
        exploration: C_p of UCT.
        widening: how UCT expands nodes again; None expands each node once.
        is_root_kept_open: whether UCT with widening goes on to expand the root after an expansion that brought nothing
            new. Then the allowance or a patience has to end the search.
        patience: number of expansions without a better solution after which a search with a solution ends; None: never.
        novelty_patience: number of expansions without a new signature after which the search ends, or of candidates
            since the last one that repeat others or show no signature; None: never.
        max_failures: number of failed calls in a row after which the search fails.
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
    is_root_kept_open: bool = False
    patience: int | None = None
    novelty_patience: int | None = None
    max_failures: int = 3
    seed: int | None = None


@value
class Choice(Generic[PayloadT]):
    """A node to expand next, and the most children to request."""

    node: Node[PayloadT]
    count: int


@value
class Expansion(Generic[PayloadT]):
    """A node and its new children, in order; `is_failed` means that the proposing call failed."""

    node: Node[PayloadT]
    children: Sequence[Node[PayloadT]]
    is_failed: bool = False


class SelectionPolicy(Protocol[PayloadT]):
    """A policy that selects the nodes to expand and those to prune."""

    def choose(self) -> Sequence[Choice[PayloadT]]:
        """Return the nodes to expand next, in order; empty when the tree is exhausted."""

    def settle(self, chosen: Sequence[Choice[PayloadT]], expansions: Sequence[Expansion[PayloadT]]) -> Collection[str]:
        """Record the `expansions` of `chosen` and return the ids of the new nodes that are pruned.

        A chosen node without an expansion was not expanded because the budget did not cover it.
        """


def rank(node: Node[PayloadT], *, seed: int | None) -> tuple[float, str, int]:
    """Return the key that sorts nodes best first; a hash of seed and id breaks ties, or the age without a seed."""
    lot = "" if seed is None else hashlib.sha256(f"{seed}:{node.node_id}".encode()).hexdigest()
    return (-node.score, lot, node.number)


class BeamSelection(Generic[PayloadT]):
    """Breadth first: expands the `width` best nodes of each depth, as ToT-BFS (arXiv 2305.10601, Alg. 1).

    Solutions take no place among the `width` nodes. A node that scores less than the best solution is pruned.
    """

    def __init__(self, root: Node[PayloadT], plan: SearchPlan) -> None:
        self._plan = plan
        self._frontier: Sequence[Node[PayloadT]] = [root]
        self._best = -math.inf

    def choose(self) -> Sequence[Choice[PayloadT]]:
        """Return the frontier, the nodes of one depth."""
        return [Choice(node=node, count=self._plan.branching) for node in self._frontier]

    def settle(self, chosen: Sequence[Choice[PayloadT]], expansions: Sequence[Expansion[PayloadT]]) -> Collection[str]:  # noqa: ARG002 - the beam leaves a depth after one wave
        """Select the next frontier from all new nodes."""
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
    """The statistics of a node for UCT. `open` counts the nodes of its subtree, itself included, that are open."""

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

    The descent starts at the root and goes to the child with the largest

        Q(child) + 2 * C_p * sqrt(ln N(parent) / N(child))

    where N counts the expansions at or below a node. An unvisited child (N = 0) comes before every visited one; among
    unvisited children the best score comes first. There are no rollouts: the value of an expansion is the best score
    among the new children (0 without any), and it is backed up to the root. Q is the average of the mean and the
    maximum of the values backed up: the maximum, because one good path is enough, and the mean, because scores err.

    With widening a node stays open after its expansion. The descent stops at the first open node that may have more
    children, or that has nothing open below it.

    While a node is being expanded, it and its ancestors have a virtual loss, one visit with the value 0, so that the
    nodes chosen for one wave differ (Chaslot et al., Parallel Monte-Carlo Tree Search, 2008).
    """

    def __init__(self, root: Node[PayloadT], plan: SearchPlan) -> None:
        self._plan = plan
        self._root: _Standing[PayloadT] = _Standing(root)
        self._standings = {root.node_id: self._root}
        self._set_open(self._root, is_open=plan.max_depth > 0)

    def choose(self) -> Sequence[Choice[PayloadT]]:
        """Return up to `width` nodes; each is no longer open and has a virtual loss until `settle`."""
        chosen: list[Choice[PayloadT]] = []
        while self._root.open and len(chosen) < self._plan.width:
            standing = self._descend()
            chosen.append(Choice(node=standing.node, count=max(1, self._count_room(standing))))
            self._set_open(standing, is_open=False)
            for each in self._trace(standing.node):
                each.virtual += 1
        return chosen

    def settle(self, chosen: Sequence[Choice[PayloadT]], expansions: Sequence[Expansion[PayloadT]]) -> Collection[str]:
        """Remove the virtual losses, add the new nodes and back up their values."""
        for choice in chosen:
            for each in self._trace(choice.node):
                each.virtual -= 1
        pruned = set()
        for expansion in expansions:
            standing = self._standings[expansion.node.node_id]
            pruned |= {child.node_id for child in expansion.children if self._add(standing, child)}
            if not expansion.is_failed:
                self._back_up(standing, max((child.score for child in expansion.children), default=0.0))
            # A node without new children is not expanded again, because the search must end.
            is_kept_open = bool(expansion.children) or (self._plan.is_root_kept_open and standing is self._root)
            if self._plan.widening is not None and is_kept_open:
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
        """Return whether to expand the node itself instead of one below it."""
        if not standing.is_open:
            return False
        is_last = standing.open == 1
        return not standing.children or is_last or self._count_room(standing) > 0

    def _count_room(self, standing: _Standing[PayloadT]) -> int:
        """Return how many children to request; 0 if widening allows no more now."""
        if self._plan.widening is None:
            return self._plan.branching
        most = self._plan.widening.bound_children(standing.visits + standing.virtual + 1)
        return min(self._plan.branching, max(most - len(standing.children), 0))

    def _rank_child(self, child: _Standing[PayloadT], parent_visits: int) -> tuple[float, float, str, int]:
        """Return the sort key of the children of a node; the child to descend to comes first."""
        visits = child.visits + child.virtual
        if not visits:
            return (-math.inf, *rank(child.node, seed=self._plan.seed))
        quality = (child.total / visits + child.best) / 2
        bonus = 2 * self._plan.exploration * math.sqrt(math.log(max(parent_visits, 1)) / visits)
        return (-(quality + bonus), *rank(child.node, seed=self._plan.seed))

    def _add(self, parent: _Standing[PayloadT], node: Node[PayloadT]) -> bool:
        """Add a new node to the tree; return whether it is pruned."""
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
        """Return the standings on the path from the root to `node`."""
        return [self._root, *(self._standings[each.node_id] for each in node.path)]
