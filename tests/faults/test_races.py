"""Start, follow, leave, resume, cancel and delete in random orders by seed, with checks that hold in all of them."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

import pytest

from reasond_server.assembly.core import assemble
from reasond_server.config import load
from reasond_server.errors.base import ReasondError
from reasond_server.errors.executions import CursorExpiredError, ExecutionNotFoundError
from reasond_server.reasoning.registry import StrategyRegistry
from reasond_server.testing import FunctionModel
from reasond_server.types import ExecutionState, FinishReason, Principal, Result, Task
from tests.faults.parts import FREE_PORTS, Stepping

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from reasond_server.reasoning.service import ReasoningService
    from reasond_server.types import StreamEvent

CALLER = Principal(subject="ann", tenant="acme", permissions=frozenset({"admin"}))
ROUNDS = 250
GONE = (ExecutionNotFoundError, CursorExpiredError)


class Round:
    """One execution and all clients that act on it at the same time."""

    def __init__(self, service: ReasoningService, rng: random.Random, request_id: str) -> None:
        self.service = service
        self.rng = rng
        self.request_id = request_id
        self.task = Task(query=str(rng.randrange(1, 8)), strategy="stepping")
        self.execution_id = ""
        self.has_begun = asyncio.Event()
        self.others: set[str] = set()
        self.was_deleted = False
        self.was_cancelled = False
        self.was_left = False

    async def turns(self) -> None:
        """Yield to other tasks for a while."""
        for _ in range(self.rng.randrange(12)):
            await asyncio.sleep(0)

    async def watch(self, events: AsyncGenerator[StreamEvent, None], *, after: int, most: int) -> None:
        """Read up to `most` events and leave; sequence numbers have no gap, and nothing follows the result."""
        last, has_ended, seen = after, False, 0
        try:
            async with aclosing(events) as stream:
                async for event in stream:
                    assert not has_ended
                    assert event.sequence in {last, last + 1}
                    self.execution_id = event.execution_id
                    self.has_begun.set()
                    last, has_ended, seen = event.sequence, isinstance(event.event, Result), seen + 1
                    if seen == most:
                        self.was_left = True
                        return
                    await self.turns()
            assert has_ended
        except GONE:
            assert self.was_deleted

    async def start(self) -> None:
        most = self.rng.choice([1, 3, 1000])
        keep_running = self.rng.random() < 0.5
        events = self.service.stream(CALLER, self.task, request_id=self.request_id, keep_running=keep_running)
        await self.watch(events, after=0, most=most)

    async def start_again(self) -> None:
        """Repeat the request: its id gives the same run, or a new one if that was cancelled, left or deleted.

        A run that is deleted between its lookup and its first event is told as gone; the next repetition begins anew.
        """
        await self.turns()
        first = self.execution_id
        try:
            self.others.add(await self.read_id_of_repeated())
        except GONE:
            assert self.was_deleted
            again = await self.read_id_of_repeated()
            assert again != first
            self.others.add(again)
        if self.others != {first}:
            assert self.was_deleted or self.was_cancelled or self.was_left

    async def read_id_of_repeated(self) -> str:
        events = self.service.stream(CALLER, self.task, request_id=self.request_id, keep_running=True)
        async with aclosing(events) as stream:
            return (await anext(stream)).execution_id

    async def resume(self) -> None:
        most = self.rng.choice([1, 1000])
        await self.turns()
        await self.watch(self.service.desk.resume(CALLER, self.execution_id, after_sequence=1), after=1, most=most)

    async def cancel(self) -> None:
        await self.turns()
        self.was_cancelled = True
        try:
            assert (await self.service.desk.cancel(CALLER, self.execution_id)).state is not ExecutionState.RUNNING
        except GONE:
            assert self.was_deleted

    async def delete(self) -> None:
        await self.turns()
        self.was_deleted = True
        with suppress(*GONE):
            await self.service.desk.delete(CALLER, self.execution_id)

    async def play(self) -> None:
        """Start the run, and once it has events, let all clients act."""
        starting = asyncio.create_task(self.start())
        begun = asyncio.create_task(self.has_begun.wait())
        await asyncio.wait({starting, begun}, return_when=asyncio.FIRST_COMPLETED)
        if not begun.done():
            await starting
        await begun
        deeds: list[Callable[[], Coroutine[None, None, None]]]
        deeds = [self.resume, self.resume, self.cancel, self.delete, self.start_again]
        chosen = self.rng.sample(deeds, self.rng.randrange(1, 6))
        await asyncio.gather(starting, *(deed() for deed in chosen))


async def check_log(service: ReasoningService, execution_id: str) -> None:
    """Check the log of an execution that nobody follows any more."""
    try:
        execution = await service.desk.cancel(CALLER, execution_id)
    except GONE:
        return
    async with aclosing(service.desk.resume(CALLER, execution_id, after_sequence=0)) as stream:
        events = [event async for event in stream]
    assert [event.sequence for event in events] == list(range(1, execution.last_sequence + 1))
    assert [isinstance(event.event, Result) for event in events] == [False] * (len(events) - 1) + [True]
    assert execution.finish_reason in {FinishReason.ANSWERED, FinishReason.CANCELLED}


@pytest.mark.parametrize("seed", range(4))
async def test_in_every_order_all_logs_are_complete_and_no_client_waits_for_ever(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - a seed that repeats a failure, no secret
    settings = load(None, {**FREE_PORTS, "REASOND__REASONING__ENABLED_STRATEGIES": '["stepping"]'}).settings
    model = FunctionModel(lambda _: "<answer>42</answer>")
    core = assemble(settings, model=model, registry=StrategyRegistry([Stepping()]))
    service = core.reasoning
    for number in range(ROUNDS):
        round_ = Round(service, random.Random(rng.random()), f"r{number}")  # noqa: S311 - as above
        async with asyncio.timeout(120):
            try:
                await round_.play()
                for execution_id in {round_.execution_id, *round_.others}:
                    await check_log(service, execution_id)
            except ReasondError as error:
                pytest.fail(f"seed {seed}: {error!r}")
    assert core.runner.runs.by_id == {}
    assert {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()} == set()
