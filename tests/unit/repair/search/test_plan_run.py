"""Plans: what their form says of them, and how judges rank them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reasond_server.errors.model import ModelFailedError
from reasond_server.repair.search.activities import RepairCandidate
from reasond_server.repair.search.plan_run import PlanRun, criticize_plan
from reasond_server.repair.search.repair_policy import RepairParameters
from reasond_server.types import Budget, FinishReason
from reasond_server.types.repairs import Verification

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.repair.search.activities import CandidateOrder
    from reasond_server.repair.search.repair_run import RepairOutcome
    from reasond_server.types import Event

GOOD = "1. Install Fastify with `npm install fastify`\n2. Implement the Redis client in src/session.js\n3. Add tests"
OTHER = "1. Write server.js with the routes\n2. Keep sessions in Redis for an hour"
VAGUE = "We should think about it."


class ScriptedPlanner:
    """Writes the `plans` in order; its judges give `scores`."""

    def __init__(
        self, plans: Sequence[str | Exception], scores: Sequence[float | None] | Mapping[str, float] = ()
    ) -> None:
        self.plans = plans
        self.scores = scores
        self.judges = 0
        self.orders: list[CandidateOrder] = []

    async def prepare_plan(self) -> None:
        return

    async def write_plan(self, order: CandidateOrder) -> RepairCandidate:
        self.orders.append(order)
        plan = self.plans[min(order.number, len(self.plans)) - 1]
        if isinstance(plan, Exception):
            raise plan
        return RepairCandidate(
            candidate_id=order.candidate_id,
            number=order.number,
            parent_id=order.parent_id,
            depth=order.depth,
            changes={},
            diff=plan,
        )

    async def score_plans(self, judge: int, plans: Sequence[str]) -> Sequence[float | None]:
        self.judges = max(self.judges, judge)
        if isinstance(self.scores, dict):
            return [self.scores[plan] for plan in plans]
        return [*self.scores, *[None] * len(plans)][: len(plans)]


async def plan_with(
    planner: ScriptedPlanner, *, budget: Budget | None = None, candidates: int = 0
) -> tuple[RepairOutcome, list[Event], PlanRun]:
    events: list[Event] = []

    async def go_on() -> bool:
        return False

    run = PlanRun(
        parameters=RepairParameters(num_candidates=candidates or len(planner.plans)),
        budget=budget or Budget(),
        activities=planner,
        emit=events.append,
        pause=go_on,
    )
    outcome = await run.work()
    assert outcome is not None
    return outcome, events, run


async def test_architectural_decision_workflow() -> None:
    """Seed 004, integration test 2: a plan in steps, accepted, in one iteration; and it says that nothing was run."""
    outcome, _, run = await plan_with(ScriptedPlanner([GOOD]))
    assert outcome.patch == GOOD
    assert outcome.final_candidate_id == "cand-1"
    assert outcome.is_accepted
    assert outcome.verification is Verification.NONE
    assert len(run.rounds) == 1
    assert any("Nothing of a plan is run" in warning for warning in outcome.warnings)


async def test_the_judges_choose_among_sound_plans() -> None:
    outcome, _, _ = await plan_with(ScriptedPlanner([GOOD, OTHER], scores=[0.4, 0.9]))
    assert outcome.patch == OTHER


async def test_a_plan_without_steps_does_not_win_by_the_judges_alone() -> None:
    outcome, _, _ = await plan_with(ScriptedPlanner([VAGUE, GOOD], scores=[0.8, 0.7]))
    assert outcome.patch == GOOD


async def test_a_plan_that_every_judge_gives_nothing_is_returned_and_not_accepted() -> None:
    outcome, _, _ = await plan_with(ScriptedPlanner([GOOD, OTHER], scores=[0.0, 0.0]))
    assert not outcome.is_accepted
    assert any("gave it 0 (3)" in warning for warning in outcome.warnings)


async def test_a_plan_below_the_threshold_is_refined_with_what_is_known_against_it() -> None:
    better = f"{OTHER} and no longer"
    planner = ScriptedPlanner([OTHER, VAGUE, GOOD, better], {OTHER: 0.6, VAGUE: 0.5, GOOD: 0.7, better: 0.9})
    outcome, _, run = await plan_with(planner, candidates=2)
    assert outcome.is_accepted
    assert outcome.patch == better
    first, second = planner.orders[2:]
    assert [(each.parent_id, each.depth) for each in (first, second)] == [("cand-1", 2), ("cand-2", 2)]
    assert first.previous is not None
    assert first.previous.diff == OTHER
    assert first.previous.score == pytest.approx(60)
    assert first.previous.evidence == "Judges give it 6.0 of 10."
    assert second.previous is not None
    assert "it has 0 steps in a list; Judges give it 5.0 of 10." in second.previous.evidence
    assert [len(each.candidate_ids) for each in run.rounds] == [2, 2]


async def test_a_plan_that_stays_below_the_threshold_is_returned_and_not_accepted() -> None:
    planner = ScriptedPlanner([f"{OTHER} {number}" for number in range(1, 8)], [0.8, 0.8])
    outcome, _, run = await plan_with(planner, candidates=2)
    assert not outcome.is_accepted
    assert outcome.patch.startswith(OTHER)
    assert len(run.rounds) == 3
    assert any("its score is 80, and critique_threshold asks for 85" in warning for warning in outcome.warnings)


async def test_plans_that_repeat_others_end_the_reflection() -> None:
    planner = ScriptedPlanner([OTHER, GOOD], [0.5, 0.5])
    outcome, _, run = await plan_with(planner)
    assert not outcome.is_accepted
    assert (len(planner.orders), len(run.rounds)) == (4, 1)


async def test_judges_that_cannot_be_read_leave_the_form_to_decide_and_this_is_said() -> None:
    outcome, _, _ = await plan_with(ScriptedPlanner([VAGUE, GOOD]))
    assert outcome.patch == GOOD
    assert any("No judge gave a score" in warning for warning in outcome.warnings)


async def test_a_plan_without_steps_is_returned_and_not_accepted() -> None:
    outcome, _, _ = await plan_with(ScriptedPlanner([VAGUE]))
    assert outcome.patch == VAGUE
    assert not outcome.is_accepted
    assert outcome.finish_reason is FinishReason.MAX_ITERATIONS


async def test_a_failed_call_leaves_the_other_plans() -> None:
    outcome, _, _ = await plan_with(ScriptedPlanner([ModelFailedError("broke"), GOOD], scores=[0.5]))
    assert outcome.patch == GOOD


async def test_failed_calls_alone_fail_the_plan() -> None:
    with pytest.raises(ModelFailedError):
        await plan_with(ScriptedPlanner([ModelFailedError("broke"), ModelFailedError("broke")]))


async def test_the_budget_of_calls_keeps_one_for_a_judge() -> None:
    planner = ScriptedPlanner([GOOD, OTHER, GOOD], scores=[0.5, 0.6])
    _, _, run = await plan_with(planner, budget=Budget(max_model_calls=3))
    assert len(run.judged) == 2
    assert planner.judges == 1


@pytest.mark.parametrize(
    ("plan", "rules"),
    [
        (GOOD, ["plan-short-step"]),
        (OTHER, []),
        (VAGUE, ["plan-steps"]),
        ("1. Do it\n2. Do it", ["plan-short-step", "plan-repeated-step", "plan-names-nothing"]),
        ("- Change the code of the cart in cart.py\n* Run all the tests again", []),
    ],
)
def test_the_form_of_a_plan_is_criticized(plan: str, rules: list[str]) -> None:
    assert [finding.rule_id for finding in criticize_plan(plan).findings] == rules
