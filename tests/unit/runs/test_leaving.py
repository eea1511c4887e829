"""The reports about a run that leaves its process, in metrics and in the log."""

import logging
from collections.abc import Callable

import pytest

from reasond_server.eventlog.stored.sqlite_store import MemoryExecutionStore
from reasond_server.reasoning.strategy_work import ReasoningWork
from reasond_server.runs.phase import STOP_REASONS, Trigger
from reasond_server.runs.runner import Runner, RunnerLimits
from reasond_server.telemetry.observers import Observer
from reasond_server.types import StrategyMetrics
from tests.unit.runs.conftest import EchoModel, ManualClock, in_virtual_time

Assign = Callable[..., ReasoningWork]


class Told(Observer):
    """Keeps the reports that it receives."""

    def __init__(self) -> None:
        self.lines: list[tuple[object, ...]] = []

    def run_left(
        self,
        strategy: str,
        finish_reason: str,
        *,
        steps: int,
        duration_s: float = 0.0,
        metrics: StrategyMetrics | None = None,
    ) -> None:
        del duration_s
        self.lines.append((strategy, finish_reason, steps, metrics is not None))

    def run_handed(self, reason: str) -> None:
        self.lines.append((reason,))


async def told_of(assignment: ReasoningWork, *, stop: Trigger | None = None) -> list[tuple[object, ...]]:
    """Return the reports of a run to its observer. If `stop` is given, the run is stopped before its first step."""
    time, told = ManualClock(), Told()
    store = MemoryExecutionStore(max_bytes=10**6, now=time.now, monotonic=time.monotonic)
    limits = RunnerLimits(max_concurrent=1, retention_s=60)
    runner = Runner(store=store, model=EchoModel(), clock=time.clock(), limits=limits, observer=told)
    run = runner.find_live((await runner.start(assignment)).execution_id)
    assert run is not None
    if stop is not None:
        run.stop(stop)
    await run.wait_for_end()
    return told.lines


@in_virtual_time
async def test_a_run_that_ends_is_told_with_its_reason_and_steps(assign: Assign) -> None:
    assert await told_of(assign()) == [("scripted", "answered", 2, True)]


@pytest.mark.parametrize("stop", [Trigger.LOSE, Trigger.FENCE, Trigger.HAND_OVER])
def test_a_run_that_others_go_on_with_has_no_end_here(
    assign: Assign, caplog: pytest.LogCaptureFixture, stop: Trigger
) -> None:
    @in_virtual_time
    async def check_told() -> None:
        assert await told_of(assign(), stop=stop) == [(STOP_REASONS[stop],), ("scripted", "", 0, False)]

    with caplog.at_level(logging.INFO, "reasond.executions"):
        check_told()
    assert [
        (line.getMessage(), vars(line)["stop_reason"]) for line in caplog.records if line.name == "reasond.executions"
    ] == [("execution left to another process", STOP_REASONS[stop])]
