"""Two small strategies and a registry that holds them."""

from collections.abc import AsyncGenerator

import pytest
from pydantic import Field

from reasond_server.llm.model import ChatRequest, Message, Role, Text
from reasond_server.reasoning.registry import StrategyRegistry
from reasond_server.strategies.strategy import (
    Outcome,
    ReasoningStrategy,
    RunContext,
    Step,
    StrategyConfig,
    StrategyEvent,
)
from reasond_server.types import CustomMetrics, CustomStep, FinishReason, Task


class QuickConfig(StrategyConfig):
    max_tokens: int = Field(default=100, ge=1, le=1000)
    temperature: float = Field(default=0.5, ge=0, le=2)
    shout: bool = False


class Quick(ReasoningStrategy[QuickConfig]):
    name = "quick"
    description = "Asks the model once."
    config_type = QuickConfig

    async def run(self, task: Task, context: RunContext[QuickConfig]) -> AsyncGenerator[StrategyEvent, None]:
        request = ChatRequest(
            messages=[Message(role=Role.USER, content=task.query)], max_tokens=context.config.max_tokens
        )
        text = "".join([event.text async for event in context.model.stream(request) if isinstance(event, Text)])
        metrics = CustomMetrics(data={"characters": len(text)})
        yield Step(detail=CustomStep(data={"text": text}), answer_found=True, metrics=metrics)
        yield Outcome(answer=text, finish_reason=FinishReason.ANSWERED, metrics=metrics)


class Slow(Quick):
    name = "slow"
    description = "Takes its time."


@pytest.fixture
def registry() -> StrategyRegistry:
    return StrategyRegistry([Slow(), Quick()])
