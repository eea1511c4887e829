"""Searches a tree: choose nodes, propose their children in parallel, judge these in parallel, book, choose again.

    selection = UctSelection(build_root(start), plan)
    search = TreeSearch(proposer=..., evaluator=..., plan=plan, selection=selection, allowance=..., failures=...)
    async with aclosing(search.run()) as nodes:
        async for judged in nodes:
            ...
    search.ending, search.tally, search.best_solution

Two barriers make a round deterministic: all proposals are in before any is compared with the tree, and all verdicts are
in before any is used. Between rounds no call is open.

A call that fails leaves its node without children, or its candidates with `unknown_score`; the search goes on with the
rest. `max_failures` in a row, or a failure where nothing else is left to expand and nothing was judged, are the end.
A budget that is gone ends the search as well, but is no failure. What counts as one or the other, the caller says.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from reasond_server.search.allowance import Cost
from reasond_server.search.policies import Expansion, rank
from reasond_server.search.tree import Judgement, Node, PayloadT, Verdict
from reasond_server.search.waves import run_wave

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence

    from reasond_server.search.allowance import Allowance
    from reasond_server.search.policies import Choice, SearchPlan, SelectionPolicy
    from reasond_server.search.tree import Candidate, Evaluator, Proposer


ResultT = TypeVar("ResultT")


class SearchEnding(StrEnum):
    """Why a search ended by itself."""

    SOLVED = "solved"
    EXHAUSTED = "exhausted"
    STALLED = "stalled"
    REPETITIVE = "repetitive"
    BUDGET = "budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedNode(Generic[PayloadT]):
    """A node that was just judged, and whether the search gives it up in favour of others."""

    node: Node[PayloadT]
    is_pruned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTally:
    """What a search did so far.

    `unjudged` of the evaluated nodes have no more than `unknown_score`; `behaviours` counts different signatures.
    """

    expanded: int = 0
    evaluated: int = 0
    pruned: int = 0
    duplicate: int = 0
    unjudged: int = 0
    behaviours: int = 0
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
    verdicts: list[Verdict] = field(default_factory=list)
    is_failed: bool = False


class TreeSearch(Generic[PayloadT]):
    """One search. It ends with the caller: closing `run` ends every call that is open.

    `ending` is None while it runs and where it failed; `tally` is true between two events. `best_solution` and
    `best_open` are the best whole solution and the best node that is none, if there are any.

    Args:
        proposer: expands nodes.
        evaluator: judges what was proposed.
        plan: bounds of the search.
        selection: the policy, made for the same plan; its root is never judged.
        allowance: what may be spent; calls and resources of an expansion are reserved together, judging included.
        failures: what proposer and evaluator raise where a call failed; anything else ends the search at once.
        exhaustions: what they raise where the caller's own budget is gone.
    """

    def __init__(
        self,
        *,
        proposer: Proposer[PayloadT],
        evaluator: Evaluator[PayloadT],
        plan: SearchPlan,
        selection: SelectionPolicy[PayloadT],
        allowance: Allowance,
        failures: tuple[type[Exception], ...],
        exhaustions: tuple[type[Exception], ...] = (),
    ) -> None:
        self._proposer = proposer
        self._evaluator = evaluator
        self._plan = plan
        self._selection = selection
        self._allowance = allowance
        self._failures = failures
        self._exhaustions = exhaustions
        self._keys: set[str] = set()
        self._signatures: set[str] = set()
        self._children = Counter[str]()
        self._number = 0
        self._failures_in_a_row = 0
        self._failure: Exception | None = None
        self._expansions_since_best = 0
        self._expansions_since_new = 0
        self.solutions: list[Node[PayloadT]] = []
        self.ending: SearchEnding | None = None
        self.tally = SearchTally()
        self.best_solution: Node[PayloadT] | None = None
        self.best_open: Node[PayloadT] | None = None

    async def run(self) -> AsyncGenerator[JudgedNode[PayloadT], None]:
        """Search and yield every judged node, in node order within its round.

        Raises:
            Exception: one of `failures`, where calls failed as the module says; any other that a call raises.
        """
        while self.ending is None:
            choices = self._selection.choose()
            if not choices:
                self._end_exhausted()
                return
            orders = await self._expand(choices)
            expansions = [self._build_expansion(order) for order in orders]
            pruned = self._selection.settle(choices, expansions)
            self._book(expansions, pruned)
            for expansion in expansions:
                for child in expansion.children:
                    yield JudgedNode(node=child, is_pruned=child.node_id in pruned)
            if self._failure is not None and self._failures_in_a_row >= self._plan.max_failures:
                raise self._failure
            self._decide()

    async def _expand(self, choices: Sequence[Choice[PayloadT]]) -> Sequence[_Order[PayloadT]]:
        """Expand as many of `choices` as the allowance covers; what must wait for its share comes after the others."""
        waiting = list(choices)
        done: list[_Order[PayloadT]] = []
        while waiting and self.ending is None:
            orders = self._reserve(waiting)
            if not orders:
                self.ending = SearchEnding.BUDGET
                break
            waiting = waiting[len(orders) :]
            await self._propose(orders)
            for order in orders:
                rest = replace(order.reserved, tokens=0)
                self._allowance.settle(order.reserved, rest + Cost(tokens=order.spent.tokens))
                order.reserved = rest
            await self._judge(orders)
            for order in orders:
                self._allowance.settle(order.reserved, replace(order.spent, tokens=0))
            done += orders
        return done

    def _reserve(self, choices: Sequence[Choice[PayloadT]]) -> Sequence[_Order[PayloadT]]:
        """Reserve the first expansions that are covered; the very first may be a smaller one.

        All calls and resources are reserved, but tokens for one judgement only: the worst cases of all would leave a
        small budget unused, and judgements can wait for each other.
        """
        orders: list[_Order[PayloadT]] = []
        for choice in choices:
            node, least = choice.node, choice.count if orders else 1
            for count in range(choice.count, least - 1, -1):
                judging = self._evaluator.bound_cost(node, count=count)
                judging = replace(judging, tokens=self._bound_judgement_tokens(node, count))
                worst = self._proposer.bound_cost(node, count=count) + judging
                if self._allowance.reserve(worst):
                    orders.append(_Order(node=node, count=count, reserved=worst))
                    break
            else:
                break
        return orders

    async def _propose(self, orders: Sequence[_Order[PayloadT]]) -> None:
        """Let all nodes be expanded, then leave out what the tree has already."""
        calls = [partial(self._proposer.propose, order.node, count=order.count) for order in orders]
        for order, result in zip(orders, await self._make(calls), strict=True):
            if isinstance(result, Exception):
                order.is_failed = True
                order.spent += self._proposer.bound_cost(order.node, count=order.count)
                continue
            order.spent += result.spent
            for candidate in result.candidates[: order.count]:
                if candidate.key in self._keys:
                    self.tally = replace(self.tally, duplicate=self.tally.duplicate + 1)
                    continue
                self._keys.add(candidate.key)
                order.candidates.append(candidate)

    def _bound_judgement_tokens(self, node: Node[PayloadT], count: int) -> int:
        """Return the tokens of judging `count` candidates, or one alone where that is done in a call of its own."""
        alone, together = (self._evaluator.bound_cost(node, count=each) for each in (1, count))
        return together.tokens if together.model_calls == alone.model_calls else alone.tokens

    async def _judge(self, orders: Sequence[_Order[PayloadT]]) -> None:
        """Let all candidates be judged, as many at once as the allowance covers; the others get no verdict."""
        waiting = [(order, batch) for order in orders for batch in self._evaluator.divide(order.candidates) if batch]
        while waiting:
            bounds = self._reserve_tokens(waiting)
            if not bounds:
                self.ending = SearchEnding.BUDGET
                break
            wave, waiting = waiting[: len(bounds)], waiting[len(bounds) :]
            calls = [partial(self._evaluator.judge, order.node, batch) for order, batch in wave]
            for (order, batch), worst, result in zip(wave, bounds, await self._make(calls), strict=True):
                judgement = Judgement(verdicts=(), spent=worst) if isinstance(result, Exception) else result
                order.verdicts += _read_verdicts(judgement.verdicts, batch)
                self._allowance.settle(Cost(tokens=worst.tokens), Cost(tokens=judgement.spent.tokens))
                order.spent += judgement.spent
        for order, batch in waiting:
            order.verdicts += _read_verdicts((), batch)

    def _reserve_tokens(self, batches: Sequence[tuple[_Order[PayloadT], Sequence[Candidate[PayloadT]]]]) -> list[Cost]:
        """Reserve the tokens of the first judgements that are covered and return the worst case of each."""
        covered = []
        for order, batch in batches:
            worst = self._evaluator.bound_cost(order.node, count=len(batch))
            # Calls and resources are reserved already.
            if not self._allowance.reserve(Cost(tokens=worst.tokens)):
                break
            covered.append(worst)
        return covered

    async def _make(self, calls: Sequence[Callable[[], Awaitable[ResultT]]]) -> Sequence[ResultT | Exception]:
        """Make the calls of one barrier and take note of those that failed, in order."""
        caught = (*self._failures, *self._exhaustions)
        results = await run_wave(calls, at_once=self._plan.at_once, failures=caught)
        for result in results:
            if isinstance(result, self._exhaustions):
                self.ending = SearchEnding.BUDGET
            elif isinstance(result, Exception):
                self._failure = result
                self._failures_in_a_row += 1
                self.tally = replace(self.tally, failed_calls=self.tally.failed_calls + 1)
            else:
                self._failures_in_a_row = 0
        return results

    def _build_expansion(self, order: _Order[PayloadT]) -> Expansion[PayloadT]:
        """Make the nodes of one expansion."""
        parent, children = order.node, []
        for candidate, verdict in zip(order.candidates, order.verdicts, strict=True):
            self._number += 1
            place = self._children[parent.node_id]
            self._children[parent.node_id] += 1
            children.append(
                Node(
                    node_id=f"{parent.node_id}.{place}",
                    number=self._number,
                    payload=candidate.payload,
                    parent=parent,
                    depth=parent.depth + 1,
                    score=self._plan.unknown_score if verdict.score is None else verdict.score,
                    verdict=verdict,
                )
            )
        return Expansion(node=parent, children=children, is_failed=order.is_failed)

    def _book(self, expansions: Sequence[Expansion[PayloadT]], pruned: Collection[str]) -> None:
        """Count a round and look for the best of it."""
        made = [child for expansion in expansions for child in expansion.children]
        tally, known = self.tally, len(self._signatures)
        self._signatures |= {child.verdict.signature for child in made if child.verdict.signature}
        self.tally = replace(
            tally,
            expanded=tally.expanded + sum(not expansion.is_failed for expansion in expansions),
            evaluated=tally.evaluated + len(made),
            pruned=tally.pruned + len(pruned),
            unjudged=tally.unjudged + sum(not child.is_judged for child in made),
            behaviours=len(self._signatures),
            depth_reached=max([tally.depth_reached, *(child.depth for child in made)]),
        )
        before = self.best_solution
        self.solutions += [child for child in made if child.is_solution]
        self.best_solution = min(self.solutions, key=lambda node: rank(node, seed=self._plan.seed), default=None)
        going = [child for child in made if not child.is_solution and child.node_id not in pruned]
        both = [*going, *([self.best_open] if self.best_open else [])]
        self.best_open = min(both, key=self._rank_open, default=None)
        is_better, is_new = self.best_solution is not before, len(self._signatures) > known
        self._expansions_since_best = 0 if is_better else self._expansions_since_best + len(expansions)
        self._expansions_since_new = 0 if is_new else self._expansions_since_new + len(expansions)

    def _rank_open(self, node: Node[PayloadT]) -> tuple[float, int, tuple[float, str, int]]:
        """Return what sorts unfinished nodes: the best first, of equals the deepest."""
        return (-node.score, -node.depth, rank(node, seed=self._plan.seed))

    def _decide(self) -> None:
        """Set the ending if the last round was the last; a budget that ended it keeps its name."""
        best, plan = self.best_solution, self._plan
        if best is not None and best.score >= plan.solved_score and best.is_judged:
            self.ending = SearchEnding.SOLVED
        elif self.ending is not None:
            return
        elif best is not None and self._expansions_since_best >= (plan.patience or math.inf):
            self.ending = SearchEnding.STALLED
        elif self._expansions_since_new >= (plan.novelty_patience or math.inf):
            self.ending = SearchEnding.REPETITIVE

    def _end_exhausted(self) -> None:
        if self._failure is not None and not self.tally.evaluated:
            raise self._failure
        self.ending = SearchEnding.EXHAUSTED


def _read_verdicts(verdicts: Sequence[Verdict], batch: Sequence[Candidate[PayloadT]]) -> list[Verdict]:
    """Return a verdict for each candidate of `batch`, with its score within 0..1; a missing one is what is claimed."""
    missing = [Verdict(is_solution=candidate.claims_solution) for candidate in batch[len(verdicts) :]]
    return [*map(_bound_score, verdicts[: len(batch)]), *missing]


def _bound_score(verdict: Verdict) -> Verdict:
    if verdict.score is None or 0 <= verdict.score <= 1:
        return verdict
    return replace(verdict, score=None if math.isnan(verdict.score) else min(max(verdict.score, 0.0), 1.0))
