"""Searches a tree: choose nodes, propose their children in parallel, judge these in parallel, book, choose again.

    selection = UctSelection(root_node(start), plan)
    search = TreeSearch(proposer=..., evaluator=..., plan=plan, selection=selection, allowance=...)
    async with aclosing(search.run()) as found:
        async for judged in found:
            ...
    search.ending, search.tally, search.best_terminal

Two barriers make a round deterministic: all proposals are in before any is compared with the tree, and all scores are
in before any is used. Between rounds no call is open.

A call that fails leaves its node without children, or its candidates with `unknown_score`; the search goes on with the
rest. `max_failures` in a row, or a failure where nothing else is left to expand and nothing was judged, are the end.
A budget that is gone ends the search as well, but is no failure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from reasond_server.errors import ReasondError, TokenBudgetExhaustedError
from reasond_server.search.allowance import Cost
from reasond_server.search.selection import Expansion, rank
from reasond_server.search.tree import ROOT_ID, Node, PayloadT
from reasond_server.search.waves import in_parallel

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence

    from reasond_server.search.allowance import Allowance
    from reasond_server.search.selection import SearchPlan, Selection
    from reasond_server.search.tree import Candidate, Evaluator, Proposer


ResultT = TypeVar("ResultT")


class SearchEnding(StrEnum):
    """Why a search ended by itself."""

    SOLVED = "solved"
    EXHAUSTED = "exhausted"
    STALLED = "stalled"
    BUDGET = "budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged(Generic[PayloadT]):
    """A node that was just judged, and whether the search gives it up in favour of others."""

    node: Node[PayloadT]
    is_pruned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTally:
    """What a search did so far; `unjudged` of the evaluated nodes have no more than `unknown_score`."""

    expanded: int = 0
    evaluated: int = 0
    pruned: int = 0
    duplicate: int = 0
    unjudged: int = 0
    failed_calls: int = 0
    depth_reached: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class _Order(Generic[PayloadT]):
    """One expansion at work: `reserved` is its worst case, `spent` what is known of it."""

    node: Node[PayloadT]
    count: int
    reserved: Cost
    spent: Cost = field(default_factory=Cost)
    candidates: list[Candidate[PayloadT]] = field(default_factory=list)
    scores: list[float | None] = field(default_factory=list)
    is_failed: bool = False


class TreeSearch(Generic[PayloadT]):
    """One search. It ends with the caller: closing `run` ends every call that is open.

    `ending` is None while it runs and where it failed; `tally` is true between two events. `best_terminal` and
    `best_open` are the best whole solution and the best node that is none, if there are any.

    Args:
        proposer: expands nodes.
        evaluator: judges what was proposed.
        plan: bounds of the search.
        selection: the policy, made for the same plan; its root is never judged.
        allowance: what may be spent; the calls of an expansion are reserved together, judging included.
    """

    def __init__(
        self,
        *,
        proposer: Proposer[PayloadT],
        evaluator: Evaluator[PayloadT],
        plan: SearchPlan,
        selection: Selection[PayloadT],
        allowance: Allowance,
    ) -> None:
        self._proposer = proposer
        self._evaluator = evaluator
        self._plan = plan
        self._selection = selection
        self._allowance = allowance
        self._keys: set[str] = set()
        self._number = 0
        self._failures_in_a_row = 0
        self._failure: ReasondError | None = None
        self._expansions_since_best = 0
        self.terminals: list[Node[PayloadT]] = []
        self.ending: SearchEnding | None = None
        self.tally = SearchTally()
        self.best_terminal: Node[PayloadT] | None = None
        self.best_open: Node[PayloadT] | None = None

    async def run(self) -> AsyncGenerator[Judged[PayloadT], None]:
        """Search and yield every judged node, in node order within its round.

        Raises:
            ModelError: calls failed as the module says.
        """
        while self.ending is None:
            chosen = self._selection.choose()
            if not chosen:
                self._end_exhausted()
                return
            orders = await self._expand(chosen)
            expansions = [self._grown(order) for order in orders]
            pruned = self._selection.settle(chosen, expansions)
            self._book(expansions, pruned)
            for expansion in expansions:
                for child in expansion.children:
                    yield Judged(node=child, is_pruned=child.node_id in pruned)
            if self._failure is not None and self._failures_in_a_row >= self._plan.max_failures:
                raise self._failure
            self._decide()

    async def _expand(self, chosen: Sequence[Node[PayloadT]]) -> Sequence[_Order[PayloadT]]:
        """Expand as many of `chosen` as the allowance covers; what must wait for its share comes after the others."""
        waiting = list(chosen)
        done: list[_Order[PayloadT]] = []
        while waiting and self.ending is None:
            orders = self._reserved(waiting)
            if not orders:
                self.ending = SearchEnding.BUDGET
                break
            waiting = waiting[len(orders) :]
            await self._propose(orders)
            for order in orders:
                calls = Cost(model_calls=order.reserved.model_calls)
                self._allowance.settle(order.reserved, calls + Cost(tokens=order.spent.tokens))
                order.reserved = calls
            await self._judge(orders)
            for order in orders:
                self._allowance.settle(order.reserved, Cost(model_calls=order.spent.model_calls))
            done += orders
        return done

    def _reserved(self, nodes: Sequence[Node[PayloadT]]) -> Sequence[_Order[PayloadT]]:
        """Reserve the expansions of the first nodes that are covered; the very first may be a smaller one.

        All calls are reserved, but tokens for one judgement only: the worst cases of all would leave a small budget
        unused, and judgements can wait for each other.
        """
        orders: list[_Order[PayloadT]] = []
        for node in nodes:
            least = self._plan.branching if orders else 1
            for count in range(self._plan.branching, least - 1, -1):
                judging = replace(self._evaluator.cost(node, count=count), tokens=self._one_judgement(node, count))
                worst = self._proposer.cost(node, count=count) + judging
                if self._allowance.reserve(worst):
                    orders.append(_Order(node=node, count=count, reserved=worst))
                    break
            else:
                break
        return orders

    async def _propose(self, orders: Sequence[_Order[PayloadT]]) -> None:
        """Let all nodes be expanded, then leave out what the tree has already."""
        calls = [partial(self._proposer.propose, order.node, count=order.count) for order in orders]
        for order, result in zip(orders, await self._made(calls), strict=True):
            if isinstance(result, ReasondError):
                order.is_failed = True
                order.spent += self._proposer.cost(order.node, count=order.count)
                continue
            order.spent += result.spent
            for candidate in result.candidates[: order.count]:
                if candidate.key in self._keys:
                    self.tally = replace(self.tally, duplicate=self.tally.duplicate + 1)
                    continue
                self._keys.add(candidate.key)
                order.candidates.append(candidate)

    def _one_judgement(self, node: Node[PayloadT], count: int) -> int:
        """Return the tokens of judging `count` candidates, or one alone where that is done in a call of its own."""
        alone, together = (self._evaluator.cost(node, count=each) for each in (1, count))
        return together.tokens if together.model_calls == alone.model_calls else alone.tokens

    async def _judge(self, orders: Sequence[_Order[PayloadT]]) -> None:
        """Let all candidates be judged, as many at once as the allowance covers; what cannot be scored gets None."""
        waiting = [(order, batch) for order in orders for batch in self._evaluator.batches(order.candidates) if batch]
        while waiting:
            tokens = self._covered_tokens(waiting)
            if not tokens:
                self.ending = SearchEnding.BUDGET
                break
            wave, waiting = waiting[: len(tokens)], waiting[len(tokens) :]
            calls = [partial(self._evaluator.judge, order.node, batch) for order, batch in wave]
            for (order, batch), worst, result in zip(wave, tokens, await self._made(calls), strict=True):
                if isinstance(result, ReasondError):
                    spent = Cost(model_calls=1, tokens=worst)
                    order.scores += [None] * len(batch)
                else:
                    spent = result.spent
                    order.scores += [_score(result.scores, place) for place in range(len(batch))]
                self._allowance.settle(Cost(tokens=worst), Cost(tokens=spent.tokens))
                order.spent += spent
        for order, batch in waiting:
            order.scores += [None] * len(batch)

    def _covered_tokens(
        self, batches: Sequence[tuple[_Order[PayloadT], Sequence[Candidate[PayloadT]]]]
    ) -> Sequence[int]:
        """Reserve the tokens of the first judgements that are covered and return them; calls are reserved already."""
        covered = []
        for order, batch in batches:
            tokens = self._evaluator.cost(order.node, count=len(batch)).tokens
            if not self._allowance.reserve(Cost(tokens=tokens)):
                break
            covered.append(tokens)
        return covered

    async def _made(self, calls: Sequence[Callable[[], Awaitable[ResultT]]]) -> Sequence[ResultT | ReasondError]:
        """Make the calls of one barrier and take note of those that failed, in order."""
        results = await in_parallel(calls, at_once=self._plan.at_once)
        for result in results:
            if isinstance(result, TokenBudgetExhaustedError):
                self.ending = SearchEnding.BUDGET
            elif isinstance(result, ReasondError):
                self._failure = result
                self._failures_in_a_row += 1
                self.tally = replace(self.tally, failed_calls=self.tally.failed_calls + 1)
            else:
                self._failures_in_a_row = 0
        return results

    def _grown(self, order: _Order[PayloadT]) -> Expansion[PayloadT]:
        """Make the nodes of one expansion."""
        children = []
        for place, (candidate, score) in enumerate(zip(order.candidates, order.scores, strict=True)):
            self._number += 1
            children.append(
                Node(
                    node_id=f"{order.node.node_id}.{place}",
                    number=self._number,
                    payload=candidate.payload,
                    parent=order.node,
                    depth=order.node.depth + 1,
                    is_terminal=candidate.is_terminal,
                    score=self._plan.unknown_score if score is None else score,
                    is_judged=score is not None,
                )
            )
        return Expansion(node=order.node, children=children, is_failed=order.is_failed)

    def _book(self, expansions: Sequence[Expansion[PayloadT]], pruned: Collection[str]) -> None:
        """Count a round and look for the best of it."""
        made = [child for expansion in expansions for child in expansion.children]
        tally = self.tally
        self.tally = replace(
            tally,
            expanded=tally.expanded + sum(not expansion.is_failed for expansion in expansions),
            evaluated=tally.evaluated + len(made),
            pruned=tally.pruned + len(pruned),
            unjudged=tally.unjudged + sum(not child.is_judged for child in made),
            depth_reached=max([tally.depth_reached, *(child.depth for child in made)]),
        )
        before = self.best_terminal
        self.terminals += [child for child in made if child.is_terminal]
        self.best_terminal = min(self.terminals, key=lambda node: rank(node, seed=self._plan.seed), default=None)
        going = [child for child in made if not child.is_terminal and child.node_id not in pruned]
        both = [*going, *([self.best_open] if self.best_open else [])]
        self.best_open = min(both, key=self._open_rank, default=None)
        self._expansions_since_best = (
            self._expansions_since_best + len(expansions) if self.best_terminal is before else 0
        )

    def _open_rank(self, node: Node[PayloadT]) -> tuple[float, int, tuple[float, str, int]]:
        """Return what sorts unfinished nodes: the best first, of equals the deepest."""
        return (-node.score, -node.depth, rank(node, seed=self._plan.seed))

    def _decide(self) -> None:
        """Set the ending if the last round was the last; a budget that ended it keeps its name."""
        best = self.best_terminal
        if best is None:
            return
        if best.score >= self._plan.solved_score and best.is_judged:
            self.ending = SearchEnding.SOLVED
        elif self.ending is None and self._expansions_since_best >= (self._plan.patience or math.inf):
            self.ending = SearchEnding.STALLED

    def _end_exhausted(self) -> None:
        if self._failure is not None and not self.tally.evaluated:
            raise self._failure
        self.ending = SearchEnding.EXHAUSTED


def root_node(payload: PayloadT) -> Node[PayloadT]:
    """Return the root of a tree."""
    return Node(node_id=ROOT_ID, number=0, payload=payload)


def _score(scores: Sequence[float | None], place: int) -> float | None:
    """Return the score at `place` within 0..1; None where there is none, or no number."""
    score = scores[place] if place < len(scores) else None
    return None if score is None or math.isnan(score) else min(max(score, 0.0), 1.0)
