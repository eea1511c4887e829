"""The memory that a run of bounded context takes, alone and with its log and store, by the number of its windows."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import tracemalloc
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING

import pytest

from reasond_server.assembly.stores import StoreOptions, open_stores
from reasond_server.base.clock import Clock
from reasond_server.llm.counting import ByteCounter
from reasond_server.llm.model import Finished, ModelFinish, Text, WrappedModel
from reasond_server.reasoning.strategy_work import Assignment, ReasoningWork
from reasond_server.runs.runner import Runner, RunnerLimits
from reasond_server.runs.work import WorkRequest
from reasond_server.strategies.bounded_context import BoundedContext, BoundedContextConfig
from reasond_server.strategies.strategy import RunContext
from reasond_server.testing import FunctionModel
from reasond_server.types import CarryoverMode, ExecutionState, StrategySource, Task, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from reasond_server.eventlog.log import RunLog
    from reasond_server.eventlog.store import ExecutionStore
    from reasond_server.llm.model import ChatRequest, ModelEvent

WRITTEN_BYTES = 4096
"""What each window writes, at the least."""

MOST = 512 * 1024
"""Bytes that a run holds between two windows, however deep it is: the end of its log, which is 256 events or 1 MiB by a
high estimate, what the last window wrote and the keys of its last calls."""

MOST_PER_WINDOW = 256
"""Bytes that the line of metrics of each window takes while the run goes on."""

MOST_GROWTH = 128 * 1024
"""Bytes between 50 windows, which do not quite fill the end of the log, and 500, which do."""

MOST_PER_LINE = 1024
"""Bytes that the line of a window takes while the answer, which has one for each, is made and stored."""

MOST_LEFT = 64 * 1024
DEPTHS = (5, 50, 500)


def _now() -> datetime:
    return datetime.now(UTC)


async def read_settled_memory() -> int:
    """Return the least traced memory of a few looks: the store lets go of what it has committed a little later."""
    least = sys.maxsize
    for _ in range(5):
        gc.collect()
        least = min(least, tracemalloc.get_traced_memory()[0])
        await asyncio.sleep(0.02)
    return least


class DeepThinker(WrappedModel[FunctionModel]):
    """A model that never answers and never repeats itself; each reply is one piece, which is cheap to trace.

    `held` is the traced memory, in bytes, at the start of its last call, before any part of the answer exists. At that
    time no entry of the `log` waits for a commit (a slow machine would have more of them), and the free lists are
    empty.
    """

    def __init__(self) -> None:
        super().__init__(model=FunctionModel(lambda _: "", counter=ByteCounter()))
        self._numbers = count(10**6)
        self.held = 0
        self.last = 0
        self.log: RunLog | None = None

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Fill one window."""
        self.last -= 1
        if not self.last and self.log is not None:
            await self.log.wait_for_commit()
            self.held = await read_settled_memory()
        said = " ".join(str(next(self._numbers)) for _ in range(WRITTEN_BYTES // 8))
        text = f"{said} <continue>Progress: {next(self._numbers)}</continue>"
        yield Text(text=text)
        usage = Usage(input_tokens=self.counter.count_prompt(request.messages), output_tokens=len(text), model_calls=1)
        yield Finished(reason=ModelFinish.STOP, usage=usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """Traced memory in bytes: before the last window, at the peak, and after the end."""

    held: int
    peak: int
    left: int


async def trace(runner: Runner, store: ExecutionStore, model: DeepThinker, windows: int) -> Traced:
    """Return the memory that a run of `windows` windows takes."""
    # `max_iterations` is beyond its range, so that the number of windows is measured and not the length of a text.
    config = BoundedContextConfig.model_construct(
        chunk_size=8192,
        carryover_size=512,
        max_segments=512,
        temperature=0.0,
        max_iterations=windows,
        carryover_mode=CarryoverMode.HYBRID,
    )
    assignment = Assignment(
        task=Task(query="What?"),
        strategy=BoundedContext(),
        strategy_source=StrategySource.REQUEST,
        config=config,
        shown_config={},
    )
    work = ReasoningWork(
        assignment=assignment,
        request=WorkRequest(tenant="acme", keep_running=True),
        clock=Clock(now=_now, monotonic=time.monotonic, new_id=str),
    )
    gc.collect()
    tracemalloc.start()
    try:
        execution = await runner.start(work)
        run = runner.find_live(execution.execution_id)
        assert run is not None
        model.log, model.last = run.log, windows
        await run.wait_for_end()
        model.log = None
        del run, work
        peak = tracemalloc.get_traced_memory()[1]
        left = await read_settled_memory()
    finally:
        tracemalloc.stop()
    found = await store.find("acme", execution.execution_id)
    assert (found.state, found.last_sequence) == (ExecutionState.SUCCEEDED, windows + 2)
    return Traced(held=model.held, peak=peak, left=left)


@pytest.fixture
async def measured(tmp_path: Path) -> dict[int, Traced]:
    """The traced memory by number of windows."""
    ids = count()
    stores = await open_stores(
        StoreOptions(
            url=f"sqlite:///{tmp_path}/log.db",
            data_dir=str(tmp_path),
            now=_now,
            monotonic=time.monotonic,
            max_bytes=10**8,
            max_agents=10,
        )
    )
    clock = Clock(now=_now, monotonic=time.monotonic, new_id=lambda: f"e{next(ids)}")
    limits = RunnerLimits(max_concurrent=1, retention_s=3600)
    model = DeepThinker()
    runner = Runner(store=stores.executions, model=model, clock=clock, limits=limits)
    try:
        await trace(runner, stores.executions, model, 2)
        return {windows: await trace(runner, stores.executions, model, windows) for windows in DEPTHS}
    finally:
        await stores.aclose()


# Tracing makes the test slow: half a minute on a busy machine.
@pytest.mark.slow
async def test_what_a_run_holds_grows_by_a_line_for_each_window_alone_and_so_does_its_answer(
    measured: dict[int, Traced],
) -> None:
    assert all(each.held < MOST + windows * MOST_PER_WINDOW for windows, each in measured.items())
    assert measured[500].held - measured[50].held < MOST_GROWTH + 450 * MOST_PER_WINDOW
    assert all(each.peak - each.held < MOST + windows * MOST_PER_LINE for windows, each in measured.items())
    assert max(each.left for each in measured.values()) < MOST_LEFT


async def peak_memory(max_iterations: int) -> int:
    """Return the peak memory, in bytes, of a run that writes as much as possible in every window."""

    def reply(_: ChatRequest) -> str:
        model.requests.clear()
        return "<continue>" + "note " * 1024

    model = FunctionModel(reply)
    small = {"chunk_size": 1024, "carryover_size": 512, "carryover_mode": "tail"}
    config = BoundedContextConfig.model_validate({**small, "max_iterations": max_iterations})
    tracemalloc.start()
    try:
        async for _ in BoundedContext().run(Task(query="q"), RunContext(config=config, model=model)):
            pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
async def test_memory_does_not_grow_with_depth() -> None:
    await peak_memory(5)
    assert await peak_memory(50) - await peak_memory(5) < 50_000
