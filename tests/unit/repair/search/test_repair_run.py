"""A repair with an outside that follows a script: what it asks for, what it emits, and what comes of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import ModelFailedError
from reasond_server.repair.results.gate import REVIEW_WARNING, report_candidate
from reasond_server.repair.results.outcomes import Baseline, CheckOutcome, Critique
from reasond_server.repair.search.activities import PatchCheck, RepairCandidate
from reasond_server.repair.search.repair_policy import RepairParameters
from reasond_server.repair.search.repair_run import RepairRun
from reasond_server.types import Budget, FinishReason, Usage
from reasond_server.types.repairs import (
    BaselineStep,
    CandidateStatus,
    CandidateStep,
    CandidateVerdict,
    CheckRole,
    CheckStatus,
    Finding,
    ReflectionStep,
    RepairSearch,
    Severity,
    TestOutcome,
    ValidationStep,
    Verification,
    VoteStep,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reasond_server.repair.search.activities import CandidateOrder
    from reasond_server.repair.search.repair_run import RepairOutcome
    from reasond_server.types import Event

REPRODUCE = CheckOutcome(name="tests", role=CheckRole.REPRODUCE, status=CheckStatus.FAILED, cpu_s=0.5)
OBJECTION = Finding(rule_id="F821", severity=Severity.HIGH, path="a.py", line=1, message="undefined name")


def give_score(number: int) -> float:
    """Score candidates by their number: none of the first ones passes."""
    return 40.0 + number


class ScriptedActivities:
    """An outside that follows a script: `score_of` scores candidates by number, 85 and more pass the gate."""

    def __init__(
        self,
        score_of: Callable[[int], float] = give_score,
        *,
        code_of: Callable[[int], str] = str,
        problem_of: Callable[[int], str] = lambda _: "it holds no edit",
        evidence_of: Callable[[int], str] = lambda number: f"failure {number}",
        invalid_patches: Sequence[str] = (),
        held_out: CheckStatus | None = None,
        failing: Sequence[int] = (),
        delay_of: Callable[[int], float] = lambda _: 0.0,
        repeats: int = 0,
    ) -> None:
        self.score_of = score_of
        self.code_of = code_of
        self.problem_of = problem_of
        self.evidence_of = evidence_of
        self.invalid_patches = invalid_patches
        self.held_out = held_out
        self.failing = failing
        self.delay_of = delay_of
        self.repeats = repeats
        self.orders: list[CandidateOrder] = []
        self.judged: list[str] = []
        self.held_out_of: list[str] = []
        self.warnings: Sequence[str] = ()
        self.checks_run = 2
        self.check_cpu_s = 1.0
        self.worst_cost = {"checks": 1.0, "check_cpu_s": 1.0}

    async def measure_baseline(self) -> Baseline:
        return Baseline(outcomes={"tests": REPRODUCE})

    def bound_tokens(self, order: CandidateOrder) -> int:
        return 100 if order.number else 0

    async def generate(self, order: CandidateOrder) -> RepairCandidate:
        self.orders.append(order)
        await asyncio.sleep(self.delay_of(order.number))
        if order.number in self.failing:
            raise ModelFailedError("broke")
        code = self.code_of(order.number)
        return RepairCandidate(
            candidate_id=order.candidate_id,
            number=order.number,
            parent_id=order.parent_id,
            depth=order.depth,
            status=CandidateStatus.PROPOSED if code else CandidateStatus.INVALID,
            key=code or f"invalid {order.number}",
            changes={"a.py": code.encode()} if code else {},
            diff=f"diff {code}" if code else "",
            problem="" if code else self.problem_of(order.number),
            usage=Usage(input_tokens=80, output_tokens=20, model_calls=1),
        )

    async def judge(self, candidate: RepairCandidate) -> Critique:
        self.judged.append(candidate.candidate_id)
        await asyncio.sleep(self.delay_of(candidate.number))
        score = self.score_of(candidate.number)
        is_solution = score >= 85
        outcome = replace(REPRODUCE, status=CheckStatus.PASSED if is_solution else CheckStatus.FAILED)
        return Critique(
            verdict=CandidateVerdict.PASSED if is_solution else CandidateVerdict.FAILED,
            score=score,
            is_solution=is_solution,
            signature=f"behaviour {self.evidence_of(candidate.number)}",
            evidence="" if is_solution else self.evidence_of(candidate.number),
            reports=[report_candidate(outcome)],
            repeats=self.repeats,
        )

    async def validate(self, candidate: RepairCandidate) -> PatchCheck:
        problem = "does not apply" if candidate.candidate_id in self.invalid_patches else ""
        return PatchCheck(patch=candidate.diff, problem=problem)

    async def judge_held_out(self, candidate: RepairCandidate) -> Sequence[CheckOutcome]:
        self.held_out_of.append(candidate.candidate_id)
        if self.held_out is None:
            return ()
        return [CheckOutcome(name="hidden", role=CheckRole.HELD_OUT, status=self.held_out)]


async def work(
    activities: ScriptedActivities, parameters: RepairParameters | None = None, *, budget: Budget | None = None
) -> tuple[RepairOutcome, list[Event], RepairRun]:
    events: list[Event] = []

    async def go_on() -> bool:
        return False

    run = RepairRun(
        parameters=parameters or RepairParameters(),
        budget=budget or Budget(),
        activities=activities,
        emit=events.append,
        pause=go_on,
    )
    outcome = await run.work()
    assert outcome is not None
    return outcome, events, run


def of_kind(events: Sequence[Event], kind: type) -> list[Event]:
    return [event for event in events if isinstance(event, kind)]


async def test_critic_scoring_integration() -> None:
    """Seed 004, unit test 3: of the scores 50 and 90, the candidate with 90 is selected at once."""
    activities = ScriptedActivities(lambda number: {1: 50.0, 2: 90.0}[number])
    outcome, events, _ = await work(activities, RepairParameters(num_candidates=2, critique_threshold=85.0))
    assert outcome.final_candidate_id == "cand-2"
    assert outcome.is_accepted
    reflections = of_kind(events, ReflectionStep)
    assert [event.reflection.selected_candidate_id for event in reflections] == ["cand-2"]  # type: ignore[attr-defined]
    assert not of_kind(events, VoteStep)


async def test_reflection_loop_termination() -> None:
    """Seed 004, unit test 4: the second round is better by 2 points only, so the search halts there with a warning."""
    activities = ScriptedActivities(lambda number: 60.0 if number <= 2 else 62.0)
    outcome, events, run = await work(
        activities, RepairParameters(num_candidates=2, max_reflection_depth=3, min_improvement_delta=5.0)
    )
    assert [order.number for order in activities.orders if order.previous] == [3, 4, 5, 6]
    assert len(activities.orders) == 6
    assert len(of_kind(events, ReflectionStep)) == len(run.rounds) == 2
    assert not outcome.is_accepted
    assert any("of round 2 rose by less than min_improvement_delta = 5" in warning for warning in outcome.warnings)


@pytest.mark.parametrize(
    ("why", "activities"),
    [
        ("its depth is reached", ScriptedActivities(lambda number: 40.0 + number)),
        ("all show the same", ScriptedActivities(evidence_of=lambda _: "always the same")),
        ("no score rises", ScriptedActivities(lambda _: 40.0)),
    ],
)
async def test_a_beam_with_nothing_to_refine_makes_the_rest_of_its_candidates_from_the_original(
    why: str, activities: ScriptedActivities
) -> None:
    parameters = RepairParameters(num_candidates=2, max_reflection_depth=2, max_candidates=40, patience=1000)
    outcome, _, run = await work(activities, parameters)
    assert len(activities.orders) == 40, why
    assert sum(order.previous is None for order in activities.orders) > 4
    assert sum(len(one.candidate_ids) for one in run.rounds) == 40
    assert any("Maximum search budget reached" in warning for warning in outcome.warnings)


async def test_a_beam_refines_again_what_it_made_anew() -> None:
    activities = ScriptedActivities(lambda number: 40.0 + number)
    parameters = RepairParameters(num_candidates=1, beam_width=1, max_reflection_depth=2, max_candidates=6)
    outcome, _, _ = await work(activities, parameters)
    assert [order.parent_id for order in activities.orders] == ["", "cand-1", "", "cand-3", "", "cand-5"]
    assert any("Max reflection depth reached" in warning for warning in outcome.warnings)


async def test_a_beam_of_five_by_three_rounds_makes_25_candidates() -> None:
    activities = ScriptedActivities(lambda number: 40.0 + 1.5 * number)
    outcome, _, run = await work(activities, RepairParameters(patience=100, max_candidates=25))
    assert len(activities.orders) == 25
    assert len(run.rounds) == 3
    assert outcome.finish_reason is FinishReason.MAX_ITERATIONS


@pytest.mark.parametrize("search", list(RepairSearch))
@pytest.mark.parametrize("most", [1, 3, 7, 25])
async def test_no_search_makes_more_candidates_than_it_may(search: RepairSearch, most: int) -> None:
    activities = ScriptedActivities()
    parameters = RepairParameters(search=search, max_candidates=most, patience=1000)
    await work(activities, parameters)
    assert 1 <= len(activities.orders) <= most


@pytest.mark.parametrize("search", list(RepairSearch))
async def test_a_model_that_repeats_itself_does_not_end_the_search(search: RepairSearch) -> None:
    activities = ScriptedActivities(
        lambda number: 100.0 if number == 20 else 40.0,
        code_of=lambda number: str(number if number == 20 else number % 2),
        evidence_of=lambda _: "always the same",
    )
    parameters = RepairParameters(search=search, max_candidates=25, patience=1000)
    outcome, _, _ = await work(activities, parameters)
    assert outcome.is_accepted
    assert len(activities.orders) <= 25


async def test_a_winner_of_which_nothing_could_be_run_says_so() -> None:
    class Unable(ScriptedActivities):
        async def judge(self, candidate: RepairCandidate) -> Critique:
            found = await super().judge(candidate)
            unknown = replace(found.reports[0], status=CheckStatus.UNKNOWN)
            return replace(found, verdict=CandidateVerdict.UNKNOWN, is_solution=False, reports=[unknown])

    outcome, events, run = await work(Unable(), RepairParameters(max_reflection_depth=1))
    assert outcome.patch
    assert not outcome.is_accepted
    assert {outcome.verification, *(one.verification for one in outcome.ranking)} == {Verification.NONE}
    assert of_kind(events, ValidationStep)[-1].verification is Verification.NONE  # type: ignore[attr-defined]
    assert run.summarize(FinishReason.CANCELLED).verification is Verification.NONE


async def test_held_out_checks_that_could_not_be_run_do_not_count_as_run() -> None:
    outcome, _, _ = await work(ScriptedActivities(lambda _: 100.0, held_out=CheckStatus.UNKNOWN))
    assert not outcome.is_accepted
    assert outcome.verification is Verification.VISIBLE_ONLY


@pytest.mark.parametrize("search", list(RepairSearch))
async def test_every_search_ends_at_a_candidate_that_passes(search: RepairSearch) -> None:
    activities = ScriptedActivities(lambda number: 100.0 if number == 4 else 40.0)
    parameters = RepairParameters(search=search, max_candidates=25, patience=1000)
    outcome, _, _ = await work(activities, parameters)
    assert outcome.is_accepted
    assert outcome.finish_reason is FinishReason.ANSWERED
    assert outcome.patch == "diff 4"


async def test_without_early_termination_the_budget_is_spent_and_a_vote_decides() -> None:
    activities = ScriptedActivities(
        lambda _: 100.0, evidence_of=lambda number: "a" if number in {2, 3} else str(number)
    )
    parameters = RepairParameters(search=RepairSearch.BEST_OF_N, max_candidates=10, enable_early_terminate=False)
    outcome, events, _ = await work(activities, parameters)
    assert len(activities.orders) == 10
    assert len(of_kind(events, VoteStep)) == 1
    assert outcome.final_candidate_id == "cand-2"
    assert outcome.vote is not None
    assert outcome.vote.votes[0].cluster_size == 2


async def test_equal_code_is_judged_once_and_said_to_be_a_duplicate() -> None:
    activities = ScriptedActivities(code_of=lambda number: "x" if number <= 3 else str(number))
    _, events, _ = await work(activities, RepairParameters(max_candidates=5))
    candidates = of_kind(events, CandidateStep)
    statuses = [event.status for event in candidates]  # type: ignore[attr-defined]
    assert statuses == [
        CandidateStatus.PROPOSED,
        CandidateStatus.DUPLICATE,
        CandidateStatus.DUPLICATE,
        CandidateStatus.PROPOSED,
        CandidateStatus.PROPOSED,
    ]
    assert activities.judged == ["cand-1", "cand-4", "cand-5"]


async def test_an_unusable_reply_is_quoted_back_and_no_check_runs() -> None:
    activities = ScriptedActivities(
        lambda number: 50.0 + number,
        code_of=lambda number: "" if number <= 2 else str(number),
    )
    parameters = RepairParameters(num_candidates=2, beam_width=2, max_reflection_depth=2)
    _, events, _ = await work(activities, parameters)
    first = of_kind(events, CandidateStep)[0]
    assert first.status is CandidateStatus.INVALID  # type: ignore[attr-defined]
    assert "cand-1" not in activities.judged
    later = [order for order in activities.orders if order.previous is not None]
    assert later[0].previous is not None
    assert later[0].previous.evidence == "it holds no edit"


async def test_the_same_evidence_is_not_reflected_on_twice() -> None:
    activities = ScriptedActivities(evidence_of=lambda _: "the same failure")
    await work(activities, RepairParameters(patience=100))
    # The first round, then one of the two best candidates, whose children show the same again; the rest is made anew.
    assert len(activities.orders) == 25
    assert len({order.parent_id for order in activities.orders}) == 2
    assert sum(bool(order.parent_id) for order in activities.orders) == 5


async def test_the_first_sample_of_a_round_is_cool_and_the_others_are_spread() -> None:
    activities = ScriptedActivities()
    await work(activities, RepairParameters(max_candidates=5, temperature=0.2, spread_temperature=0.8))
    assert [order.temperature for order in activities.orders] == [0.2, 0.8, 0.8, 0.8, 0.8]


async def test_events_are_in_order_whichever_call_ends_first() -> None:
    quick = ScriptedActivities()
    slow = ScriptedActivities(delay_of=lambda number: 0.01 * (10 - number % 10))
    parameters = RepairParameters(patience=100)
    assert (await work(quick, parameters))[1] == (await work(slow, parameters))[1]


async def test_prompts_are_the_same_whichever_call_ends_first() -> None:
    asked = []
    for delay_of in (lambda _: 0.0, lambda number: 0.002 * (30 - number)):
        # Two candidates are refined side by side, and of both some replies cannot be used.
        activities = ScriptedActivities(
            code_of=lambda number: "" if number in {7, 9, 14} else str(number),
            problem_of=lambda number: f"reply {number} holds no edit",
            delay_of=delay_of,
        )
        await work(activities, RepairParameters(patience=100))
        asked.append({order.number: order.unread for order in activities.orders})
    assert asked[0] == asked[1]
    assert len(set(asked[0].values())) > 1


async def test_a_patch_that_does_not_apply_gives_way_to_the_next_one() -> None:
    activities = ScriptedActivities(lambda _: 100.0, invalid_patches=["cand-1"])
    outcome, events, _ = await work(activities, RepairParameters(num_candidates=3, max_reflection_depth=1))
    assert outcome.final_candidate_id == "cand-2"
    assert any(
        warning.startswith("Second-best candidate chosen due to patch validation") for warning in outcome.warnings
    )
    validations = of_kind(events, ValidationStep)
    assert [event.is_valid for event in validations] == [False, True]  # type: ignore[attr-defined]


async def test_the_ranked_patches_fit_into_one_message() -> None:
    activities = ScriptedActivities(lambda number: 90.0 + number, code_of=lambda number: str(number) * 1_000_000)
    parameters = RepairParameters(num_candidates=5, max_reflection_depth=1, enable_early_terminate=False)
    outcome, _, _ = await work(activities, parameters)
    assert outcome.patch.startswith("diff ")
    assert outcome.ranking[0].patch == outcome.patch
    assert sum(len(each.patch) for each in outcome.ranking) + len(outcome.patch) < 4 * 1024 * 1024


async def test_held_out_checks_judge_the_winner_once() -> None:
    activities = ScriptedActivities(lambda _: 100.0, held_out=CheckStatus.PASSED)
    outcome, _, _ = await work(activities)
    assert activities.held_out_of == [outcome.final_candidate_id]
    assert outcome.verification is Verification.HELD_OUT
    assert outcome.is_accepted


async def test_a_winner_that_fails_held_out_checks_is_returned_and_not_accepted() -> None:
    activities = ScriptedActivities(lambda _: 100.0, held_out=CheckStatus.FAILED)
    outcome, _, _ = await work(activities)
    assert outcome.patch
    assert not outcome.is_accepted
    assert outcome.verification is Verification.HELD_OUT
    assert any("fails held-out ones (hidden)" in warning for warning in outcome.warnings)


async def test_held_out_checks_are_not_run_for_a_candidate_that_fails_the_visible_ones() -> None:
    activities = ScriptedActivities(held_out=CheckStatus.PASSED)
    outcome, _, _ = await work(activities, RepairParameters(max_reflection_depth=1))
    assert activities.held_out_of == []
    assert outcome.verification is Verification.VISIBLE_ONLY
    assert not outcome.is_accepted


async def test_one_failed_call_leaves_the_others() -> None:
    activities = ScriptedActivities(lambda number: 100.0 if number == 3 else 40.0, failing=[1, 2])
    outcome, events, _ = await work(activities)
    assert outcome.final_candidate_id == "cand-3"
    assert len(of_kind(events, CandidateStep)) == 3


async def test_a_model_that_always_fails_fails_the_repair() -> None:
    with pytest.raises(ModelFailedError):
        await work(ScriptedActivities(failing=range(1, 1000)))


async def test_tokens_are_reserved_before_a_round() -> None:
    activities = ScriptedActivities()
    _, _, run = await work(activities, RepairParameters(patience=100), budget=Budget(max_total_tokens=350))
    assert len(activities.orders) == 3
    assert run.judged


async def test_a_budget_that_covers_no_candidate_is_an_error() -> None:
    with pytest.raises(TokenBudgetExhaustedError):
        await work(ScriptedActivities(), budget=Budget(max_total_tokens=50))


async def test_a_budget_of_calls_that_ends_the_search_is_said() -> None:
    outcome, _, _ = await work(ScriptedActivities(), budget=Budget(max_model_calls=2))
    assert outcome.finish_reason is FinishReason.BUDGET_EXHAUSTED
    assert outcome.final_candidate_id


async def test_the_bound_of_candidates_is_said() -> None:
    parameters = RepairParameters(search=RepairSearch.BEST_OF_N, max_candidates=5, patience=100)
    outcome, _, _ = await work(ScriptedActivities(), parameters)
    assert any(warning.startswith("Maximum search budget reached") for warning in outcome.warnings)


async def test_candidates_without_a_new_behaviour_end_the_search() -> None:
    parameters = RepairParameters(search=RepairSearch.BEST_OF_N, max_candidates=1000, patience=3, num_candidates=2)
    outcome, _, _ = await work(ScriptedActivities(evidence_of=lambda _: "same"), parameters)
    assert any(warning.startswith("Candidates too similar; aborting") for warning in outcome.warnings)


@pytest.mark.parametrize("search", list(RepairSearch))
async def test_a_model_that_repeats_itself_is_paid_a_few_times_at_the_defaults(search: RepairSearch) -> None:
    activities = ScriptedActivities(code_of=lambda _: "same")
    outcome, _, _ = await work(activities, RepairParameters(search=search))
    assert len(activities.orders) <= 15
    assert any(warning.startswith("Candidates too similar; aborting") for warning in outcome.warnings)


async def test_replies_that_cannot_be_used_end_the_search_and_the_last_reason_is_told() -> None:
    activities = ScriptedActivities(code_of=lambda _: "")
    outcome, _, _ = await work(activities, RepairParameters(search=RepairSearch.BEST_OF_N))
    assert len(activities.orders) == 10
    assert "10 of 10 replies could not be used. The last one: it holds no edit" in outcome.warnings
    assert [order.unread for order in activities.orders] == [""] * 5 + ["it holds no edit"] * 5


async def test_further_candidates_of_a_reply_are_judged_and_cost_no_call() -> None:
    class Several(ScriptedActivities):
        async def generate(self, order: CandidateOrder) -> RepairCandidate:
            first = await super().generate(order)
            other = replace(first, candidate_id=f"{order.candidate_id}.2", number=100, key="other", usage=Usage())
            return replace(first, others=[other])

    activities = Several(lambda number: 100.0 if number == 100 else 40.0)
    outcome, _, _ = await work(activities, RepairParameters(search=RepairSearch.GREEDY))
    assert (outcome.final_candidate_id, len(activities.orders)) == ("cand-1.2", 1)
    assert outcome.is_accepted


@pytest.mark.parametrize("search", list(RepairSearch))
async def test_with_a_first_wave_of_one_an_easy_fix_costs_one_call(search: RepairSearch) -> None:
    activities = ScriptedActivities(lambda _: 100.0)
    outcome, _, _ = await work(activities, RepairParameters(search=search, first_candidates=1))
    assert (outcome.is_accepted, len(activities.orders)) == (True, 1)


@pytest.mark.parametrize("search", [RepairSearch.REFINE_BEAM, RepairSearch.BEST_OF_N])
async def test_after_a_first_wave_that_failed_the_rest_of_the_round_is_asked_for(search: RepairSearch) -> None:
    activities = ScriptedActivities(
        lambda number: 100.0 if number == 5 else 40.0 + number, code_of=lambda number: str(number) if number > 1 else ""
    )
    outcome, _, run = await work(activities, RepairParameters(search=search, first_candidates=1))
    assert (outcome.final_candidate_id, len(activities.orders)) == ("cand-5", 5)
    assert [len(one.candidate_ids) for one in run.rounds] == [1, 4]
    assert [order.parent_id for order in activities.orders] == [""] * 5
    assert [order.unread for order in activities.orders] == ["", *["it holds no edit"] * 4]


async def test_a_divided_first_round_leaves_the_later_ones_as_they_are() -> None:
    whole, divided = ScriptedActivities(lambda number: 40.0 + number), ScriptedActivities(lambda number: 40.0 + number)
    await work(whole, RepairParameters(max_candidates=25))
    await work(divided, RepairParameters(max_candidates=25, first_candidates=2))
    assert [order.parent_id for order in divided.orders] == [order.parent_id for order in whole.orders]


async def test_lines_that_could_mislead_checks_are_told_with_the_patch() -> None:
    class Suspect(ScriptedActivities):
        async def judge(self, candidate: RepairCandidate) -> Critique:
            critique = await super().judge(candidate)
            found = Finding(
                rule_id="tampering.arguments", severity=Severity.MEDIUM, path="a.py", line=3, message="uses sys.argv"
            )
            return replace(critique, findings=[found])

    outcome, _, _ = await work(Suspect(lambda _: 97.5))
    assert outcome.is_accepted
    assert any("Needs review: 1 lines" in warning and "a.py:3 uses sys.argv" in warning for warning in outcome.warnings)


async def test_a_patch_that_only_a_finding_keeps_out_says_which() -> None:
    class Refused(ScriptedActivities):
        async def judge(self, candidate: RepairCandidate) -> Critique:
            critique = await super().judge(candidate)
            found = Finding(rule_id="tampering.exit", severity=Severity.HIGH, path="a.py", line=3, message="uses _exit")
            reports = [replace(report, status=CheckStatus.PASSED) for report in critique.reports]
            return replace(critique, findings=[found], reports=reports, is_solution=False)

    outcome, _, _ = await work(Refused(lambda _: 84.0), RepairParameters(search=RepairSearch.GREEDY, max_candidates=2))
    assert not outcome.is_accepted
    assert [one.line for one in outcome.suspect_lines] == [3]
    assert any(
        "although it passes every check" in each and "a.py:3 uses _exit (exit)" in each for each in outcome.warnings
    )


async def test_a_test_that_fails_with_every_candidate_is_named_where_all_others_were_mended() -> None:
    class Unrelated(ScriptedActivities):
        async def measure_baseline(self) -> Baseline:
            tests = dict.fromkeys(("a", "b", "network"), TestOutcome.FAILED)
            return Baseline(outcomes={"tests": replace(REPRODUCE, tests=tests)})

        async def judge(self, candidate: RepairCandidate) -> Critique:
            critique = await super().judge(candidate)
            failed = ["network"] if candidate.number == 3 else ["a", "network"]
            report = replace(critique.reports[0], failed=failed, total=3)
            return replace(critique, reports=[report])

    parameters = RepairParameters(search=RepairSearch.GREEDY, max_candidates=4)
    outcome, _, _ = await work(Unrelated(lambda number: 40.0 + number), parameters)
    (told,) = [each for each in outcome.warnings if "1 tests failed with every candidate" in each]
    assert "(tests: network)" in told
    outcome, _, _ = await work(ScriptedActivities(lambda number: 40.0 + number), parameters)
    assert not any("failed with every candidate" in each for each in outcome.warnings)


async def test_the_result_names_the_models_that_answered() -> None:
    class Preferring(ScriptedActivities):
        async def generate(self, order: CandidateOrder) -> RepairCandidate:
            return replace(await super().generate(order), model="first" if order.number < 3 else "second")

    parameters = RepairParameters(search=RepairSearch.GREEDY, max_candidates=4)
    for score, wanted in ((40.0, "first, second"), (100.0, "first")):
        outcome, _, run = await work(Preferring({40.0: give_score, 100.0: lambda _: 100.0}[score]), parameters)
        assert outcome.model == wanted
        assert run.summarize(FinishReason.CANCELLED).model == wanted


async def test_identical_replies_end_a_repair_at_the_defaults_and_are_told() -> None:
    same = ScriptedActivities(lambda _: 40.0, code_of=lambda _: "same", evidence_of=lambda _: "one failure")
    outcome, _, _ = await work(same)
    assert len(same.orders) <= 15
    assert any("Candidates too similar" in warning for warning in outcome.warnings)
    alike = ScriptedActivities(lambda _: 40.0, evidence_of=lambda _: "one failure")
    outcome, _, _ = await work(alike)
    assert len(alike.orders) <= 20
    assert any("Candidates too similar" in warning for warning in outcome.warnings)


@pytest.mark.parametrize("search", list(RepairSearch))
async def test_replies_that_cannot_be_read_end_a_repair_early_and_the_last_reason_is_told(search: RepairSearch) -> None:
    unread = ScriptedActivities(code_of=lambda _: "")
    outcome, _, _ = await work(unread, RepairParameters(search=search))
    assert len(unread.orders) <= 15
    assert any("could not be used" in each and "it holds no edit" in each for each in outcome.warnings)


async def test_notes_tell_later_rounds_what_earlier_candidates_changed_and_how_they_failed() -> None:
    activities = ScriptedActivities(lambda number: 40.0 + number % 5)
    parameters = RepairParameters(search=RepairSearch.BEST_OF_N, max_candidates=10, take_notes=True)
    await work(activities, parameters)
    assert [bool(order.notes) for order in activities.orders] == [False] * 5 + [True] * 5
    lines = activities.orders[-1].notes.splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("- score 44: ")
    assert "fails tests failed" in lines[0]
    plain = ScriptedActivities(lambda number: 40.0 + number % 5)
    await work(plain, replace(parameters, take_notes=False))
    assert not any(order.notes for order in plain.orders)


async def test_in_a_tournament_the_best_of_all_rounds_are_refined_beside_new_candidates() -> None:
    activities = ScriptedActivities(lambda number: {1: 70.0, 7: 60.0}.get(number, 20.0 + number / 100))
    await work(activities, RepairParameters(search=RepairSearch.TOURNAMENT, max_candidates=20, patience=100, seed=3))
    by_round = [activities.orders[place : place + 5] for place in range(0, 20, 5)]
    assert [order.parent_id for order in by_round[0]] == [""] * 5
    assert {order.parent_id for order in by_round[1]} >= {"", "cand-1"}
    assert all(order.notes for order in by_round[1])
    # The best one is refined twice and leaves then; the others come from later rounds as well.
    refined = [order.parent_id for order in activities.orders if order.parent_id]
    assert {order.parent_id for order in by_round[2]} >= {"", "cand-1"}
    assert "cand-1" not in {order.parent_id for order in by_round[3]}
    assert len(set(refined)) > 2


async def test_the_baseline_is_the_first_event() -> None:
    _, events, _ = await work(ScriptedActivities(lambda _: 100.0), RepairParameters(num_candidates=1))
    assert isinstance(events[0], BaselineStep)
    assert events[0].is_reproduced


async def test_checks_are_reserved_before_they_run() -> None:
    activities = ScriptedActivities()
    # Two runs are gone with the baseline, and each candidate may need two.
    parameters = RepairParameters(search=RepairSearch.BEST_OF_N, num_candidates=1, max_checks=5)
    outcome, _, _ = await work(activities, parameters)
    assert len(activities.judged) == 2
    assert outcome.finish_reason is FinishReason.MAX_ITERATIONS
    reached = "no candidate was accepted within max_checks = 5 (2 taken; the rest does not cover another candidate)"
    assert any(reached in warning for warning in outcome.warnings)


async def test_a_check_that_was_run_once_more_counts_twice() -> None:
    activities = ScriptedActivities(repeats=1)
    await work(activities, RepairParameters(search=RepairSearch.BEST_OF_N, num_candidates=1, max_checks=8))
    assert len(activities.judged) == 3


async def test_the_held_out_checks_of_the_winner_are_reserved_before_the_search() -> None:
    class Hiding(ScriptedActivities):
        async def measure_baseline(self) -> Baseline:
            hidden = [replace(REPRODUCE, name=name, role=CheckRole.HELD_OUT) for name in ("hidden", "secret")]
            return Baseline(outcomes={each.name: each for each in [REPRODUCE, *hidden]})

    activities = Hiding(lambda _: 100.0, held_out=CheckStatus.PASSED)
    parameters = RepairParameters(
        search=RepairSearch.BEST_OF_N, num_candidates=1, max_checks=8, enable_early_terminate=False
    )
    outcome, _, _ = await work(activities, parameters)
    assert outcome.is_accepted
    assert activities.checks_run + len(activities.judged) + 2 * len(activities.held_out_of) <= 8


async def test_the_processor_time_of_checks_is_reserved_before_they_run() -> None:
    activities = ScriptedActivities()
    # 1 s is gone with the baseline; each candidate may need 1 s, and takes half a second.
    parameters = RepairParameters(search=RepairSearch.BEST_OF_N, num_candidates=1, max_check_cpu_s=3.0)
    outcome, _, _ = await work(activities, parameters)
    assert len(activities.judged) == 3
    assert any("within max_check_cpu_s = 3 (1 taken" in warning for warning in outcome.warnings)


@pytest.mark.parametrize("rounds", [2, 3])
async def test_critics_that_disagree_with_the_tests_for_more_than_two_rounds_ask_for_a_review(rounds: int) -> None:
    class Disputing(ScriptedActivities):
        async def judge(self, candidate: RepairCandidate) -> Critique:
            found = await super().judge(candidate)
            return replace(found, is_solution=False, findings=[OBJECTION])

    parameters = RepairParameters(search=RepairSearch.BEST_OF_N, num_candidates=1, max_candidates=rounds)
    outcome, _, _ = await work(Disputing(lambda _: 100.0), parameters)
    assert not outcome.is_accepted
    assert (REVIEW_WARNING in outcome.warnings) is (rounds > 2)
