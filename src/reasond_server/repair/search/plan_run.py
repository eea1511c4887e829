"""Plans: independent samples, a critic of their structure, and judges that vote. Nothing of a plan is ever run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import ModelError
from reasond_server.repair.results.gate import rate_findings
from reasond_server.repair.results.outcomes import Critique
from reasond_server.repair.search.activities import CandidateOrder
from reasond_server.repair.search.candidate_search import MODEL_CALLS_AT_ONCE, OrderedEvents
from reasond_server.repair.search.repair_run import RepairOutcome
from reasond_server.repair.search.voting import JudgedCandidate
from reasond_server.search.waves import run_wave
from reasond_server.types import FinishReason
from reasond_server.types.repairs import (
    CandidateScore,
    CandidateStatus,
    CandidateStep,
    CandidateVerdict,
    CandidateVote,
    CritiqueStep,
    Finding,
    ReflectionIteration,
    ReflectionStep,
    Severity,
    VoteResult,
    VoteStep,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from reasond_server.repair.search.activities import PlanActivities, RepairCandidate
    from reasond_server.repair.search.candidate_search import Fill
    from reasond_server.repair.search.repair_policy import RepairParameters
    from reasond_server.types import Budget, Event

JUDGES: Final = 3
_CRITERIA: Final = ("judges", "structure", "age")
_NOT_CHECKED: Final = "Nothing of a plan is run: its steps were judged by their form and by the model itself."
_NO_JUDGE: Final = "No judge gave a score that could be read; the plans were ranked by their form alone."
_WORTHLESS: Final = "every judge that gave a score gave it 0 ({count})"
_FLAWED: Final = "The plan is not accepted: {flaws}."
_FEWEST_STEPS: Final = 2
_FEWEST_WORDS: Final = 3
_STEP: Final = re.compile(r"^[ \t]{0,3}(?:\d{1,3}[.)]|[-*+])[ \t]+(\S.*)$", re.MULTILINE)
_NAMED: Final = re.compile(r"`[^`\n]{1,200}`|\b[\w/.-]{1,200}\.[A-Za-z]{1,8}\b|\b[A-Z][a-z]+[A-Z]\w*")


@dataclass(eq=False, kw_only=True)
class PlanRun:
    """Works one plan out; see `RepairRun` for the arguments and attributes."""

    parameters: RepairParameters
    budget: Budget
    activities: PlanActivities
    emit: Callable[[Event], None]
    pause: Callable[[], Awaitable[bool]]

    def __post_init__(self) -> None:
        self._warnings: list[str] = [_NOT_CHECKED]
        self.judged: list[JudgedCandidate] = []
        self.rounds: list[ReflectionIteration] = []

    async def work(self) -> RepairOutcome | None:
        """Write, criticize and rank plans; return None if the work has to stop before its end.

        Raises:
            ModelError: every call for a plan failed.
            TokenBudgetExhaustedError: the budget covers no plan.
        """
        await self.activities.prepare_plan()
        await self._write_plans()
        if await self.pause():
            return None
        scores = await self._let_judges_score()
        vote = self._vote(scores)
        self.emit(VoteStep(vote=vote))
        best = next(one for one in self.judged if one.candidate.candidate_id == vote.votes[0].candidate_id)
        flaws = [finding.message for finding in best.critique.findings if finding.severity is Severity.HIGH]
        given = [score for each in scores if (score := each[self.judged.index(best)]) is not None]
        if given and not any(given):
            flaws.append(_WORTHLESS.format(count=len(given)))
        if flaws:
            self._warnings.append(_FLAWED.format(flaws="; ".join(flaws)))
        return RepairOutcome(
            patch=best.candidate.diff,
            is_accepted=not flaws,
            finish_reason=FinishReason.MAX_ITERATIONS if flaws else FinishReason.ANSWERED,
            final_candidate_id=best.candidate.candidate_id,
            vote=vote,
            warnings=tuple(self._warnings),
        )

    def summarize(self, finish_reason: FinishReason) -> RepairOutcome:
        """Return what is known of planning that was stopped: the plan of the best form so far."""
        best = max(self.judged, key=lambda one: one.critique.score, default=None)
        return RepairOutcome(
            patch="" if best is None else best.candidate.diff,
            finish_reason=finish_reason,
            final_candidate_id="" if best is None else best.candidate.candidate_id,
            warnings=tuple(self._warnings),
        )

    async def _write_plans(self) -> None:
        """Write the plans in parallel, and criticize each once all are there."""
        most = self.parameters.num_candidates
        if self.budget.max_model_calls is not None:
            # One call is kept for a judge.
            most = max(1, min(most, self.budget.max_model_calls - 1))
        events = OrderedEvents(self.emit)
        calls = [partial(self._write_plan, number, events.take_place()) for number in range(1, most + 1)]
        results = await run_wave(calls, at_once=MODEL_CALLS_AT_ONCE, failures=(ModelError, TokenBudgetExhaustedError))
        failures = [each for each in results if isinstance(each, Exception)]
        if len(failures) == len(results):
            raise failures[0]
        for candidate in results:
            if not isinstance(candidate, Exception):
                critique = criticize_plan(candidate.diff)
                self.judged.append(JudgedCandidate(candidate=candidate, critique=critique))
                self.emit(_report_critique(candidate, critique))
        reflection = ReflectionIteration(
            iteration=1,
            candidate_ids=[one.candidate.candidate_id for one in self.judged],
            critic_scores=[
                CandidateScore(candidate_id=one.candidate.candidate_id, score=one.critique.score) for one in self.judged
            ],
            notes="; ".join(f"{one.candidate.candidate_id} scores {one.critique.score:.0f}" for one in self.judged),
        )
        self.rounds.append(reflection)
        self.emit(ReflectionStep(reflection=reflection))

    async def _write_plan(self, number: int, fill: Fill) -> RepairCandidate:
        first, spread = self.parameters.temperature, self.parameters.spread_temperature
        order = CandidateOrder(
            candidate_id=f"cand-{number}",
            number=number,
            parent_id="",
            depth=1,
            temperature=first if number == 1 else spread,
        )
        try:
            candidate = await self.activities.write_plan(order)
            fill(partial(_report_plan, candidate))
        finally:
            fill(None)
        return candidate

    async def _let_judges_score(self) -> Sequence[Sequence[float | None]]:
        """Return the scores of each judge; of none where there is one plan only."""
        if len(self.judged) == 1:
            return ()
        plans = [one.candidate.diff for one in self.judged]
        judges = JUDGES
        if self.budget.max_model_calls is not None:
            judges = max(0, min(JUDGES, self.budget.max_model_calls - len(plans)))
        calls = [partial(self.activities.score_plans, judge, plans) for judge in range(1, judges + 1)]
        results = await run_wave(calls, at_once=MODEL_CALLS_AT_ONCE, failures=(ModelError, TokenBudgetExhaustedError))
        scores = [each for each in results if not isinstance(each, Exception)]
        if all(score is None for each in scores for score in each):
            self._warnings.append(_NO_JUDGE)
        return scores

    def _vote(self, scores: Sequence[Sequence[float | None]]) -> VoteResult:
        """Return the plans by the mean of their judges, then by their form, then by their age."""
        votes = []
        for place, one in enumerate(self.judged):
            given = [score for each in scores if (score := each[place]) is not None]
            structure = one.critique.score / 100
            mean = sum(given) / len(given) if given else structure
            # A plan with a fatal flaw of form must not win by the judges alone.
            weight = mean * structure
            votes.append(
                CandidateVote(
                    candidate_id=one.candidate.candidate_id, weight=weight, cluster_size=1, evidence=structure
                )
            )
        return VoteResult(votes=sorted(votes, key=lambda vote: (-vote.weight, -vote.evidence)), criteria=_CRITERIA)


def criticize_plan(plan: str) -> Critique:
    """Return what can be said of a plan by its form: whether it has steps, and whether they say something."""
    steps = [match[1].strip() for match in _STEP.finditer(plan)]
    findings = []
    if len(steps) < _FEWEST_STEPS:
        findings.append(_flaw("plan-steps", Severity.HIGH, f"it has {len(steps)} steps in a list"))
    short = [step for step in steps if len(step.split()) < _FEWEST_WORDS]
    if short:
        findings.append(_flaw("plan-short-step", Severity.MEDIUM, f"{len(short)} steps have fewer than 3 words"))
    if len({step.casefold() for step in steps}) < len(steps):
        findings.append(_flaw("plan-repeated-step", Severity.MEDIUM, "steps repeat each other"))
    if steps and not _NAMED.search(plan):
        findings.append(_flaw("plan-names-nothing", Severity.LOW, "no step names a file or component"))
    is_sound = all(finding.severity is not Severity.HIGH for finding in findings)
    return Critique(
        verdict=CandidateVerdict.PASSED if is_sound else CandidateVerdict.FAILED,
        score=rate_findings(findings),
        is_solution=is_sound,
        evidence="; ".join(finding.message for finding in findings),
        findings=findings,
    )


def _flaw(rule_id: str, severity: Severity, message: str) -> Finding:
    return Finding(rule_id=rule_id, severity=severity, path="", line=0, message=message)


def _report_plan(candidate: RepairCandidate) -> CandidateStep:
    return CandidateStep(
        candidate_id=candidate.candidate_id,
        parent_id="",
        reflection_depth=1,
        status=CandidateStatus.PROPOSED,
        usage=candidate.usage,
        elapsed_s=candidate.elapsed_s,
        code_or_plan=candidate.diff,
    )


def _report_critique(candidate: RepairCandidate, critique: Critique) -> CritiqueStep:
    return CritiqueStep(
        candidate_id=candidate.candidate_id,
        verdict=critique.verdict,
        score=critique.score,
        is_accepted=False,
        elapsed_s=0.0,
        findings=critique.findings,
    )
