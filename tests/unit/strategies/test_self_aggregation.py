"""Self-aggregation: groups, rounds, votes, and a budget that is shared out by rounds."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import ModelFailedError
from reasond_server.llm.metered_model import MeteredModel
from reasond_server.strategies.self_aggregation import AGGREGATE, CHAIN, SelfAggregation, SelfAggregationConfig
from reasond_server.strategies.strategy import Outcome, RunContext, Step
from reasond_server.testing import FunctionModel, ScriptedModel
from reasond_server.types import Budget, CustomMetrics, FinishReason, StageStep, Task

if TYPE_CHECKING:
    from reasond_server.llm.model import ChatModel, ChatRequest

NONCE = "qzkvhwbnmcjtrxplaoysdgeufiqh"


async def run(
    model: ChatModel, *, budget: Budget | None = None, **config: object
) -> tuple[list[StageStep], Outcome, dict[str, Any]]:
    task = Task(query="6 times 7?", budget=budget or Budget())
    checked = SelfAggregationConfig.model_validate(config)
    metered = MeteredModel(model=model, budget=task.budget)
    context = RunContext(config=checked, model=metered, new_nonce=lambda: NONCE)
    *steps, outcome = [event async for event in SelfAggregation().run(task, context)]
    assert isinstance(outcome, Outcome)
    assert isinstance(outcome.metrics, CustomMetrics)
    details = []
    for step in steps:
        assert isinstance(step, Step)
        assert isinstance(step.detail, StageStep)
        details.append(step.detail)
    return details, outcome, dict(outcome.metrics.data)


def shown_in(request: ChatRequest) -> list[str]:
    """Return the answers of the candidates that a call is shown."""
    return re.findall(r"Final answer: (\w+)", request.messages[-1].content)


def number_answers(request: ChatRequest) -> str:
    """Give another answer in every call."""
    return f"Hm {request.label}. <answer>{request.label.replace(' ', '_')}</answer>"


async def test_every_chain_is_shown_to_as_many_calls_of_the_next_round_as_a_group_has_chains() -> None:
    model = FunctionModel(number_answers)
    steps, _, figures = await run(model, chains=6, group=3, rounds=3)
    assert [step.stage for step in steps] == [CHAIN] * 6 + [AGGREGATE] * 12
    assert figures == {"rounds": 3, "chains": 18, "agreement": pytest.approx(1 / 6)}
    for number in (1, 2):
        before = {step.answer for step in steps[6 * (number - 1) : 6 * number]}
        groups = [shown_in(request) for request in model.requests[6 * number : 6 * (number + 1)]]
        assert all(len(set(group)) == 3 for group in groups)
        assert Counter(answer for group in groups for answer in group) == dict.fromkeys(before, 3)


async def test_a_round_that_agrees_is_the_last_and_the_majority_of_the_last_round_wins() -> None:
    answers = ["1", "2", "1", "2", "2", "2"]
    with ScriptedModel([f"So. <answer>{answer}</answer>" for answer in answers]) as model:
        _, outcome, figures = await run(model, chains=3, group=2, rounds=4)
    assert (outcome.answer, outcome.finish_reason, figures["rounds"]) == ("2", FinishReason.ANSWERED, 2)
    with ScriptedModel([f"So. <answer>{answer}</answer>" for answer in ["1", "2", "3", "7.0", "8", "7"]]) as model:
        _, outcome, figures = await run(model, chains=3, group=2, rounds=2)
    assert (outcome.answer, figures["agreement"]) == ("7.0", pytest.approx(2 / 3))


async def test_a_round_of_failures_leaves_the_round_before_it() -> None:
    def reply(request: ChatRequest) -> str:
        if "round" in request.label:
            raise ModelFailedError("broken")
        return number_answers(request)

    _, outcome, figures = await run(FunctionModel(reply), chains=3, group=2, rounds=3)
    assert (outcome.answer, figures) == ("sample_0", {"rounds": 2, "chains": 6, "agreement": pytest.approx(1 / 3)})
    assert "3 of 6 samples failed (MODEL_FAILED)." in outcome.warnings


async def test_if_all_chains_of_the_first_round_fail_the_run_does() -> None:
    def fail(_: ChatRequest) -> str:
        raise ModelFailedError("broken")

    with pytest.raises(ModelFailedError):
        await run(FunctionModel(fail), chains=3)


async def test_a_budget_for_half_of_the_calls_gives_all_rounds_with_half_of_the_chains() -> None:
    model = FunctionModel(number_answers)
    _, outcome, figures = await run(model, chains=8, group=2, rounds=3, budget=Budget(max_model_calls=12))
    assert (figures["rounds"], len(model.requests)) == (3, 12)
    assert (outcome.finish_reason, bool(outcome.answer)) == (FinishReason.BUDGET_EXHAUSTED, True)


async def test_a_budget_for_one_chain_of_each_round_gives_two_chains_in_fewer_rounds_and_a_warning() -> None:
    model = FunctionModel(number_answers)
    steps, outcome, figures = await run(model, chains=8, rounds=3, budget=Budget(max_model_calls=5))
    assert [step.stage for step in steps] == [CHAIN] * 2 + [AGGREGATE] * 3
    assert (figures["rounds"], outcome.finish_reason) == (2, FinishReason.BUDGET_EXHAUSTED)
    assert outcome.warnings == [
        "The budget did not cover 8 chains in each round: 5 of at most 24 calls were made, in 2 of 3 rounds."
    ]


@pytest.mark.parametrize("calls", range(1, 7))
async def test_every_call_of_a_small_budget_is_used(calls: int) -> None:
    model = FunctionModel(number_answers)
    _, outcome, _ = await run(model, chains=8, rounds=3, budget=Budget(max_model_calls=calls))
    assert (len(model.requests), bool(outcome.answer), len(outcome.warnings)) == (calls, True, 1)


async def test_a_round_that_writes_nothing_is_the_last_and_what_is_empty_is_shown_to_nobody() -> None:
    model = FunctionModel(lambda _: "")
    _, outcome, figures = await run(model, chains=4, rounds=3)
    assert (len(model.requests), figures["rounds"], outcome.answer) == (4, 1, "")
    assert outcome.finish_reason is not FinishReason.ANSWERED
    assert outcome.warnings == ["4 of 4 samples ended without a whole answer."]

    def reply(request: ChatRequest) -> str:
        return "" if "round" in request.label else number_answers(request)

    model = FunctionModel(reply)
    _, outcome, figures = await run(model, chains=3, rounds=4)
    assert (len(model.requests), figures["rounds"], outcome.answer) == (6, 2, "sample_0")
    model = FunctionModel(lambda request: "" if request.label == "sample 1" else number_answers(request))
    await run(model, chains=4, group=4, rounds=2)
    assert all(len(set(shown_in(request))) == 3 for request in model.requests[4:])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    chains=st.integers(2, 8),
    rounds=st.integers(1, 4),
    calls=st.none() | st.integers(1, 20),
    tokens=st.none() | st.integers(300, 20_000),
    output=st.none() | st.integers(100, 5_000),
)
async def test_no_budget_is_exceeded_and_no_round_is_wider_than_the_first(
    chains: int, rounds: int, calls: int | None, tokens: int | None, output: int | None
) -> None:
    model = FunctionModel(number_answers)
    budget = Budget(max_model_calls=calls, max_total_tokens=tokens, max_output_tokens=output)
    try:
        steps, outcome, figures = await run(model, chains=chains, rounds=rounds, max_tokens=200, budget=budget)
    except TokenBudgetExhaustedError:
        assert not model.requests
        return
    assert len(model.requests) <= min(chains * rounds, calls or chains * rounds)
    assert outcome.answer
    first = sum(step.stage == CHAIN for step in steps)
    assert len(steps) == figures["chains"] == len(model.requests)
    assert outcome.finish_reason is (
        FinishReason.ANSWERED if len(steps) == chains * rounds else FinishReason.BUDGET_EXHAUSTED
    )
    assert first >= 1
