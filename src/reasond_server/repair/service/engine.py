"""The port of engines that work repairs out elsewhere, and the repair as the process sees it that holds its log."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from reasond_server.repair.search.repair_run import RepairOutcome
from reasond_server.types import NOTHING, Event, FinishReason, Json, Usage
from reasond_server.types.repairs import ReflectionIteration, ReflectionStep, SandboxLevel
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

    from reasond_server.errors.base import ReasondError


@value
class RepairOrder:
    """A repair as an engine gets it.

    Attributes:
        tenant: whose repair it is.
        subject: whose tokens it spends.
        execution_id: its id.
        nonce: the first nonce of the execution.
        assignment: the task and its parameters, as `describe_assignment` writes them.
        calibration: what the counter of tokens had learnt when the repair began.
        kept_characters: how much of prompts and replies is kept of each candidate; 0: nothing.
    """

    tenant: str
    subject: str
    execution_id: str
    nonce: str
    assignment: Json
    calibration: Json
    kept_characters: int = 0


@value
class RepairBatch:
    """What an engine has done since the batch before.

    Attributes:
        events: the new events, in order.
        usage: what the model calls cost.
        checks: how many runs of checks were made.
        check_cpu_s: their processor time.
        warnings: all that the caller should know of what the critics did so far.
        level: the level of the sandbox in which checks run; None before the first.
        outcome: the best candidate so far; in the last batch what came of the repair.
        is_last: whether the repair is over.
        error: why it failed; only in the last batch.
        calls: what model calls were sent and what came back: bodies of records by key, if they are kept.
    """

    events: Sequence[Event] = ()
    usage: Usage = NOTHING
    checks: int = 0
    check_cpu_s: float = 0.0
    warnings: Sequence[str] = ()
    level: SandboxLevel | None = None
    outcome: RepairOutcome
    is_last: bool = False
    error: ReasondError | None = None
    calls: Mapping[str, str] = field(default_factory=dict)


class RepairEngine(Protocol):
    """Works repairs out in other processes; what it has done is kept until `forget`."""

    async def require_reachable(self) -> None:
        """Refuse a repair that could not begin.

        Raises:
            EngineUnavailableError: the engine cannot be reached.
        """

    def work_out(self, order: RepairOrder) -> AsyncGenerator[RepairBatch, None]:
        """Begin a repair, or find the one that was begun, and yield all its batches from the first one.

        Who leaves it does not stop the repair.

        Raises:
            EngineFailedError: the engine ended the repair without a result.
        """

    async def stop(self, order: RepairOrder) -> None:
        """Stop a repair, if it goes on; never raises."""

    def forget(self, order: RepairOrder) -> None:
        """Remove what is kept of a repair that is over, soon; never raises."""


@dataclass(eq=False, kw_only=True)
class BatchedRepair:
    """A repair that an engine works out: its events are appended here, in the process that holds its log.

    Args:
        append: appends an event to the log.
        record: appends a record to it, by its key and body.
        charge: adds the cost of model calls to the run.
        pause: awaited after each batch; returns whether the work has to stop here.

    Attributes:
        is_over: whether the engine has told how it ended.
        rounds: the rounds of the search so far.
        warnings, checks_run, check_cpu_s: as in `RepairActivities`.
        level: the level of the sandbox in which checks run; None before the first.
    """

    append: Callable[[Event], None]
    record: Callable[[str, str], None]
    charge: Callable[[Usage], None]
    pause: Callable[[], Awaitable[bool]]

    def __post_init__(self) -> None:
        self._best = RepairOutcome()
        self.is_over = False
        self.rounds: list[ReflectionIteration] = []
        self.warnings: Sequence[str] = ()
        self.checks_run = 0
        self.check_cpu_s = 0.0
        self.level: SandboxLevel | None = None

    async def work(self, batches: AsyncGenerator[RepairBatch, None]) -> RepairOutcome | None:
        """Take all batches; return what came of the repair, or None if the work has to stop before.

        Raises:
            ReasondError: the repair failed.
        """
        async with aclosing(batches):
            async for batch in batches:
                self._take(batch)
                if batch.error is not None:
                    raise batch.error
                if batch.is_last:
                    return batch.outcome
                if await self.pause():
                    break
        return None

    def summarize(self, finish_reason: FinishReason) -> RepairOutcome:
        """Return what is known of a repair that was stopped: the best candidate so far, not accepted."""
        return replace(self._best, finish_reason=finish_reason)

    def _take(self, batch: RepairBatch) -> None:
        self.charge(batch.usage)
        self.checks_run += batch.checks
        self.check_cpu_s += batch.check_cpu_s
        self.warnings, self.level = batch.warnings, batch.level
        self._best, self.is_over = batch.outcome, batch.is_last
        for key, body in batch.calls.items():
            self.record(key, body)
        for event in batch.events:
            if isinstance(event, ReflectionStep):
                self.rounds.append(event.reflection)
            self.append(event)
