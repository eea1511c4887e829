"""A kind of work that suspends, for tests: it takes steps, suspends between them, and resumes from its events."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from reasond_server.runs.run_journal import RepeatedSteps
from reasond_server.runs.work import RunEnding, WorkRequest
from reasond_server.types import (
    NOTHING,
    Budget,
    ExecutionStarted,
    FinishReason,
    Iteration,
    Metrics,
    Result,
    StrategySource,
    Thought,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from reasond_server.eventlog.store import Recovery
    from reasond_server.runs.plan import Plan
    from reasond_server.runs.run import Run
    from reasond_server.types import Event, Execution, ExecutionFailure, Json, TextDelta

NAPPING: Final = "napping"
_NO_CONFIG: Final[Json] = {}
_NAP: Final = Thought(text="nap")
UNTIL_CALLED: Final = -1.0
"""A suspension that only a call ends."""

Doing = Any
"""An asynchronous function that is called before each step, with the run and the step's number."""


async def do_nothing(_run: Run, _number: int) -> None:
    """Return at once."""
    await asyncio.sleep(0)


@dataclass(kw_only=True)
class NappingKind:
    """Creates and revives napping work; `now` returns the time, `do` is called in each step."""

    now: Callable[[], datetime]
    do: Doing = do_nothing
    kind: str = NAPPING
    keeps_plan: bool = False
    is_timed_at_work: bool = False

    def create(self, naps: Sequence[float], **request: Any) -> NappingWork:
        """Return work with one step per nap of `naps` (in seconds); after a nap of 0 the next step follows at once."""
        return NappingWork(self, naps, WorkRequest(**{"tenant": "acme", "keep_running": True, **request}))

    def revive(self, plan: Plan, recovery: Recovery) -> NappingWork:
        """Return the work that resumes after the last logged step."""
        steps = sum(isinstance(logged.event, Iteration) for logged in recovery.events)
        return NappingWork(self, plan.work["naps"], plan.to_request(recovery.execution, budget=Budget()), steps=steps)

    def shape_delta(self, delta: TextDelta, run: Run | None) -> TextDelta:  # noqa: ARG002 - the port's form
        """Return `delta`; napping work writes none."""
        return delta

    def is_pause(self, event: Event) -> bool:
        """Return whether a nap may follow `event`; one of no seconds is counted as what it takes."""
        return isinstance(event, Iteration)

    def write_off(self, recovery: Recovery, failure: ExecutionFailure, *, warnings: Sequence[str]) -> Sequence[Event]:
        """Return the events that end a log."""
        start = [] if recovery.execution.last_sequence else [start_of(recovery.execution)]
        return [*start, result_of(recovery.execution, FinishReason.FAILED, failure=failure, warnings=warnings)]


class NappingWork:
    """See `runs.run.Work`."""

    kind = NAPPING
    name = "naps"
    source = StrategySource.REQUEST
    agent = ""
    may_suspend = True
    metrics = None
    obstacle = ""

    def __init__(self, maker: NappingKind, naps: Sequence[float], request: WorkRequest, *, steps: int = 0) -> None:
        self.request = request
        self.steps = RepeatedSteps()
        self.steps.count = steps
        self._maker = maker
        self._naps = naps

    def describe(self) -> Json:
        """Return the naps as the plan."""
        return {"naps": list(self._naps)}

    def begin(self, run: Run) -> Event:
        """Return the first event."""
        return start_of(run.identity)

    async def work(self, run: Run) -> None:
        """Take steps until one is followed by a nap, or none are left."""
        while self.steps.count < len(self._naps):
            number, nap_s = self.steps.count, self._naps[self.steps.count]
            await self._maker.do(run, number)
            now = self._maker.now()
            step = Iteration(index=number, answer_found=False, usage=NOTHING, elapsed_s=0.0, detail=_NAP)
            if nap_s:
                wake_time = None if nap_s == UNTIL_CALLED else now + timedelta(seconds=nap_s)
                if run.suspend(step, now=now, wake_time=wake_time):
                    self._count()
                return
            self._count()
            run.append(step, now=now)
            await run.log.wait_for_room()
            if run.leaves_at_checkpoint is not None and run.reach_checkpoint():
                return
        run.report_end(RunEnding(finish_reason=FinishReason.ANSWERED, answer=str(self.steps.count)))

    def leave(self, run: Run) -> None:
        """Report nothing."""

    def conclude(self, run: Run, ending: RunEnding) -> Result:
        """Return the last event."""
        return result_of(
            run.identity,
            ending.finish_reason,
            answer=ending.answer,
            failure=ending.to_failure(),
            warnings=ending.warnings,
            elapsed_s=run.accounts.elapsed_s,
            usage=run.accounts.usage,
        )

    def _count(self) -> None:
        self.steps.add()


def start_of(execution: Execution) -> ExecutionStarted:
    """Return the first event of a log."""
    return ExecutionStarted(
        strategy=execution.strategy, strategy_source=execution.strategy_source, model=execution.model, config=_NO_CONFIG
    )


def result_of(
    execution: Execution,
    reason: FinishReason,
    *,
    answer: str = "",
    failure: ExecutionFailure | None = None,
    warnings: Sequence[str] = (),
    elapsed_s: float = 0.0,
    usage: Usage | None = None,
) -> Result:
    """Return the last event of a log."""
    return Result(
        execution_id=execution.execution_id,
        answer=answer,
        strategy_used=execution.strategy,
        strategy_source=execution.strategy_source,
        finish_reason=reason,
        metrics=Metrics(usage=usage or Usage(), execution_time_s=elapsed_s),
        warnings=tuple(warnings),
        model=execution.model,
        error=failure,
    )
