"""Plans: rounds of samples, a critic of their structure, and judges that vote. Nothing of a plan is ever run."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import ModelError
from reasond_server.repair.results.gate import rate_findings
from reasond_server.repair.results.outcomes import Critique
from reasond_server.repair.search.activities import CandidateOrder, PlanActivities, RepairCandidate
from reasond_server.repair.search.candidate_search import MODEL_CALLS_AT_ONCE, Fill, OrderedEvents
from reasond_server.repair.search.prompts import PreviousCandidate
from reasond_server.repair.search.repair_run import RepairOutcome
from reasond_server.repair.search.voting import JudgedCandidate, name_models
from reasond_server.search.waves import run_wave
from reasond_server.types import Budget, Event, FinishReason
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

    from reasond_server.repair.search.repair_policy import RepairParameters

JUDGES: Final = 3
_CRITERIA: Final = ("judges", "structure", "age")
_NOT_CHECKED: Final = "Nothing of a plan is run: its steps were judged by their form and by the model itself."
_NO_JUDGE: Final = "No judge gave a score that could be read; the plans were ranked by their form alone."
_WORTHLESS: Final = "every judge that gave a score gave it 0 ({count})"
_TOO_LOW: Final = "its score is {score:.0f}, and critique_threshold asks for {threshold:g}"
_JUDGED: Final = "Judges give it {mean:.1f} of 10."
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
        self._weights: dict[str, float] = {}
        self._worthless: dict[str, str] = {}
        self._written = self._calls = 0
        self.judged: list[JudgedCandidate] = []
        self.rounds: list[ReflectionIteration] = []

    async def work(self) -> RepairOutcome | None:
        """Write, judge and refine plans, round by round; return None if the work has to stop before its end.

        Raises:
            ModelError: every call for a plan failed.
            TokenBudgetExhaustedError: the budget covers no plan.
        """
        await self.activities.prepare_plan()
        parents: Sequence[JudgedCandidate | None] = [None]
        for depth in range(1, self.parameters.max_reflection_depth + 1):
            made = await self._write_plans(parents, depth)
            if await self.pause():
                return None
            self._end_round(await self._judge(made))
            self.judged.sort(key=lambda one: (-self._weights[one.candidate.candidate_id], -_rate_form(one)))
            if not made or not self._list_flaws(self.judged[0]):
                break
            parents = self.judged[: self.parameters.beam_width]
        vote = self._vote()
        self.emit(VoteStep(vote=vote))
        best = self.judged[0]
        if flaws := self._list_flaws(best):
            self._warnings.append(_FLAWED.format(flaws="; ".join(flaws)))
        return RepairOutcome(
            patch=best.candidate.diff,
            is_accepted=not flaws,
            finish_reason=FinishReason.MAX_ITERATIONS if flaws else FinishReason.ANSWERED,
            final_candidate_id=best.candidate.candidate_id,
            vote=vote,
            warnings=tuple(self._warnings),
            model=name_models(self.judged),
        )

    def summarize(self, finish_reason: FinishReason) -> RepairOutcome:
        """Return what is known of planning that was stopped: the plan of the best form so far."""
        best = max(self.judged, key=lambda one: one.critique.score, default=None)
        return RepairOutcome(
            patch="" if best is None else best.candidate.diff,
            finish_reason=finish_reason,
            final_candidate_id="" if best is None else best.candidate.candidate_id,
            warnings=tuple(self._warnings),
            model=name_models(self.judged),
        )

    async def _write_plans(self, parents: Sequence[JudgedCandidate | None], depth: int) -> Sequence[RepairCandidate]:
        """Write the plans of a round in parallel, each from one of `parents` in turn; equal ones are left out."""
        most = min(self.parameters.num_candidates, self.parameters.max_candidates - self._written)
        if self.budget.max_model_calls is not None:
            # One call is kept for a judge.
            most = min(most, max(self.budget.max_model_calls - self._calls - 1, int(depth == 1)))
        events = OrderedEvents(self.emit)
        orders = [
            self._order(parents[place % len(parents)], self._written + place + 1, depth, is_first=not place)
            for place in range(most)
        ]
        self._written += most
        self._calls += most
        calls = [partial(self._write_plan, order, events.take_place()) for order in orders]
        results = await run_wave(calls, at_once=MODEL_CALLS_AT_ONCE, failures=(ModelError, TokenBudgetExhaustedError))
        failures = [each for each in results if isinstance(each, Exception)]
        if failures and len(failures) == len(results) and not self.judged:
            raise failures[0]
        known = {one.candidate.diff for one in self.judged}
        made = {each.diff: each for each in results if not isinstance(each, Exception) and each.diff not in known}
        return list(made.values())

    def _order(self, parent: JudgedCandidate | None, number: int, depth: int, *, is_first: bool) -> CandidateOrder:
        parameters = self.parameters
        previous = None
        if parent is not None:
            critique = parent.critique
            previous = PreviousCandidate(
                diff=parent.candidate.diff, score=critique.score, evidence=critique.evidence or "Nothing else is known."
            )
        return CandidateOrder(
            candidate_id=f"cand-{number}",
            number=number,
            parent_id="" if parent is None else parent.candidate.candidate_id,
            depth=depth,
            temperature=parameters.temperature if is_first else parameters.spread_temperature,
            previous=previous,
        )

    async def _write_plan(self, order: CandidateOrder, fill: Fill) -> RepairCandidate:
        try:
            candidate = await self.activities.write_plan(order)
            fill(partial(_report_plan, candidate))
        finally:
            fill(None)
        return candidate

    async def _judge(self, made: Sequence[RepairCandidate]) -> Sequence[JudgedCandidate]:
        """Judge plans by their form and, where there is a choice or it was judged before, by judges of the model."""
        scores = await self._let_judges_score([each.diff for each in made])
        judged = []
        for place, candidate in enumerate(made):
            critique = criticize_plan(candidate.diff)
            given = [score for each in scores if (score := each[place]) is not None]
            form = critique.score / 100
            mean = sum(given) / len(given) if given else form
            # A plan with a fatal flaw of form must not win by the judges alone.
            self._weights[candidate.candidate_id] = mean * form
            if given:
                parts = [critique.evidence, _JUDGED.format(mean=10 * mean)]
                if not any(given):
                    self._worthless[candidate.candidate_id] = _WORTHLESS.format(count=len(given))
                critique = replace(critique, score=100 * mean * form, evidence="; ".join(filter(None, parts)))
            judged.append(JudgedCandidate(candidate=candidate, critique=critique))
            self.emit(self._report_critique(judged[-1]))
        self.judged += judged
        return judged

    async def _let_judges_score(self, plans: Sequence[str]) -> Sequence[Sequence[float | None]]:
        """Return the scores of each judge; of none where there is one plan only, or none."""
        if not plans or (len(plans) == 1 and not self.judged):
            return ()
        judges, before = JUDGES, JUDGES * len(self.rounds)
        if self.budget.max_model_calls is not None:
            judges = max(0, min(JUDGES, self.budget.max_model_calls - self._calls))
        self._calls += judges
        calls = [partial(self.activities.score_plans, before + judge, plans) for judge in range(1, judges + 1)]
        results = await run_wave(calls, at_once=MODEL_CALLS_AT_ONCE, failures=(ModelError, TokenBudgetExhaustedError))
        scores = [each for each in results if not isinstance(each, Exception)]
        if all(score is None for each in scores for score in each) and _NO_JUDGE not in self._warnings:
            self._warnings.append(_NO_JUDGE)
        return scores

    def _list_flaws(self, one: JudgedCandidate) -> Sequence[str]:
        """Return why a plan is not accepted."""
        flaws = [finding.message for finding in one.critique.findings if finding.severity is Severity.HIGH]
        if worthless := self._worthless.get(one.candidate.candidate_id):
            flaws.append(worthless)
        elif one.critique.score < self.parameters.critique_threshold:
            score, threshold = one.critique.score, self.parameters.critique_threshold
            flaws.append(_TOO_LOW.format(score=score, threshold=threshold))
        return flaws

    def _end_round(self, made: Sequence[JudgedCandidate]) -> None:
        scores = [CandidateScore(candidate_id=one.candidate.candidate_id, score=one.critique.score) for one in made]
        if not scores:
            return
        reflection = ReflectionIteration(
            iteration=len(self.rounds) + 1,
            candidate_ids=[each.candidate_id for each in scores],
            critic_scores=scores,
            notes="; ".join(f"{each.candidate_id} scores {each.score:.0f}" for each in scores),
        )
        self.rounds.append(reflection)
        self.emit(ReflectionStep(reflection=reflection))

    def _vote(self) -> VoteResult:
        """Return the plans by the mean of their judges, then by their form, then by their age."""
        votes = [
            CandidateVote(
                candidate_id=one.candidate.candidate_id,
                weight=self._weights[one.candidate.candidate_id],
                cluster_size=1,
                evidence=_rate_form(one),
            )
            for one in self.judged
        ]
        return VoteResult(votes=votes, criteria=_CRITERIA)

    def _report_critique(self, one: JudgedCandidate) -> CritiqueStep:
        return CritiqueStep(
            candidate_id=one.candidate.candidate_id,
            verdict=one.critique.verdict,
            score=one.critique.score,
            is_accepted=not self._list_flaws(one),
            elapsed_s=0.0,
            findings=one.critique.findings,
        )


def _rate_form(one: JudgedCandidate) -> float:
    return rate_findings(one.critique.findings) / 100


def criticize_plan(plan: str) -> Critique:
    """Return what can be said of a plan by its form: whether it has steps, and whether they say something."""
    steps = [match[1].strip() for match in _STEP.finditer(plan)]
    findings = []
    if len(steps) < _FEWEST_STEPS:
        findings.append(_build_flaw("plan-steps", Severity.HIGH, f"it has {len(steps)} steps in a list"))
    short = [step for step in steps if len(step.split()) < _FEWEST_WORDS]
    if short:
        findings.append(_build_flaw("plan-short-step", Severity.MEDIUM, f"{len(short)} steps have fewer than 3 words"))
    if len({step.casefold() for step in steps}) < len(steps):
        findings.append(_build_flaw("plan-repeated-step", Severity.MEDIUM, "steps repeat each other"))
    if steps and not _NAMED.search(plan):
        findings.append(_build_flaw("plan-names-nothing", Severity.LOW, "no step names a file or component"))
    is_sound = all(finding.severity is not Severity.HIGH for finding in findings)
    return Critique(
        verdict=CandidateVerdict.PASSED if is_sound else CandidateVerdict.FAILED,
        score=rate_findings(findings),
        is_solution=is_sound,
        evidence="; ".join(finding.message for finding in findings),
        findings=findings,
    )


def _build_flaw(rule_id: str, severity: Severity, message: str) -> Finding:
    return Finding(rule_id=rule_id, severity=severity, path="", line=0, message=message)


def _report_plan(candidate: RepairCandidate) -> CandidateStep:
    return CandidateStep(
        candidate_id=candidate.candidate_id,
        parent_id=candidate.parent_id,
        reflection_depth=candidate.depth,
        status=CandidateStatus.PROPOSED,
        usage=candidate.usage,
        elapsed_s=candidate.elapsed_s,
        code_or_plan=candidate.diff,
    )
