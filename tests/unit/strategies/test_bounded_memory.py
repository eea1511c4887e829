"""What a run of bounded context holds of a process's memory, its log and store included, by its depth."""

from __future__ import annotations

import gc
import time
import tracemalloc
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING

import pytest

from reasond_server.executions.clock import Clock
from reasond_server.executions.opening import open_stores
from reasond_server.executions.run import Assignment
from reasond_server.executions.runner import Runner, RunnerLimits
from reasond_server.llm.counting import ByteCounter
from reasond_server.llm.model import Finished, ModelFinish, Text
from reasond_server.llm.wrapping import WrappedModel
from reasond_server.strategies.bounded_context import BoundedContext, BoundedContextConfig
from reasond_server.testing import FunctionModel
from reasond_server.types import CarryoverMode, ExecutionState, StrategySource, Task, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from reasond_server.executions.store import ExecutionStore
    from reasond_server.llm.model import ChatRequest, ModelEvent

WRITTEN_BYTES = 4096
"""What each window writes, at the least."""

MOST_PER_WINDOW = 2048
"""Bytes that a window costs until its run ends: a line of metrics, the keys of its call, a share of the log's end."""

MOST_LEFT = 64 * 1024
DEPTHS = (5, 50, 500)


def _now() -> datetime:
    return datetime.now(UTC)


class DeepThinker(WrappedModel[FunctionModel]):
    """A model that never answers and never says the same, in one piece, which is cheap to trace."""

    def __init__(self) -> None:
        super().__init__(model=FunctionModel(lambda _: "", counter=ByteCounter()))
        self._numbers = count(10**6)

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Write a window full."""
        said = " ".join(str(next(self._numbers)) for _ in range(WRITTEN_BYTES // 8))
        text = f"{said} <continue>Progress: {next(self._numbers)}</continue>"
        yield Text(text=text)
        usage = Usage(input_tokens=self.counter.count_prompt(request.messages), output_tokens=len(text), model_calls=1)
        yield Finished(reason=ModelFinish.STOP, usage=usage)


async def traced(runner: Runner, store: ExecutionStore, windows: int) -> tuple[int, int]:
    """Return the peak of traced bytes during a run of so many windows, and what is left of them after it."""
    # Beyond the range of max_iterations, so that depth is measured and not the length of a text.
    config = BoundedContextConfig.model_construct(
        chunk_size=8192,
        carryover_size=512,
        max_segments=512,
        temperature=0.0,
        max_iterations=windows,
        carryover_mode=CarryoverMode.HYBRID,
    )
    assignment = Assignment(
        tenant="acme",
        task=Task(query="What?"),
        strategy=BoundedContext(),
        strategy_source=StrategySource.REQUEST,
        config=config,
        shown_config={},
        keep_running=True,
    )
    gc.collect()
    tracemalloc.start()
    try:
        execution = await runner.start(assignment)
        run = runner.live(execution.execution_id)
        assert run is not None
        await run.ended()
        del run, assignment
        peak = tracemalloc.get_traced_memory()[1]
        gc.collect()
        left = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    found = await store.find("acme", execution.execution_id)
    assert (found.state, found.last_sequence) == (ExecutionState.SUCCEEDED, windows + 2)
    return peak, left


@pytest.fixture
async def measured(tmp_path: Path) -> dict[int, tuple[int, int]]:
    """The peak and what is left, by depth."""
    ids = count()
    stores = await open_stores(
        url=f"sqlite:///{tmp_path}/log.db",
        data_dir=str(tmp_path),
        now=_now,
        monotonic=time.monotonic,
        max_executions=10,
        max_bytes=10**8,
        max_agents=10,
    )
    clock = Clock(now=_now, monotonic=time.monotonic, new_id=lambda: f"e{next(ids)}")
    limits = RunnerLimits(max_concurrent=1, retention_s=3600)
    runner = Runner(store=stores.executions, model=DeepThinker(), clock=clock, limits=limits)
    try:
        await traced(runner, stores.executions, 2)
        return {windows: await traced(runner, stores.executions, windows) for windows in DEPTHS}
    finally:
        await stores.aclose()


# Tracing makes it slow: half a minute where others use the processors, too.
@pytest.mark.timeout(300)
async def test_until_it_ends_a_run_holds_a_fraction_of_what_a_window_writes_for_each_and_nothing_after_that(
    measured: dict[int, tuple[int, int]],
) -> None:
    peaks = {windows: peak for windows, (peak, _) in measured.items()}
    assert peaks[500] - peaks[50] < 450 * MOST_PER_WINDOW <= 450 * WRITTEN_BYTES / 2
    assert peaks[50] < 50 * 4 * WRITTEN_BYTES
    assert max(left for _, left in measured.values()) < MOST_LEFT
