"""Searches a tree: choose nodes, propose their children in parallel, judge these in parallel, book, choose again.

    selection = UctSelection(build_root(start), plan)
    search = TreeSearch(proposer=..., evaluator=..., plan=plan, selection=selection, allowance=..., failures=...)
    async with aclosing(search.run()) as nodes:
        async for judged in nodes:
            ...
    search.ending, search.tally, search.best_solution

Two barriers make a round deterministic: all proposals have arrived before any is compared with the tree, and all
verdicts have arrived before any is used. Between rounds no call is open.

After a failed call its node has no children, or its candidates have `unknown_score`; the search continues with the
others. The search fails after `max_failures` failed calls in a row, and when no node is left to expand, a call failed
and no node was judged. An exhausted budget ends the search without a failure. The caller names the exceptions that mean
a failure (`failures`) and those that mean an exhausted budget (`exhaustions`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Generic, TypeVar

from reasond_server.search.allowance import TOKENS, Allowance, Cost
from reasond_server.search.policies import Choice, Expansion, SearchPlan, SelectionPolicy, rank
from reasond_server.search.tree import Candidate, Evaluator, Judgement, Node, PayloadT, Proposer, Verdict
from reasond_server.search.waves import run_wave
from reasond_server.types.values import value

ResultT = TypeVar("ResultT")


class SearchEnding(StrEnum):
    """The reason why a search ended by itself."""

    SOLVED = "solved"
    EXHAUSTED = "exhausted"
    STALLED = "stalled"
    REPETITIVE = "repetitive"
    BUDGET = "budget"


@value
class JudgedNode(Generic[PayloadT]):
    """A node that was just judged, and whether the search prunes it."""

    node: Node[PayloadT]
    is_pruned: bool


@value
class SearchTally:
    """Counts of a search so far.

    `unjudged` counts the evaluated nodes that have only `unknown_score`; `behaviours` counts different signatures.
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
    """One expansion in progress: `reserved` is the worst case of its cost, `spent` the cost measured so far."""

    node: Node[PayloadT]
    count: int
    reserved: Cost
    spent: Cost = field(default_factory=Cost)
    candidates: list[Candidate[PayloadT]] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    is_failed: bool = False


