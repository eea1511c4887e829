"""Shared by the fault tests: strategies that misbehave on request, and settings for servers on free ports."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from reasond_server.strategies.strategy import (
    Outcome,
    ReasoningStrategy,
    RunContext,
    Step,
    StrategyConfig,
    StrategyEvent,
    Wrote,
)
from reasond_server.types import CustomMetrics, CustomStep, FinishReason, Task

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

SOON = 120.0
FREE_PORTS = {
    "REASOND_CONFIG": os.devnull,
    "REASOND__SERVER__GRPC_ADDRESS": "127.0.0.1:0",
    "REASOND__SERVER__HTTP_ADDRESS": "127.0.0.1:0",
    "REASOND__SERVER__DRAIN_DELAY_S": "0",
}
METRICS = CustomMetrics(data={})


def step(**data: object) -> Step:
    return Step(detail=CustomStep(data=data), answer_found=False, metrics=METRICS)


def outcome(answer: str = "done") -> Outcome:
    return Outcome(answer=answer, finish_reason=FinishReason.ANSWERED, metrics=METRICS)


class Stepping(ReasoningStrategy[StrategyConfig]):
    """Takes as many steps as the query says, and yields to other tasks before each."""

    name = "stepping"
    description = "Counts."
    config_type = StrategyConfig

    async def run(self, task: Task, context: RunContext[StrategyConfig]) -> AsyncGenerator[StrategyEvent, None]:
        del context
        for number in range(int(task.query)):
            await asyncio.sleep(0)
            yield step(number=number)
        yield outcome()


class Misbehaving(ReasoningStrategy[StrategyConfig]):
    """Runs the behaviour that it is given. `released` ends an endless behaviour at the end of the test."""

    name = "misbehaving"
    description = "Does not do what strategies should."
    config_type = StrategyConfig

    def __init__(self, behaviour: Callable[[Misbehaving], AsyncGenerator[StrategyEvent, None]]) -> None:
        self.behaviour = behaviour
        self.released = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []
        self.has_begun = asyncio.Event()

    def run(self, task: Task, context: RunContext[StrategyConfig]) -> AsyncGenerator[StrategyEvent, None]:
        del task, context
        self.has_begun.set()
        return self.behaviour(self)

    async def hear_nothing(self) -> None:
        """Wait for the release and swallow every cancellation until then."""
        while not self.released.is_set():
            try:
                await self.released.wait()
            except asyncio.CancelledError:
                continue


async def deaf(self: Misbehaving) -> AsyncGenerator[StrategyEvent, None]:
    yield step(before="it turns deaf")
    await self.hear_nothing()


async def deaf_and_busy(self: Misbehaving) -> AsyncGenerator[StrategyEvent, None]:
    while not self.released.is_set():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            continue
        yield step(still="here")


async def deaf_at_the_end(self: Misbehaving) -> AsyncGenerator[StrategyEvent, None]:
    try:
        yield outcome()
    finally:
        await self.hear_nothing()


async def never_ending_clean_up(self: Misbehaving) -> AsyncGenerator[StrategyEvent, None]:
    try:
        yield outcome()
    finally:
        await self.released.wait()


async def never_yielding(self: Misbehaving) -> AsyncGenerator[StrategyEvent, None]:
    await self.released.wait()
    yield outcome()


async def more_after_the_outcome(_self: Misbehaving) -> AsyncGenerator[StrategyEvent, None]:
    try:
        yield outcome("first")
    except GeneratorExit:
        yield outcome("second")


async def endless_steps(_self: Misbehaving) -> AsyncGenerator[StrategyEvent, None]:
    while True:
        yield step(text="x" * 100_000)


async def endless_text(_self: Misbehaving) -> AsyncGenerator[StrategyEvent, None]:
    while True:
        yield Wrote(text="and on ")


async def leaving_tasks_behind(self: Misbehaving) -> AsyncGenerator[StrategyEvent, None]:
    self.tasks.append(asyncio.create_task(self.hear_nothing()))
    yield outcome()
