"""Two runners on one store: the second resumes or ends the executions that the first left."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from reasond_server.errors.limits import StoreUnavailableError
from reasond_server.errors.request import StrategyNotFoundError
from reasond_server.eventlog.stored.sqlite_store import MemoryExecutionStore
from reasond_server.llm.wrapped_models import trace_model
from reasond_server.reasoning.strategy_selection import OfferedModels
from reasond_server.reasoning.strategy_work import ReasoningKind, ReasoningWork
from reasond_server.runs.followers import Follower
from reasond_server.runs.runner import Runner, RunnerLimits
from reasond_server.strategies.strategy import ReasoningStrategy, StrategyConfig
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.types import (
    Execution,
    Result,
)
from tests.unit.runs.conftest import EchoModel, ManualClock, Script, Scripted

if TYPE_CHECKING:
    from reasond_server.telemetry.spans import Tracing

Assign = Callable[..., ReasoningWork]


LIMITS = RunnerLimits(max_concurrent=3, retention_s=60, lease_s=15, reattach_s=30)


class Replayable(Scripted):
    """The scripted strategy, declared as replayable."""

    name = "replayable"
    is_replayable = True


class SharedStore(MemoryExecutionStore):
    """A memory store that declares itself durable and shared by several processes."""

    is_durable = True
    is_shared = True


class Servers:
    """Processes on one store; a test sets the strategies of the processes that start later."""

    def __init__(self, time: ManualClock, assign: Assign) -> None:
        self.time = time
        self.store = SharedStore(max_bytes=10**7, now=time.now, monotonic=time.monotonic)
        self.strategy: ReasoningStrategy[StrategyConfig] | None = Replayable(Script())
        self.runners: list[Runner] = []
        self.tracing: Tracing | None = None
        self._assign = assign

    def server(self, model: EchoModel, limits: RunnerLimits = LIMITS, *, observer: Observer = UNOBSERVED) -> Runner:
        clock = replace(self.time.clock(), new_nonce=lambda: "n" * 28)
        called = trace_model(model, tracing=self.tracing)
        runner = Runner(
            store=self.store,
            model=called,
            clock=clock,
            limits=limits,
            kinds=[ReasoningKind(clock=clock, find_strategy=self._find, models=OfferedModels(called))],
            tracing=self.tracing,
            observer=observer,
        )
        self.runners.append(runner)
        return runner

    def _find(self, name: str) -> ReasoningStrategy[StrategyConfig]:
        if self.strategy is None or self.strategy.name != name:
            raise StrategyNotFoundError(f"Strategy not found: {name!r}")
        return self.strategy

    def assignment(self, script: Script | None = None, **keys: object) -> ReasoningWork:
        return self._assign(script, **{"strategy": Replayable(script or Script()), **keys})

    def follower(self, runner: Runner, heartbeat_interval_s: float = 30) -> Follower:
        return Follower(
            store=self.store,
            runner=runner,
            clock=self.time.clock(),
            heartbeat_interval_s=heartbeat_interval_s,
            flush_interval_s=0,
        )

    async def die(self, runner: Runner) -> None:
        """End like a process that is killed: write nothing more."""
        tasks = [runner.runs.by_id[name].driver for name in runner.runs.by_id]
        for name in tuple(runner.runs.by_id):
            runner.runs.by_id[name].log.close(StoreUnavailableError("dead"))
        for task in tasks:
            assert task is not None
            task.cancel()
            await asyncio.wait([task])
        self.time.advance(20)

    async def log(self, execution: Execution) -> list[object]:
        return [logged.event for logged in await self.store.read("acme", execution.execution_id)]


async def held_after(servers: Servers, runner: Runner, model: EchoModel, steps: int, **keys: object) -> Execution:
    """Return an execution whose run has made `steps` steps and waits for its model."""
    script = Script(
        words=("one", "two", "six"), before_step=lambda index: model.gate.clear() if index == steps else None
    )
    execution = await runner.start(servers.assignment(script, **keys))
    run = runner.find_live(execution.execution_id)
    assert run is not None
    await model.waited.wait()
    await run.log.flush()
    return execution


async def end_of(runner: Runner, execution: Execution) -> None:
    run = runner.find_live(execution.execution_id)
    if run is not None:
        await run.wait_for_end()


async def recover_run(servers: Servers, execution: Execution, **keys: object) -> tuple[Result, EchoModel, list[object]]:
    """Let another process recover the execution. Return its result, the model that it called, and the log."""
    model = EchoModel()
    other = servers.server(model, replace(LIMITS, **keys))  # type: ignore[arg-type]  # fields of the limits
    await other._recoverer.lease_keeper.round()
    await end_of(other, execution)
    for runner in servers.runners:
        await runner._writer.aclose(within_s=5)
    log = await servers.log(execution)
    assert isinstance(log[-1], Result)
    assert sum(isinstance(event, Result) for event in log) == 1
    return log[-1], model, log