@dataclass(eq=False, kw_only=True)
class TreeSearch(Generic[PayloadT]):
    """One search. When the caller closes `run`, every open call ends.

    `ending` is None while the search runs and after it has failed; `tally` is exact between two yielded nodes.
    `shortage` is the bound of the allowance that ended it, as `Allowance.find_shortage` names it; empty if none did.
    `best_solution` is the best whole solution, `best_open` the deepest other node on whose way no step is bad, else the
    deepest; each may be None.

    Args:
        proposer: expands nodes.
        evaluator: judges candidates.
        plan: bounds of the search.
        selection: the policy, made for the same plan; its root is never judged.
        allowance: bounds of the cost; calls and resources of an expansion, with its judging, are reserved together.
        failures: exceptions by which proposer and evaluator report a failed call; others end the search at once.
        exhaustions: exceptions by which they report that the caller's own budget is exhausted.
    """

    proposer: Proposer[PayloadT]
    evaluator: Evaluator[PayloadT]
    plan: SearchPlan
    selection: SelectionPolicy[PayloadT]
    allowance: Allowance
    failures: tuple[type[Exception], ...]
    exhaustions: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        self._keys: set[str] = set()
        self._signatures: set[str] = set()
        self._children = Counter[str]()
        self._number = 0
        self._failures_in_a_row = 0
        self._failure: Exception | None = None
        self._expansions_since_best = 0
        self._expansions_since_new = 0
        self._repeats_since_new = 0
        self.solutions: list[Node[PayloadT]] = []
        self.ending: SearchEnding | None = None
        self.shortage = ""
        self.tally = SearchTally()
        self.best_solution: Node[PayloadT] | None = None
        self.best_open: Node[PayloadT] | None = None

    async def run(self) -> AsyncGenerator[JudgedNode[PayloadT], None]:
        """Search and yield every judged node, in node order within its round.

        Raises:
            Exception: one of `failures` if the search fails as the module describes, or any other that a call raises.
        """
        while self.ending is None:
            choices = self.selection.choose()
            if not choices:
                self._end_exhausted()
                return
            orders = await self._expand(choices)
            expansions = [self._build_expansion(order) for order in orders]
            pruned = self.selection.settle(choices, expansions)
            self._book(expansions, pruned)
            for expansion in expansions:
                for child in expansion.children:
                    yield JudgedNode(node=child, is_pruned=child.node_id in pruned)
            if self._failure is not None and self._failures_in_a_row >= self.plan.max_failures:
                raise self._failure
            self._decide()

    async def _expand(self, choices: Sequence[Choice[PayloadT]]) -> Sequence[_Order[PayloadT]]:
        """Expand as many of `choices` as the allowance covers; the others wait until the first ones are settled."""
        waiting = list(choices)
        done: list[_Order[PayloadT]] = []
        while waiting and self.ending is None:
            orders = self._reserve(waiting)
            if not orders:
                self.ending = SearchEnding.BUDGET
                self.shortage = self.allowance.find_shortage(self._bound_cost(waiting[0].node, count=1))
                break
            waiting = waiting[len(orders) :]
            await self._propose(orders)
            for order in orders:
                rest = replace(order.reserved, tokens=0)
                self.allowance.settle(order.reserved, rest + Cost(tokens=order.spent.tokens))
                order.reserved = rest
            await self._judge(orders)
            for order in orders:
                self.allowance.settle(order.reserved, replace(order.spent, tokens=0))
            done += orders
        return done

    def _reserve(self, choices: Sequence[Choice[PayloadT]]) -> Sequence[_Order[PayloadT]]:
        """Reserve expansions in order while they are covered; the first one may ask for fewer candidates to be covered.

        All calls and resources are reserved, but the tokens of only one judgement: a small budget would not cover the
        worst cases of all judgements, and judgements can wait for each other.
        """
        orders: list[_Order[PayloadT]] = []
        for choice in choices:
            node, least = choice.node, choice.count if orders else 1
            for count in range(choice.count, least - 1, -1):
                worst = self._bound_cost(node, count=count)
                if self.allowance.reserve(worst):
                    orders.append(_Order(node=node, count=count, reserved=worst))
                    break
            else:
                break
        return orders

    def _bound_cost(self, node: Node[PayloadT], *, count: int) -> Cost:
        """Return what is reserved for `count` candidates below `node`."""
        judging = self.evaluator.bound_cost(node, count=count)
        judging = replace(judging, tokens=self._bound_judgement_tokens(node, count))
        return self.proposer.bound_cost(node, count=count) + judging

    async def _propose(self, orders: Sequence[_Order[PayloadT]]) -> None:
        """Expand the nodes of all orders, then drop the candidates that the tree already has."""
        calls = [partial(self.proposer.propose, order.node, count=order.count) for order in orders]
        for order, result in zip(orders, await self._make(calls), strict=True):
            if isinstance(result, Exception):
                order.is_failed = True
                order.spent += self.proposer.bound_cost(order.node, count=order.count)
                continue
            order.spent += result.spent
            for candidate in result.candidates[: order.count]:
                if candidate.key in self._keys:
                    self._repeats_since_new += 1
                    self.tally = replace(self.tally, duplicate=self.tally.duplicate + 1)
                    continue
                self._keys.add(candidate.key)
                order.candidates.append(candidate)

    def _bound_judgement_tokens(self, node: Node[PayloadT], count: int) -> int:
        """Return the most tokens of one judging call: of all `count` candidates, or of one if each has its own call."""
        alone, together = (self.evaluator.bound_cost(node, count=each) for each in (1, count))
        return together.tokens if together.model_calls == alone.model_calls else alone.tokens

    async def _judge(self, orders: Sequence[_Order[PayloadT]]) -> None:
        """Judge the candidates in waves that the allowance covers; those that it never covers get no verdict."""
        waiting = [(order, batch) for order in orders for batch in self.evaluator.divide(order.candidates) if batch]
        while waiting:
            bounds = self._reserve_tokens(waiting)
            if not bounds:
                self.ending, self.shortage = SearchEnding.BUDGET, TOKENS
                break
            wave, waiting = waiting[: len(bounds)], waiting[len(bounds) :]
            calls = [partial(self.evaluator.judge, order.node, batch) for order, batch in wave]
            for (order, batch), worst, result in zip(wave, bounds, await self._make(calls), strict=True):
                judgement = Judgement(verdicts=(), spent=worst) if isinstance(result, Exception) else result
                order.verdicts += _read_verdicts(judgement.verdicts, batch)
                self.allowance.settle(Cost(tokens=worst.tokens), Cost(tokens=judgement.spent.tokens))
                order.spent += judgement.spent
        for order, batch in waiting:
            order.verdicts += _read_verdicts((), batch)

    def _reserve_tokens(self, batches: Sequence[tuple[_Order[PayloadT], Sequence[Candidate[PayloadT]]]]) -> list[Cost]:
        """Reserve the tokens of judgements in order while they are covered; return the worst case of each."""
        covered = []
        for order, batch in batches:
            worst = self.evaluator.bound_cost(order.node, count=len(batch))
            # Calls and resources are reserved already.
            if not self.allowance.reserve(Cost(tokens=worst.tokens)):
                break
            covered.append(worst)
        return covered

    async def _make(self, calls: Sequence[Callable[[], Awaitable[ResultT]]]) -> Sequence[ResultT | Exception]:
        """Make the calls of one barrier and record the failed ones in order."""
        caught = (*self.failures, *self.exhaustions)
        results = await run_wave(calls, at_once=self.plan.at_once, failures=caught)
        for result in results:
            if isinstance(result, self.exhaustions):
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
                    score=self.plan.unknown_score if verdict.score is None else verdict.score,
                    verdict=verdict,
                )
            )
        return Expansion(node=parent, children=children, is_failed=order.is_failed)

    def _book(self, expansions: Sequence[Expansion[PayloadT]], pruned: Collection[str]) -> None:
        """Add a round to the tally and update the best nodes."""
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
        self.best_solution = min(self.solutions, key=lambda node: rank(node, seed=self.plan.seed), default=None)
        going = [child for child in made if not child.is_solution and child.node_id not in pruned]
        both = [*going, *([self.best_open] if self.best_open else [])]
        self.best_open = min(both, key=self._rank_open, default=None)
        is_better, is_new = self.best_solution is not before, len(self._signatures) > known
        self._expansions_since_best = 0 if is_better else self._expansions_since_best + len(expansions)
        self._expansions_since_new = 0 if is_new else self._expansions_since_new + len(expansions)
        silent = sum(child.is_judged and not child.verdict.signature for child in made)
        self._repeats_since_new = 0 if is_new else self._repeats_since_new + silent

    def _rank_open(self, node: Node[PayloadT]) -> tuple[bool, int, float, tuple[float, str, int]]:
        """Return the sort key of unfinished nodes: the deepest way without a bad step first, then the best one.

        A way is as good as its weakest step, and bad below `unknown_score`. By the score of the node alone, one that is
        overrated would win the more often, the more nodes were judged.
        """
        worst = min((step.score for step in node.path), default=0.0)
        return (worst < self.plan.unknown_score, -node.depth, -worst, rank(node, seed=self.plan.seed))

    def _decide(self) -> None:
        """Set the ending if the search is over; an ending by the budget is replaced only by `SOLVED`."""
        best, plan = self.best_solution, self.plan
        if best is not None and best.score >= plan.solved_score and best.is_judged:
            self.ending = SearchEnding.SOLVED
        elif self.ending is not None:
            return
        elif best is not None and self._expansions_since_best >= (plan.patience or math.inf):
            self.ending = SearchEnding.STALLED
        elif max(self._expansions_since_new, self._repeats_since_new) >= (plan.novelty_patience or math.inf):
            self.ending = SearchEnding.REPETITIVE

    def _end_exhausted(self) -> None:
        if self._failure is not None and not self.tally.evaluated:
            raise self._failure
        self.ending = SearchEnding.EXHAUSTED


def _read_verdicts(verdicts: Sequence[Verdict], batch: Sequence[Candidate[PayloadT]]) -> list[Verdict]:
    """Return a verdict with a score in 0..1 for each candidate of `batch`; a missing one is taken from the claim."""
    missing = [Verdict(is_solution=candidate.claims_solution) for candidate in batch[len(verdicts) :]]
    return [*map(_bound_score, verdicts[: len(batch)]), *missing]


def _bound_score(verdict: Verdict) -> Verdict:
    if verdict.score is None or 0 <= verdict.score <= 1:
        return verdict
    return replace(verdict, score=None if math.isnan(verdict.score) else min(max(verdict.score, 0.0), 1.0))
