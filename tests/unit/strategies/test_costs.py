"""The declared cost of a strategy holds: the model calls of real runs match the formula for any legal configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reasond_server.strategies.best_of_n import BestOfN
from reasond_server.strategies.best_of_n.contest import COMPARISON
from reasond_server.strategies.bounded_context import BoundedContext
from reasond_server.strategies.chain_of_thought import ChainOfThought
from reasond_server.strategies.chain_of_verification import ChainOfVerification
from reasond_server.strategies.plan_and_solve import PlanAndSolve
from reasond_server.strategies.program_of_thought import ProgramOfThought
from reasond_server.strategies.react import React
from reasond_server.strategies.self_aggregation import SelfAggregation
from reasond_server.strategies.self_consistency import SelfConsistency
from reasond_server.strategies.self_refine import SelfRefine
from reasond_server.strategies.strategy import Outcome, ReasoningStrategy
from reasond_server.strategies.tree_of_thought import TreeOfThought
from reasond_server.testing import FunctionPrograms
from reasond_server.testing.strategies import reply_at_length, reply_by_request
from reasond_server.testing.strategy_probe import NotingModel, Probe, Ran
from reasond_server.tools.programs import NO_PROGRAMS, ProgramResult, ProgramRunner
from reasond_server.types import BestOfNMetrics, BoundedContextMetrics, ChainOfVerificationMetrics, StageStep, Task

Replier = Callable[[Any], Any]
REPLIERS: dict[str, Replier] = {
    "answering": lambda _: "So. <answer>42</answer>",
    "reply_by_request": reply_by_request,
    "reply_at_length": reply_at_length,
}
QUICK = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
MATERIAL = "The wall has four gates.\n\nThe river runs north of it.\n\n" * 60
replies = st.sampled_from(sorted(REPLIERS))


async def ran(
    strategy: ReasoningStrategy[Any],
    reply: str,
    *,
    material: str = "",
    programs: ProgramRunner = NO_PROGRAMS,
    **config: Any,
) -> tuple[NotingModel, Ran]:
    model = NotingModel(REPLIERS[reply])
    checked = strategy.config_type.model_validate(config)
    task = Task(query="What is six times seven?", material=material)
    done = await Probe(strategy, config=checked, task=task, programs=programs).run(model)
    assert isinstance(done.outcome, Outcome), done.error
    return model, done


@QUICK
@given(reply=replies, most=st.integers(100, 3000))
async def test_chain_of_thought_makes_one_call(reply: str, most: int) -> None:
    model, _ = await ran(ChainOfThought(), reply, max_tokens=most)
    assert len(model.requests) == 1
    assert model.requests[0].max_tokens <= most


@QUICK
@given(reply=replies, most=st.integers(1, 8))
async def test_react_makes_at_most_max_iterations_calls(reply: str, most: int) -> None:
    model, _ = await ran(React(), reply, max_iterations=most, max_tokens_per_step=100)
    assert 1 <= len(model.requests) <= most


def reply_with_questions(request: Any) -> str:
    """Return three questions if questions are asked for, else an answer."""
    is_asked = "short questions" in request.messages[-1].content
    return "Question 1: One?\nQuestion 2: Two?\nQuestion 3: Three?" if is_asked else "So. <answer>42</answer>"


REPLIERS["reply_with_questions"] = reply_with_questions


@QUICK
@given(reply=st.sampled_from(sorted(REPLIERS)), most=st.integers(1, 5))
async def test_chain_of_verification_makes_three_calls_and_one_for_each_question(reply: str, most: int) -> None:
    model, done = await ran(ChainOfVerification(), reply, max_questions=most, max_tokens=300, max_check_tokens=100)
    assert 1 <= len(model.requests) <= most + 3
    metrics = done.steps[-1].metrics
    assert isinstance(metrics, ChainOfVerificationMetrics)
    if reply == "reply_with_questions":
        assert (metrics.questions, len(model.requests)) == (min(most, 3), min(most, 3) + 3)


@QUICK
@given(reply=replies, plan=st.integers(100, 900), most=st.integers(100, 3000))
async def test_plan_and_solve_makes_one_call_for_the_plan_and_one_for_the_solution(
    reply: str, plan: int, most: int
) -> None:
    model, _ = await ran(PlanAndSolve(), reply, max_plan_tokens=plan, max_tokens=most)
    assert [request.max_tokens for request in model.requests] == [plan, most]


@QUICK
@given(most=st.integers(1, 5), failing=st.integers(0, 6))
async def test_program_of_thought_makes_one_call_and_one_run_for_each_program_until_one_succeeds(
    most: int, failing: int
) -> None:
    REPLIERS["program"] = lambda _: "```python\nprint(42)\n```"
    ended = iter([*[ProgramResult(output="", exit_code=1)] * failing, *[ProgramResult(output="42")] * 9])
    programs = FunctionPrograms(lambda _: next(ended))
    model, _ = await ran(ProgramOfThought(), "program", programs=programs, max_attempts=most, max_tokens=100)
    assert len(model.requests) == len(programs.sources) == min(failing + 1, most)
    assert all(request.max_tokens == 100 for request in model.requests)


@QUICK
@given(reply=replies, chains=st.integers(2, 12), group=st.integers(1, 8), rounds=st.integers(1, 4))
async def test_self_aggregation_makes_whole_rounds_until_one_agrees(
    reply: str, chains: int, group: int, rounds: int
) -> None:
    model, _ = await ran(SelfAggregation(), reply, chains=chains, group=group, rounds=rounds)
    assert len(model.requests) % chains == 0
    assert chains <= len(model.requests) <= chains * rounds
    assert reply != "answering" or len(model.requests) == chains


@QUICK
@given(reply=replies, samples=st.integers(1, 12))
async def test_self_consistency_makes_between_a_majority_and_all_of_its_samples(reply: str, samples: int) -> None:
    model, _ = await ran(SelfConsistency(), reply, samples=samples, max_tokens=100)
    assert (samples + 1) // 2 <= len(model.requests) <= samples


@QUICK
@given(reply=replies, samples=st.integers(1, 12), least=st.sampled_from([0.0, 0.5]))
async def test_best_of_n_makes_a_call_for_each_sample_and_at_most_one_more_to_judge_it(
    reply: str, samples: int, least: float
) -> None:
    model, done = await ran(BestOfN(), reply, samples=samples, max_tokens=100, max_judge_tokens=100, min_score=least)
    assert samples <= len(model.requests) <= 2 * samples
    answers = {step.detail.answer for step in done.steps if isinstance(step.detail, StageStep)}
    if len(answers) == 1 and not least:
        assert len(model.requests) == samples


@QUICK
@given(reply=replies, samples=st.integers(1, 12))
async def test_a_tournament_makes_two_more_calls_for_each_match_with_one_of_the_two_best(
    reply: str, samples: int
) -> None:
    config: dict[str, Any] = {"samples": samples, "max_tokens": 100, "max_judge_tokens": 100, "judge": "tournament"}
    model, done = await ran(BestOfN(), reply, **config)
    compared = sum(isinstance(each.detail, StageStep) and each.detail.stage == COMPARISON for each in done.steps)
    assert done.outcome is not None
    assert isinstance(done.outcome.metrics, BestOfNMetrics)
    answers = len(done.outcome.metrics.answers)
    assert compared == (4 * answers - 6 if answers > 1 else 0)
    assert len(model.requests) <= 2 * samples + compared


@QUICK
@given(reply=replies, rounds=st.integers(1, 6))
async def test_self_refine_makes_one_call_for_the_draft_and_at_most_two_for_each_round(reply: str, rounds: int) -> None:
    model, done = await ran(SelfRefine(), reply, max_rounds=rounds, max_tokens=100, max_critique_tokens=100)
    assert 1 <= len(model.requests) <= 1 + 2 * rounds
    assert len(model.requests) == len(done.steps)


@QUICK
@given(
    reply=replies,
    depth=st.integers(1, 4),
    branching=st.integers(1, 4),
    width=st.integers(1, 3),
    most=st.integers(4, 40),
    evaluator=st.sampled_from(["value", "vote"]),
    search=st.sampled_from(["beam", "best_first"]),
)
async def test_tree_of_thought_makes_no_more_calls_than_its_formula(
    reply: str, depth: int, branching: int, width: int, most: int, evaluator: str, search: str
) -> None:
    model, _ = await ran(
        TreeOfThought(),
        reply,
        max_depth=depth,
        branching=branching,
        beam_width=width,
        max_model_calls=most,
        evaluator=evaluator,
        search=search,
        max_tokens_per_thought=64,
    )
    each = 2 if evaluator == "vote" else 1 + branching
    bound = most if search == "best_first" else min(most, (1 + (depth - 1) * width) * each + 1)
    assert 1 <= len(model.requests) <= bound


@QUICK
@given(reply=replies, mode=st.sampled_from(["hybrid", "summary", "tail"]), most=st.integers(1, 4))
async def test_bounded_context_makes_one_call_for_each_window_and_at_most_one_more_for_its_carryover(
    reply: str, mode: str, most: int
) -> None:
    config: dict[str, Any] = {"chunk_size": 1024, "carryover_size": 512, "max_iterations": most, "carryover_mode": mode}
    model, done = await ran(BoundedContext(), reply, material=MATERIAL, **config)
    windows = len(done.steps)
    assert windows <= len(model.requests) <= (1 if mode == "tail" else 2) * windows
    metrics = done.steps[-1].metrics
    assert isinstance(metrics, BoundedContextMetrics)
    prompt = (metrics.capacity_tokens - metrics.effective_capacity_tokens) / most
    # Such a small window reserves no tokens for a summary.
    assert windows <= most + 1 + 2 * model.counter.count_text(MATERIAL) / (1024 * 7 / 8 - 512 - prompt)
