"""One repair from its baseline to its result: search, vote, patch, and the held-out checks, once.

It talks to the outside through `RepairActivities` alone, so every engine works it out alike. Its events depend only on
their results, never on which of them ends first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import ModelError
from reasond_server.repair.results.gate import (
    REVIEW_WARNING,
    is_disputed,
    list_signs,
    needs_review,
    report_baseline,
    report_candidate,
)
from reasond_server.repair.search.candidate_search import (
    CANDIDATES,
    CHECK_CPU_S,
    CHECKS,
    CandidateEvaluator,
    CandidateProposer,
    FirstWave,
    OrderedEvents,
    RefineBeam,
    RoundWatcher,
    bound_held_out,
    build_search_plan,
    build_selection,
    find_critique,
)
from reasond_server.repair.search.voting import JudgedCandidate, name_models, rank_candidates, vote_on, write_notes
from reasond_server.search.allowance import Allowance
from reasond_server.search.controller import SearchEnding, TreeSearch
from reasond_server.types import Budget, Event, FinishReason
from reasond_server.types.repairs import (
    BaselineStep,
    CandidateScore,
    CandidateStatus,
    CandidateStep,
    CheckRole,
    CheckStatus,
    CritiqueStep,
    Finding,
    RankedPatch,
    ReflectionIteration,
    ReflectionStep,
    Severity,
    ValidationStep,
    Verification,
    VoteResult,
    VoteStep,
)
from reasond_server.types.values import value

if TYPE_CHECKING:
    from reasond_server.repair.results.outcomes import Baseline, CheckOutcome, Critique
    from reasond_server.repair.search.activities import RepairActivities, RepairCandidate
    from reasond_server.repair.search.candidate_search import RepairNode
    from reasond_server.repair.search.repair_policy import RepairParameters
    from reasond_server.search.policies import SelectionPolicy
    from reasond_server.search.tree import Node
    from reasond_server.types.repairs import CheckReport

_MOST_RANKED: Final = 5
_MOST_SHOWN: Final = 600
"""Characters of a problem in a warning."""
# With the winner's patch, which stands twice in the result, they fit into one message of gRPC (4 MiB).
_MAX_RANKED_BYTES: Final = 1024 * 1024
_OWN_BOUNDS: Final = {CANDIDATES: "max_candidates", CHECKS: "max_checks", CHECK_CPU_S: "max_check_cpu_s"}
"""The parameters that bound each resource of the search."""
_BUDGET_REACHED: Final = "Maximum search budget reached: no candidate was accepted within {bound} = {most:g}{rest}."
_REST: Final = " ({taken:g} taken; the rest does not cover another candidate)"
_DEPTH_REACHED: Final = "Max reflection depth reached without passing CriticAgent: no candidate passes every check."
_TOO_SIMILAR: Final = (
    "Candidates too similar; aborting further reflection: {patience} expansions, or candidates that repeat others, "
    "showed no new behaviour."
)
_UNREAD: Final = "{count} of {all} replies could not be used. The last one: {problem}"
_NO_IMPROVEMENT: Final = (
    "The best score of round {round} rose by less than min_improvement_delta = {delta:g}; the search ended with it."
)
_DEMOTED: Final = "Second-best candidate chosen due to patch validation failure: {problem}"
_FEWEST_TRIES: Final = 3
_STUBBORN: Final = (
    "{count} tests failed with every candidate, while others were mended ({tests}). If they are about something else, "
    "leave them out of the check: pytest --deselect ID, go test -skip NAME, node --test --test-skip-pattern NAME."
)
_NOT_ACCEPTED: Final = "The patch is not accepted: it does not pass every check. A person should review it."
_HELD_OUT_FAILED: Final = (
    "The patch passes the checks that the search saw and fails held-out ones ({checks}). A person should review it."
)
_NEEDS_REVIEW: Final = "Needs review: {count} lines of the patch could mislead its checks: {lines}."
_DISPUTED: Final = (
    "The patch is not accepted although it passes every check, because of new findings that are HIGH: {lines}. A "
    "person should review it."
)
_NO_PATCH: Final = "No candidate gives a patch that applies."


@value
class RepairOutcome:
    """What came of a repair; the fields are those of `types.repairs.Repair`.

    `is_early` says that a candidate was accepted before the budget was spent. `model` names who answered, where several
    models stand behind one name.
    """

    patch: str = ""
    is_accepted: bool = False
    verification: Verification = Verification.NONE
    finish_reason: FinishReason = FinishReason.MAX_ITERATIONS
    final_candidate_id: str = ""
    ranking: Sequence[RankedPatch] = ()
    vote: VoteResult | None = None
    warnings: Sequence[str] = ()
    suspect_lines: Sequence[Finding] = ()
    model: str = ""
    is_early: bool = False


@dataclass(eq=False, kw_only=True)
class RepairRun:
    """Works one repair out.

    Args:
        parameters: how it is searched.
        budget: the bounds of the task.
        activities: the outside.
        emit: appends an event to the log.
        pause: awaited between rounds; returns whether the work has to stop here.

    Attributes:
        judged: the candidates that were judged so far.
        rounds: the rounds of the search so far.
    """

    parameters: RepairParameters
    budget: Budget
    activities: RepairActivities
    emit: Callable[[Event], None]
    pause: Callable[[], Awaitable[bool]]

    def __post_init__(self) -> None:
        self._events = OrderedEvents(self.emit)
        self._keys: set[str] = set()
        self._warnings: list[str] = []
        self._failing: frozenset[str] = frozenset()
        self._noted: list[JudgedCandidate] = []
        self.judged: list[JudgedCandidate] = []
        self.rounds: list[ReflectionIteration] = []
        self._critiques: list[Sequence[Critique]] = []

    async def work(self) -> RepairOutcome | None:
        """Work the repair out; return None if it has to stop before its end.

        Raises:
            NotReproducedError: no check fails on the original code.
            CheckUnusableError: a check cannot be run on it.
            TokenBudgetExhaustedError: the budget covers no candidate.
            ModelError: the model failed several times in a row.
        """
        baseline = await self.activities.measure_baseline()
        self._report_baseline(baseline)
        selection = self._build_selection()
        search = self._build_search(selection, baseline)
        if not await self._search(search):
            return None
        self._note_ending(search, selection)
        return await self._conclude(search)

    def summarize(self, finish_reason: FinishReason) -> RepairOutcome:
        """Return what is known of a repair that was stopped: the best candidate so far, not accepted."""
        ranked = rank_candidates(self.judged)
        best = ranked[0] if ranked else None
        return RepairOutcome(
            patch="" if best is None else best.candidate.diff,
            verification=Verification.NONE if best is None else _build_verification(best.critique.reports),
            finish_reason=finish_reason,
            final_candidate_id="" if best is None else best.candidate.candidate_id,
            warnings=tuple(self._warnings),
            model=name_models(self.judged),
        )

    def _build_selection(self) -> SelectionPolicy[RepairNode]:
        parameters = self.parameters
        return build_selection(parameters, build_search_plan(parameters))

    def _build_search(self, selection: SelectionPolicy[RepairNode], baseline: Baseline) -> TreeSearch[RepairNode]:
        parameters, budget = self.parameters, self.budget
        allowance = Allowance(
            max_calls=budget.max_model_calls,
            max_tokens=budget.max_total_tokens,
            max_resources={
                CANDIDATES: parameters.max_candidates,
                CHECKS: max(0, parameters.max_checks - self.activities.checks_run),
                CHECK_CPU_S: max(0.0, parameters.max_check_cpu_s - self.activities.check_cpu_s),
            },
            margin=bound_held_out(baseline, self.activities.worst_cost),
        )
        failures = (ModelError,)
        return TreeSearch(
            proposer=CandidateProposer(
                activities=self.activities,
                parameters=parameters,
                report=self._report_candidate,
                events=self._events,
                are_tokens_bounded=budget.max_total_tokens is not None,
                failures=(*failures, TokenBudgetExhaustedError),
                take_notes=self._take_notes if parameters.has_notes else str,
            ),
            evaluator=CandidateEvaluator(activities=self.activities, report=self._report_critique, events=self._events),
            plan=build_search_plan(parameters),
            selection=RoundWatcher(FirstWave(selection, parameters.first_candidates), self._end_round),
            allowance=allowance,
            failures=failures,
            exhaustions=(TokenBudgetExhaustedError,),
        )

    async def _search(self, search: TreeSearch[RepairNode]) -> bool:
        """Search to the end; return False if the work has to stop before."""
        async with aclosing(search.run()) as nodes:
            async for found in nodes:
                candidate, critique = found.node.payload.candidate, find_critique(found.node)
                if candidate is not None and critique is not None:
                    self.judged.append(JudgedCandidate(candidate=candidate, critique=critique))
                if await self.pause():
                    return False
        if not self.judged and search.ending is SearchEnding.BUDGET and search.shortage != CANDIDATES:
            bound = _OWN_BOUNDS.get(search.shortage, "max_total_tokens or max_model_calls in the budget")
            raise TokenBudgetExhaustedError(
                "The budget does not cover one candidate",
                remedy=f"Raise {bound}; nothing was spent on candidates.",
            )
        return True

    async def _conclude(self, search: TreeSearch[RepairNode]) -> RepairOutcome:
        """Vote unless a candidate was accepted at once, then return the best patch that applies."""
        vote = None
        if search.ending is not SearchEnding.SOLVED and self.judged:
            vote = vote_on(self.judged)
            self.emit(VoteStep(vote=vote))
        ranking, winner = await self._rank_patches()
        if winner is None:
            self._warnings.append(_NO_PATCH)
            return RepairOutcome(
                finish_reason=self._explain_end(search),
                vote=vote,
                warnings=tuple(self._warnings),
                model=name_models(self.judged),
                is_early=search.ending is SearchEnding.SOLVED,
            )
        is_accepted, verification = await self._verify(winner)
        best = ranking[0]
        return RepairOutcome(
            patch=best.patch,
            is_accepted=is_accepted,
            verification=verification,
            finish_reason=FinishReason.ANSWERED if is_accepted else self._explain_end(search),
            final_candidate_id=best.candidate_id,
            ranking=[
                RankedPatch(
                    candidate_id=best.candidate_id, patch=best.patch, score=best.score, verification=verification
                ),
                *ranking[1:],
            ],
            vote=vote,
            warnings=tuple(self._warnings),
            suspect_lines=list_signs(winner.critique.findings),
            model=name_models(self.judged),
            is_early=search.ending is SearchEnding.SOLVED,
        )

    async def _rank_patches(self) -> tuple[Sequence[RankedPatch], JudgedCandidate | None]:
        """Return the best patches that apply, as far as there is room for them, and the candidate of the first one."""
        ranking: list[RankedPatch] = []
        winner: JudgedCandidate | None = None
        room = _MAX_RANKED_BYTES
        for one in rank_candidates(self.judged):
            if len(ranking) == _MOST_RANKED:
                break
            if one.candidate.status is not CandidateStatus.PROPOSED:
                continue
            found = await self.activities.validate(one.candidate)
            if found.problem:
                self.emit(_report_validation(one, found.problem))
                if winner is None:
                    self._warnings.append(_DEMOTED.format(problem=found.problem))
                continue
            winner, is_first = winner or one, winner is None
            room -= 0 if is_first else len(found.patch.encode())
            if room < 0:
                break
            ranking.append(
                RankedPatch(
                    candidate_id=one.candidate.candidate_id,
                    patch=found.patch,
                    score=one.critique.score,
                    verification=_build_verification(one.critique.reports),
                )
            )
        return ranking, winner

    async def _verify(self, winner: JudgedCandidate) -> tuple[bool, Verification]:
        """Return whether the winner is accepted, and what it was checked with; the held-out checks run once."""
        outcomes: Sequence[CheckOutcome] = ()
        if winner.critique.is_solution:
            outcomes = await self.activities.judge_held_out(winner.candidate)
        failed = [outcome.name for outcome in outcomes if outcome.status is not CheckStatus.PASSED]
        reports = [report_candidate(outcome) for outcome in outcomes]
        verification = _build_verification([*winner.critique.reports, *reports])
        problem = ""
        if failed:
            problem = _HELD_OUT_FAILED.format(checks=", ".join(failed))
        elif is_disputed(winner.critique):
            worst = [one for one in winner.critique.findings if one.severity is Severity.HIGH]
            problem = _DISPUTED.format(lines=_name_findings(worst))
        elif not winner.critique.is_solution:
            problem = _NOT_ACCEPTED
        if problem:
            self._warnings.append(problem)
        if suspect := list_signs(winner.critique.findings):
            self._warnings.append(_NEEDS_REVIEW.format(count=len(suspect), lines=_name_findings(suspect)))
        self.emit(
            ValidationStep(
                candidate_id=winner.candidate.candidate_id,
                is_valid=True,
                verification=verification,
                problem=problem,
                reports=reports,
            )
        )
        return not problem, verification

    def _report_baseline(self, baseline: Baseline) -> None:
        reports = report_baseline(baseline)
        self._failing = _list_failed(reports)
        self.emit(
            BaselineStep(
                is_reproduced=baseline.is_reproduced,
                elapsed_s=sum(report.elapsed_s for report in reports),
                reports=reports,
                flaky=sorted(baseline.flaky),
            )
        )

    def _report_candidate(self, candidate: RepairCandidate) -> CandidateStep:
        is_known = candidate.key in self._keys
        self._keys.add(candidate.key)
        return CandidateStep(
            candidate_id=candidate.candidate_id,
            parent_id=candidate.parent_id,
            reflection_depth=candidate.depth,
            status=CandidateStatus.DUPLICATE if is_known else candidate.status,
            usage=candidate.usage,
            elapsed_s=candidate.elapsed_s,
            thought=candidate.thought,
            code_or_plan=candidate.diff,
            problem=candidate.problem,
        )

    def _report_critique(self, candidate: RepairCandidate, critique: Critique) -> CritiqueStep:
        return CritiqueStep(
            candidate_id=candidate.candidate_id,
            verdict=critique.verdict,
            score=critique.score,
            is_accepted=critique.is_solution and critique.score >= self.parameters.critique_threshold,
            elapsed_s=sum(report.elapsed_s for report in critique.reports),
            reports=critique.reports,
            findings=critique.findings,
            signature=critique.signature,
        )

    def _end_round(self, nodes: Sequence[Node[RepairNode]]) -> None:
        """Report the end of a round with its new candidates; one without any is not reported."""
        found = [(node.payload.candidate, find_critique(node)) for node in nodes]
        scored = [(one, critique) for one, critique in found if one is not None and critique is not None]
        if not scored:
            return
        best, critique = max(scored, key=lambda pair: pair[1].score)
        is_selected = critique.is_solution and critique.score >= self.parameters.critique_threshold
        reflection = ReflectionIteration(
            iteration=len(self.rounds) + 1,
            candidate_ids=[one.candidate_id for one, _ in scored],
            critic_scores=[
                CandidateScore(candidate_id=one.candidate_id, score=critique.score) for one, critique in scored
            ],
            selected_candidate_id=best.candidate_id if is_selected and self.parameters.enable_early_terminate else "",
            notes="; ".join(_describe(one, critique) for one, critique in scored),
        )
        self.rounds.append(reflection)
        self._noted += [JudgedCandidate(candidate=one, critique=critique) for one, critique in scored]
        self._critiques.append([critique for _, critique in scored])
        self.emit(ReflectionStep(reflection=reflection))

    def _take_notes(self) -> str:
        """Return the notes of all rounds that are over: within a round they stay the same."""
        return write_notes(self._noted)

    def _note_ending(self, search: TreeSearch[RepairNode], selection: SelectionPolicy[RepairNode]) -> None:
        """Warn of why the search ended without a candidate that was accepted at once."""
        parameters = self.parameters
        if search.ending is SearchEnding.SOLVED:
            return
        if isinstance(selection, RefineBeam):
            if selection.stalled_round:
                self._warnings.append(
                    _NO_IMPROVEMENT.format(round=selection.stalled_round, delta=parameters.min_improvement_delta)
                )
            elif selection.has_reached_depth and not search.solutions:
                self._warnings.append(_DEPTH_REACHED)
        self._note_candidates()
        if search.ending is SearchEnding.REPETITIVE:
            self._warnings.append(_TOO_SIMILAR.format(patience=parameters.patience))
        elif search.shortage in _OWN_BOUNDS and not search.solutions:
            self._warnings.append(self._describe_shortage(search.shortage))
        if needs_review(self._critiques):
            self._warnings.append(REVIEW_WARNING)
        if search.tally.failed_calls:
            self._warnings.append(f"{search.tally.failed_calls} model calls failed; the search went on without them.")

    def _note_candidates(self) -> None:
        """Warn of what many candidates have in common."""
        unread = [one.candidate.problem for one in self.judged if one.candidate.problem]
        if unread:
            shown = unread[-1][:_MOST_SHOWN]
            self._warnings.append(_UNREAD.format(count=len(unread), all=len(self.judged), problem=shown))
        if stubborn := self._find_stubborn():
            self._warnings.append(_STUBBORN.format(tests=", ".join(stubborn[:_MOST_RANKED]), count=len(stubborn)))

    def _find_stubborn(self) -> Sequence[str]:
        """Return the tests that fail with every candidate, where one passes all others and mends something."""
        failed = [_list_failed(one.critique.reports) for one in self.judged if one.critique.reports]
        if len(failed) < _FEWEST_TRIES:
            return ()
        common = frozenset.intersection(*failed)
        is_alone = any(each == common and each < self._failing for each in failed)
        return sorted(common) if common and is_alone else ()

    def _describe_shortage(self, shortage: str) -> str:
        """Return the warning of a search that a bound of its parameters ended."""
        taken = {CHECKS: self.activities.checks_run, CHECK_CPU_S: self.activities.check_cpu_s}
        return _BUDGET_REACHED.format(
            bound=_OWN_BOUNDS[shortage],
            most=getattr(self.parameters, _OWN_BOUNDS[shortage]),
            rest=_REST.format(taken=taken[shortage]) if shortage in taken else "",
        )

    def _explain_end(self, search: TreeSearch[RepairNode]) -> FinishReason:
        if search.ending is SearchEnding.BUDGET and search.shortage not in _OWN_BOUNDS:
            return FinishReason.BUDGET_EXHAUSTED
        return FinishReason.MAX_ITERATIONS


def _build_verification(reports: Sequence[CheckReport]) -> Verification:
    """Return what a patch was checked with; checks that could not be run do not count."""
    roles = {report.role for report in reports if report.status is not CheckStatus.UNKNOWN}
    if not roles:
        return Verification.NONE
    return Verification.HELD_OUT if CheckRole.HELD_OUT in roles else Verification.VISIBLE_ONLY


def _list_failed(reports: Iterable[CheckReport]) -> frozenset[str]:
    return frozenset(f"{report.name}: {test_id}" for report in reports for test_id in report.failed)


def _name_findings(findings: Sequence[Finding]) -> str:
    return "; ".join(
        f"{one.path}:{one.line} {one.message} ({one.rule_id.rpartition('.')[2]})" for one in findings[:_MOST_RANKED]
    )


def _describe(candidate: RepairCandidate, critique: Critique) -> str:
    """Return one line about a candidate, for people."""
    if candidate.problem:
        return f"{candidate.candidate_id} cannot be used: {candidate.problem.partition('. ')[0]}"
    failed = [
        f"{report.name} {report.status}" for report in critique.reports if report.status is not CheckStatus.PASSED
    ]
    state = ", ".join(failed) or critique.verdict
    return f"{candidate.candidate_id} scores {critique.score:.0f}: {state}"


def _report_validation(one: JudgedCandidate, problem: str) -> ValidationStep:
    return ValidationStep(
        candidate_id=one.candidate.candidate_id, is_valid=False, verification=Verification.NONE, problem=problem
    )
