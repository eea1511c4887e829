"""The search for a repair: candidates as nodes of the shared tree search, and how each kind of search chooses them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from reasond_server.repair.results.gate import counts
from reasond_server.repair.results.outcomes import MOST_RUNS, Baseline, Critique
from reasond_server.repair.search.activities import CandidateOrder, RepairActivities, RepairCandidate
from reasond_server.repair.search.prompts import PreviousCandidate
from reasond_server.search.allowance import Cost
from reasond_server.search.policies import BeamSelection, Choice, SearchPlan, UctSelection, Widening, rank
from reasond_server.search.tree import ROOT_ID, Candidate, Judgement, Node, Proposals, Verdict, build_root
from reasond_server.search.waves import run_wave
from reasond_server.types import Event
from reasond_server.types.repairs import CandidateStatus, CandidateVerdict, CheckRole, RepairSearch
from reasond_server.types.values import value

if TYPE_CHECKING:
    from reasond_server.repair.search.repair_policy import RepairParameters
    from reasond_server.search.policies import Expansion, SelectionPolicy

CANDIDATES: Final = "candidates"
CHECKS: Final = "checks"
CHECK_CPU_S: Final = "check_cpu_s"
MODEL_CALLS_AT_ONCE: Final = 8
_NO_EDIT_SCORE: Final = 0.0
_NEVER_SOLVED: Final = 2.0
_MOST_REFINED: Final = 2
_LATS_WIDENING: Final = Widening(factor=2.0)


Fill = Callable[[Callable[[], Event] | None], None]
"""Fills a place among ordered events; see `OrderedEvents.take_place`."""


@value
class RepairNode:
    """The payload of a node; None stands for the original code at the root."""

    candidate: RepairCandidate | None = None


class OrderedEvents:
    """Emits events in the order in which their places were taken, each as soon as all before it are known."""

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self._waiting: dict[int, Callable[[], Event] | None] = {}
        self._taken = 0
        self._next = 0

    def take_place(self) -> Fill:
        """Return a function that fills the next place with what makes its event, in its turn; None leaves it empty.

        Only its first call counts.
        """
        place = self._taken
        self._taken += 1
        return partial(self._fill, place)

    def _fill(self, place: int, make: Callable[[], Event] | None) -> None:
        if place < self._next or place in self._waiting:
            return
        self._waiting[place] = make
        while self._next in self._waiting:
            known = self._waiting.pop(self._next)
            self._next += 1
            if known is not None:
                self._emit(known())


@dataclass(eq=False, kw_only=True)
class CandidateProposer:
    """Asks the model for candidates, each in a call of its own: the first with the usual temperature, others spread.

    A candidate whose evidence another one has shown before is not refined again: nothing new would be learnt from it.
    `take_notes` returns what the prompts tell of the candidates so far.
    """

    activities: RepairActivities
    parameters: RepairParameters
    report: Callable[[RepairCandidate], Event]
    events: OrderedEvents
    are_tokens_bounded: bool
    failures: tuple[type[Exception], ...]
    take_notes: Callable[[], str] = str

    def __post_init__(self) -> None:
        self._number = 0
        self._reflected: dict[str, str] = {}
        # With the number of the call that gave it: which of several calls ends last decides nothing.
        self._unread = (0, "")
        self._spare: list[tuple[int, RepairCandidate]] = []
        self._most_tokens: dict[str, int] = {}

    def bound_cost(self, node: Node[RepairNode], *, count: int) -> Cost:
        """Return the largest cost of `count` candidates below `node`."""
        if self._is_reflected_elsewhere(node):
            return Cost()
        tokens = 0
        if self.are_tokens_bounded:
            tokens = count * self._bound_tokens(node)
        return Cost(model_calls=count * self.parameters.most_calls, tokens=tokens, resources={CANDIDATES: count})

    def _bound_tokens(self, node: Node[RepairNode]) -> int:
        """Return the most tokens of one candidate below `node`; the prompt of a node is counted once."""
        order = self._order(node, self._number + 1, is_first=True)
        key = f"{node.node_id} {len(order.notes)}"
        if key not in self._most_tokens:
            self._most_tokens[key] = self.activities.bound_tokens(order)
        return self._most_tokens[key]

    async def propose(self, node: Node[RepairNode], *, count: int) -> Proposals[RepairNode]:
        """Return the candidates of `count` calls, which run in parallel; see the port.

        Raises:
            Exception: the failure of the first call, if all failed.
        """
        if self._is_reflected_elsewhere(node):
            return Proposals(candidates=())
        if evidence := _collect_evidence(node):
            self._reflected.setdefault(evidence, node.node_id)
        spare, self._spare = [each for _, each in self._spare[:count]], self._spare[count:]
        for each in spare:
            self.events.take_place()(partial(self.report, each))
        count -= len(spare)
        numbers = range(self._number + 1, self._number + 1 + count)
        self._number += count
        calls = [
            partial(self._generate, self._order(node, number, is_first=number == numbers[0]), self.events.take_place())
            for number in numbers
        ]
        results = await run_wave(calls, at_once=MODEL_CALLS_AT_ONCE, failures=self.failures)
        numbered = [(n, each) for n, each in zip(numbers, results, strict=True) if not isinstance(each, Exception)]
        made = [each for _, each in numbered]
        if not made and not spare:
            raise next(each for each in results if isinstance(each, Exception))
        self._spare += [(number, other) for number, each in numbered for other in each.others]
        self._spare.sort(key=itemgetter(0))
        self._unread = max([self._unread, *((number, each.problem) for number, each in numbered if each.problem)])
        return Proposals(
            candidates=[
                Candidate(payload=RepairNode(candidate=replace(each, others=())), key=each.key)
                for each in (*spare, *made)
            ],
            spent=Cost(
                model_calls=count - len(made) + sum(each.usage.model_calls for each in made),
                tokens=sum(each.usage.total_tokens for each in made) if self.are_tokens_bounded else 0,
                resources={CANDIDATES: count + len(spare)},
            ),
        )

    async def _generate(self, order: CandidateOrder, fill: Fill) -> RepairCandidate:
        try:
            candidate = await self.activities.generate(order)
            fill(partial(self.report, candidate))
        finally:
            fill(None)
        return candidate

    def _order(self, node: Node[RepairNode], number: int, *, is_first: bool) -> CandidateOrder:
        parent = node.payload.candidate
        return CandidateOrder(
            candidate_id=f"cand-{number}",
            number=number,
            parent_id="" if parent is None else parent.candidate_id,
            depth=node.depth + 1,
            temperature=self.parameters.temperature if is_first else self.parameters.spread_temperature,
            previous=None if parent is None else _describe_previous(parent, find_critique(node)),
            unread="" if parent is not None and parent.problem else self._unread[1],
            notes=self.take_notes(),
        )

    def _is_reflected_elsewhere(self, node: Node[RepairNode]) -> bool:
        """Return whether another candidate with the same evidence was refined before."""
        evidence = _collect_evidence(node)
        return bool(evidence) and self._reflected.get(evidence, node.node_id) != node.node_id


@dataclass(eq=False, kw_only=True)
class CandidateEvaluator:
    """Lets the critics judge each candidate by itself; one that cannot be used needs no critic."""

    activities: RepairActivities
    report: Callable[[RepairCandidate, Critique], Event]
    events: OrderedEvents

    def bound_cost(self, parent: Node[RepairNode], *, count: int) -> Cost:  # noqa: ARG002 - the port's form
        """Return the largest cost of judging `count` candidates."""
        worst = self.activities.worst_cost
        runs, cpu_s = MOST_RUNS * count * worst.get(CHECKS, 0.0), count * worst.get(CHECK_CPU_S, 0.0)
        return Cost(resources={CHECKS: runs, CHECK_CPU_S: cpu_s})

    def divide(self, candidates: Sequence[Candidate[RepairNode]]) -> Sequence[Sequence[Candidate[RepairNode]]]:
        """Return each candidate as a batch of its own."""
        return [[candidate] for candidate in candidates]

    async def judge(self, parent: Node[RepairNode], batch: Sequence[Candidate[RepairNode]]) -> Judgement:  # noqa: ARG002
        """Return the verdict of the critics; see the port."""
        candidate = batch[0].payload.candidate
        assert candidate is not None  # noqa: S101 - only the root has none, and it is never judged
        fill = self.events.take_place()
        try:
            critique = await self._judge(candidate)
            fill(partial(self.report, candidate, critique))
        finally:
            fill(None)
        spent = Cost(
            resources={
                CHECKS: len(critique.reports) + critique.repeats,
                CHECK_CPU_S: sum(report.cpu_s for report in critique.reports),
            }
        )
        is_unknown = critique.verdict is CandidateVerdict.UNKNOWN
        verdict = Verdict(
            score=None if is_unknown else critique.score / 100,
            is_solution=critique.is_solution,
            signature=critique.signature,
            evidence=critique,
        )
        return Judgement(verdicts=[verdict], spent=spent)

    async def _judge(self, candidate: RepairCandidate) -> Critique:
        if candidate.status is CandidateStatus.INVALID:
            return Critique(
                verdict=CandidateVerdict.FAILED, score=_NO_EDIT_SCORE, is_solution=False, evidence=candidate.problem
            )
        return await self.activities.judge(candidate)


class RefineBeam(BeamSelection[RepairNode]):
    """A beam that goes back to the root when it has nothing left to refine, until the candidates are used up.

    It ends before that once the best score of a round rose by less than `delta` (0-1) over that of the rounds before;
    0 never ends it.

    Attributes:
        stalled_round: the round in which that happened; 0 if it did not.
        has_reached_depth: whether candidates were not refined because they are at the largest depth.
    """

    def __init__(self, root: Node[RepairNode], plan: SearchPlan, *, delta: float) -> None:
        super().__init__(root, plan)
        self._root = root
        self._delta = delta
        self._best_score: float | None = None
        self._rounds = 0
        self.stalled_round = 0
        self.has_reached_depth = False

    def settle(
        self, chosen: Sequence[Choice[RepairNode]], expansions: Sequence[Expansion[RepairNode]]
    ) -> Collection[str]:
        """Select the next frontier, or the root where it would be empty."""
        pruned = super().settle(chosen, expansions)
        made = [child for expansion in expansions for child in expansion.children]
        self._rounds += any(find_critique(child) for child in made)
        best, before = max((child.score for child in made), default=0.0), self._best_score
        self._best_score = best if before is None else max(before, best)
        self.has_reached_depth |= any(child.depth == self._plan.max_depth for child in made if not child.is_solution)
        if self._delta and before is not None and best - before < self._delta and self._frontier:
            self.stalled_round, self._frontier = self._rounds, []
        elif not self._frontier:
            self._frontier = [self._root]
            self._best_score = None
        return pruned


class RepeatedSelection:
    """Expands one node again and again: the best one so far, or with `is_flat` only the root.

    Source: greedy refinement, and best of n. A node whose expansion gave nothing new is left out, but for the root.
    """

    def __init__(self, root: Node[RepairNode], plan: SearchPlan, *, is_flat: bool) -> None:
        self._root = root
        self._plan = plan
        self._is_flat = is_flat
        self._open: list[Node[RepairNode]] = []

    def choose(self) -> Sequence[Choice[RepairNode]]:
        """Return the node to expand next."""
        best = min(self._open, key=lambda node: rank(node, seed=self._plan.seed), default=self._root)
        return [Choice(node=best, count=self._plan.branching)]

    def settle(
        self,
        chosen: Sequence[Choice[RepairNode]],  # noqa: ARG002 - the port's form
        expansions: Sequence[Expansion[RepairNode]],
    ) -> Collection[str]:
        """Record the new nodes; none is pruned."""
        for expansion in expansions:
            if not expansion.children:
                self._open = [node for node in self._open if node is not expansion.node]
            if not self._is_flat:
                self._open += [
                    child
                    for child in expansion.children
                    if not child.is_solution and child.depth < self._plan.max_depth and child.score > 0
                ]
        return ()


class Tournament:
    """Rounds of new candidates from the root and of refined survivors, which meet in a knockout over all rounds.

    Two meet by lot and the one with the better score stays, until `width` are left; each is refined at most twice.
    Source: rounds of drafts that are distilled and refined (PDR), and recursive tournaments of drafts (RTV).
    """

    def __init__(self, root: Node[RepairNode], plan: SearchPlan) -> None:
        self._root = root
        self._plan = plan
        self._survivors: list[Node[RepairNode]] = []
        self._refined: Counter[str] = Counter()

    def choose(self) -> Sequence[Choice[RepairNode]]:
        """Return the root, and the survivors with half of the candidates."""
        survivors, count = self._survivors, self._plan.branching
        share = -(-count // 2) if survivors else 0
        parts = [share // len(survivors) + (place < share % len(survivors)) for place in range(len(survivors))]
        chosen = [Choice(node=node, count=part) for node, part in zip(survivors, parts, strict=True) if part]
        fresh = [Choice(node=self._root, count=count - share)] if count > share else []
        return [*chosen, *fresh]

    def settle(
        self, chosen: Sequence[Choice[RepairNode]], expansions: Sequence[Expansion[RepairNode]]
    ) -> Collection[str]:
        """Let the survivors meet the new candidates; none is pruned."""
        self._refined.update(choice.node.node_id for choice in chosen)
        made = [child for expansion in expansions for child in expansion.children]
        pool = [
            node
            for node in (*self._survivors, *made)
            if not node.is_solution
            and 0 < node.depth < self._plan.max_depth
            and node.score > 0
            and self._refined[node.node_id] < _MOST_REFINED
        ]
        while len(pool) > self._plan.width:
            pool.sort(key=lambda node: _draw_lot(node, self._plan.seed, len(pool)))
            games = max(1, min(len(pool) // 2, len(pool) - self._plan.width))
            met = [
                min(pair, key=lambda node: rank(node, seed=self._plan.seed))
                for pair in zip(pool[: 2 * games : 2], pool[1 : 2 * games : 2], strict=True)
            ]
            pool = [*met, *pool[2 * games :]]
        self._survivors = pool
        return ()


def _draw_lot(node: Node[RepairNode], seed: int | None, players: int) -> str:
    return hashlib.sha256(f"{seed}:{players}:{node.node_id}".encode()).hexdigest()


class FirstWave:
    """Divides the first expansion of a selection: `first` candidates, then the rest of them; 0 divides nothing.

    The selection learns of both parts together.
    """

    def __init__(self, selection: SelectionPolicy[RepairNode], first: int) -> None:
        self._selection = selection
        self._first = first
        self._whole: Sequence[Choice[RepairNode]] = ()
        self._made: Sequence[Expansion[RepairNode]] = ()

    def choose(self) -> Sequence[Choice[RepairNode]]:
        """Return what the selection chooses, or a part of its first choice."""
        if self._whole:
            (whole,) = self._whole
            return [replace(whole, count=whole.count - self._first)]
        choices = self._selection.choose()
        if not self._made and self._first and len(choices) == 1 and choices[0].count > self._first:
            self._whole = choices
            return [replace(choices[0], count=self._first)]
        return choices

    def settle(
        self, chosen: Sequence[Choice[RepairNode]], expansions: Sequence[Expansion[RepairNode]]
    ) -> Collection[str]:
        """Let the selection record the round; the first part of a divided one waits for the rest."""
        if self._whole and not self._made:
            self._made = expansions
            return ()
        if self._whole:
            both = [*self._made, *expansions]
            children = [child for expansion in both for child in expansion.children]
            is_failed = all(expansion.is_failed for expansion in both)
            chosen, self._whole = self._whole, ()
            expansions = [replace(each, children=children, is_failed=is_failed) for each in both[:1]]
        return self._selection.settle(chosen, expansions)


class RoundWatcher:
    """Tells of the end of each round of a selection."""

    def __init__(
        self, selection: SelectionPolicy[RepairNode], on_round: Callable[[Sequence[Node[RepairNode]]], None]
    ) -> None:
        self._selection = selection
        self._on_round = on_round

    def choose(self) -> Sequence[Choice[RepairNode]]:
        """Return what the selection chooses."""
        return self._selection.choose()

    def settle(
        self, chosen: Sequence[Choice[RepairNode]], expansions: Sequence[Expansion[RepairNode]]
    ) -> Collection[str]:
        """Let the selection record the round, then tell of it."""
        pruned = self._selection.settle(chosen, expansions)
        self._on_round([child for expansion in expansions for child in expansion.children])
        return pruned


def bound_held_out(baseline: Baseline, worst_cost: Mapping[str, float]) -> Cost:
    """Return the most that the held-out checks of the winner take; `worst_cost` is that of judging one candidate."""
    held_out = [
        name
        for name, outcome in baseline.outcomes.items()
        if outcome.role is CheckRole.HELD_OUT and counts(name, baseline)
    ]
    cpu_s = worst_cost.get(CHECK_CPU_S, 0.0) / max(worst_cost.get(CHECKS, 0.0), 1.0)
    return Cost(resources={CHECKS: MOST_RUNS * len(held_out), CHECK_CPU_S: cpu_s * len(held_out)})


def build_search_plan(parameters: RepairParameters) -> SearchPlan:
    """Return the plan of the shared search."""
    is_beam = parameters.search in {RepairSearch.REFINE_BEAM, RepairSearch.TOURNAMENT}
    is_single = parameters.search is RepairSearch.GREEDY
    return SearchPlan(
        max_depth=parameters.max_reflection_depth,
        branching=1 if is_single else parameters.num_candidates,
        width=parameters.beam_width if is_beam else 1,
        at_once=MODEL_CALLS_AT_ONCE,
        solved_score=parameters.critique_threshold / 100 if parameters.enable_early_terminate else _NEVER_SOLVED,
        widening=_LATS_WIDENING if parameters.search is RepairSearch.LATS else None,
        # A model that repeats itself must not end the search while candidates are left.
        is_root_kept_open=True,
        novelty_patience=parameters.patience,
        seed=parameters.seed,
    )


def build_selection(parameters: RepairParameters, plan: SearchPlan) -> SelectionPolicy[RepairNode]:
    """Return how the search chooses, for a tree of its own."""
    root = build_root(RepairNode())
    if parameters.search is RepairSearch.REFINE_BEAM:
        return RefineBeam(root, plan, delta=parameters.min_improvement_delta / 100)
    if parameters.search is RepairSearch.LATS:
        return UctSelection(root, plan)
    if parameters.search is RepairSearch.TOURNAMENT:
        return Tournament(root, plan)
    return RepeatedSelection(root, plan, is_flat=parameters.search is RepairSearch.BEST_OF_N)


def find_critique(node: Node[RepairNode]) -> Critique | None:
    """Return what the critics say of a node; None for the root and where the search did not ask them."""
    critique = node.verdict.evidence
    return critique if isinstance(critique, Critique) else None


def _describe_previous(parent: RepairCandidate, critique: Critique | None) -> PreviousCandidate:
    return PreviousCandidate(
        diff=parent.diff,
        score=0.0 if critique is None else critique.score,
        evidence=parent.problem or ("" if critique is None else critique.evidence),
    )


def _collect_evidence(node: Node[RepairNode]) -> str:
    """Return what is known against a node; empty for the root."""
    critique = find_critique(node)
    return "" if critique is None or node.node_id == ROOT_ID else critique.evidence
