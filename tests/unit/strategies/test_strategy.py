"""The behaviour that every strategy inherits."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pytest

from reasond_server.errors.base import InternalError
from reasond_server.strategies.chain_of_thought import ChainOfThought
from reasond_server.strategies.strategy import Outcome, ReasoningStrategy, RunContext, StrategyConfig, Wrote
from reasond_server.testing import ScriptedModel
from reasond_server.types import CustomMetrics, FinishReason, Task

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.strategies.strategy import StrategyEvent


class EchoConfig(StrategyConfig):
    times: int = 1


class Echo(ReasoningStrategy[EchoConfig]):
    name: ClassVar[str] = "echo"
    description: ClassVar[str] = "Says the question."
    config_type: ClassVar[type[EchoConfig]] = EchoConfig

    async def run(self, task: Task, context: RunContext[EchoConfig]) -> AsyncGenerator[StrategyEvent, None]:
        yield Wrote(text=task.query)
        if context.config.times:
            yield Outcome(
                answer=task.query * context.config.times,
                finish_reason=FinishReason.ANSWERED,
                metrics=CustomMetrics(data={}),
            )


async def test_reason_runs_to_the_outcome() -> None:
    outcome = await Echo().reason("ab", model=ScriptedModel([]), times=2)
    assert outcome.answer == "abab"


async def test_reason_tells_what_the_run_spent() -> None:
    with ScriptedModel(["Six times seven. <answer>42</answer>"]) as model:
        outcome = await ChainOfThought().reason("What is six times seven?", model=model)
    assert outcome.usage is not None
    assert outcome.usage.model_calls == len(model.requests)
    assert outcome.usage.input_tokens >= sum(model.counter.count_prompt(each.messages) for each in model.requests)
    assert outcome.usage.output_tokens


async def test_a_strategy_without_an_outcome_is_a_fault() -> None:
    with pytest.raises(InternalError, match="strategy 'echo' ended without an outcome"):
        await Echo().reason("ab", model=ScriptedModel([]), times=0)


def test_schema_and_capabilities_come_from_the_declarations() -> None:
    assert Echo().get_config_schema()["properties"]["times"]["default"] == 1
    assert Echo().get_capabilities() == ["reasoning.strategy.echo"]
