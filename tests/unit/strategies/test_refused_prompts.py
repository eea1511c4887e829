"""A later prompt that the model's server refuses as too long ends a run with what there is, whatever the strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest

import reasond
from reasond_server.context.calls import ModelReply, stream_reply
from reasond_server.context.tags import TagKind
from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import ContextExhaustedError
from reasond_server.llm.model import Message, Role
from reasond_server.strategies.strategy import (
    EarlyEnding,
    Outcome,
    ReasoningStrategy,
    RunContext,
    Step,
    StrategyConfig,
)
from reasond_server.testing import FunctionModel, Reply, ScriptedModel, running_server
from reasond_server.testing.strategies import reply_by_request
from reasond_server.types import CustomMetrics, FinishReason, StageStep, Thought
from tests.unit.strategies.test_conformance import CONFIGS, MATERIAL, PROGRAMS, REGISTERED, strategy_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from reasond_server.llm.model import ChatRequest
    from reasond_server.strategies.strategy import StrategyEvent
    from reasond_server.types import Task

REFUSAL = ContextExhaustedError("The prompt does not fit its context", remedy="Shorten it")
FAILING_PROGRAM = "```python\nprint(1 / 0)\n```"


def refuse_from(place: int) -> Callable[[ChatRequest], str | Reply]:
    """Return a model's function that refuses the call `place`, counted from 1, and all after it."""
    made = 0

    def reply(request: ChatRequest) -> str | Reply:
        nonlocal made
        made += 1
        return Reply(error=REFUSAL) if made >= place else reply_by_request(request)

    return reply


@pytest.mark.parametrize("material", ["", MATERIAL])
@pytest.mark.parametrize("name", REGISTERED)
async def test_no_registered_strategy_fails_for_a_later_prompt(name: str, material: str) -> None:
    for config in CONFIGS.get(name, [{}]):
        whole = FunctionModel(reply_by_request)
        ask: dict[str, Any] = {"material": material, "programs": PROGRAMS, **config}
        await strategy_of(name).reason("What is six times seven?", model=whole, **ask)
        for place in range(2, len(whole.requests) + 1):
            model = FunctionModel(refuse_from(place))
            outcome = await strategy_of(name).reason("What is six times seven?", model=model, **ask)
            assert outcome.finish_reason is not FinishReason.FAILED
            assert outcome.answer or outcome.warnings, f"call {place} of {name} was refused, and nothing tells it"


async def test_a_plan_without_its_solution_ends_truncated_and_a_refused_plan_fails() -> None:
    with ScriptedModel(["1. Multiply.", Reply(error=REFUSAL)]) as model:
        outcome = await strategy_of("plan_and_solve").reason("6 times 7?", model=model)
    assert (outcome.answer, outcome.finish_reason) == ("", FinishReason.TRUNCATED)
    assert outcome.warnings == ("The prompt does not fit its context. Shorten it",)
    with ScriptedModel([Reply(error=REFUSAL)]) as model, pytest.raises(ContextExhaustedError):
        await strategy_of("plan_and_solve").reason("6 times 7?", model=model)


async def test_a_refused_correction_of_a_program_leaves_its_problem() -> None:
    with ScriptedModel(["No program.", Reply(error=REFUSAL)]) as model:
        outcome = await strategy_of("program_of_thought").reason("6 times 7?", model=model, programs=PROGRAMS)
    assert (outcome.answer, outcome.finish_reason) == ("", FinishReason.TRUNCATED)
    assert "does not fit" in outcome.warnings[0]
    assert "No program of 1" in outcome.warnings[-1]


class Drafts(ReasoningStrategy[StrategyConfig]):
    """A strategy of others that knows of no shortage: it drafts for ever."""

    name: ClassVar[str] = "drafts"
    description: ClassVar[str] = "Drafts."
    config_type: ClassVar[type[StrategyConfig]] = StrategyConfig

    async def run(self, task: Task, context: RunContext[StrategyConfig]) -> AsyncGenerator[StrategyEvent, None]:
        made = 0
        while True:
            message = Message(role=Role.USER, content=f"{task.query} Draft {made}.")
            call = stream_reply(
                model=context.model, messages=[message], max_tokens=50, temperature=0.0, kinds=(TagKind.ANSWER,)
            )
            async for piece in call:
                if isinstance(piece, ModelReply):
                    reply = piece
            made += 1
            answer = reply.parsed.content
            detail = Thought(text=reply.parsed.text, answer=answer)
            yield Step(detail=detail, answer_found=bool(answer), metrics=CustomMetrics(data={"drafts": made}))


async def test_the_server_ends_a_plugin_with_the_last_answer_that_it_found() -> None:
    replies: list[str | Reply] = ["So. <answer>41</answer>", "No: <answer>42</answer>", "Hm.", Reply(error=REFUSAL)]
    with ScriptedModel(replies) as model:
        async with (
            running_server(model=model, strategies=[Drafts()]) as server,
            reasond.AsyncClient(server.grpc, token=server.token) as client,
        ):
            result = await client.reason("6 times 7?", strategy="drafts")
    assert (result.answer, result.finish_reason) == ("42", reasond.FinishReason.FINISH_REASON_TRUNCATED)
    assert result.metrics.custom["drafts"] == 3
    assert list(result.warnings) == ["The prompt does not fit its context. Shorten it"]


async def test_the_server_fails_a_run_whose_first_prompt_is_refused() -> None:
    with ScriptedModel([Reply(error=REFUSAL)]) as model:
        async with (
            running_server(model=model, strategies=[Drafts()]) as server,
            reasond.AsyncClient(server.grpc, token=server.token) as client,
        ):
            with pytest.raises(reasond.ModelError) as failed:
                await client.reason("6 times 7?", strategy="drafts")
    assert failed.value.reason == "CONTEXT_EXHAUSTED"


async def test_a_budget_that_ends_a_plugin_leaves_the_last_answer_too() -> None:
    with ScriptedModel(["<answer>41</answer>", "<answer>42</answer>"]) as model:
        async with (
            running_server(model=model, strategies=[Drafts()]) as server,
            reasond.AsyncClient(server.grpc, token=server.token) as client,
        ):
            result = await client.reason("6 times 7?", strategy="drafts", budget=reasond.Budget(max_model_calls=2))
    assert (result.answer, result.finish_reason) == ("42", reasond.FinishReason.FINISH_REASON_BUDGET_EXHAUSTED)


def test_a_step_without_an_answer_keeps_the_one_before() -> None:
    ending, metrics = EarlyEnding(), CustomMetrics(data={})
    with pytest.raises(TokenBudgetExhaustedError):
        ending.build_outcome(TokenBudgetExhaustedError("gone"))
    ending.note(Step(detail=StageStep(stage="draft", text="", answer="7"), answer_found=True, metrics=metrics))
    last = CustomMetrics(data={"steps": 2})
    ending.note(Step(detail=StageStep(stage="check", text="", answer="8"), answer_found=False, metrics=last))
    outcome = ending.build_outcome(TokenBudgetExhaustedError("gone"))
    assert outcome == Outcome(
        answer="7", finish_reason=FinishReason.BUDGET_EXHAUSTED, metrics=last, warnings=outcome.warnings
    )
