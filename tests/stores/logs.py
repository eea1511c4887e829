"""Logs that a test writes by hand."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from reasond_server.eventlog.store import Append, Lease, Record
from reasond_server.types import (
    CustomStep,
    Execution,
    ExecutionStarted,
    ExecutionState,
    FinishReason,
    Iteration,
    LoggedEvent,
    Metrics,
    Result,
    StrategySource,
    Usage,
)

if TYPE_CHECKING:
    from reasond_server.errors.base import ReasondError
    from reasond_server.eventlog.store import Claim, ExecutionStore, Recovery
    from reasond_server.types import Event

START = datetime(2026, 11, 21, tzinfo=UTC)
KEPT_S = 60.0
LEASE_S = 15.0


@dataclass(slots=True, kw_only=True)
class HandWrittenLog:
    """One execution and its writer: it builds the appends that continue the log, and counts the accepted ones."""

    store: ExecutionStore
    execution: Execution
    version: int = 0
    fence: int = 1
    minute: int = field(default=0)

    @classmethod
    def new(
        cls,
        store: ExecutionStore,
        *,
        tenant: str,
        strategy: str = "s",
        request_id: str = "",
        minute: int = 0,
        kind: str = "reasoning",
    ) -> HandWrittenLog:
        """Return the log of a new execution, created `minute` minutes after START; the store does not know it yet."""
        execution = Execution(
            execution_id=uuid.uuid4().hex,
            tenant=tenant,
            state=ExecutionState.RUNNING,
            strategy=strategy,
            strategy_source=StrategySource.SYSTEM,
            model="m",
            create_time=START + timedelta(minutes=minute),
            request_id=request_id,
            kind=kind,
        )
        return cls(store=store, execution=execution)

    @property
    def name(self) -> tuple[str, str]:
        """Tenant and execution id."""
        return self.execution.tenant, self.execution.execution_id

    async def create(
        self, *, digest: str = "d", plan: str = "{}", owner: str = "one", seconds: float = LEASE_S, inherits: str = ""
    ) -> Claim:
        """Create the execution in the store."""
        lease = Lease(owner=owner, seconds=seconds)
        return await self.store.create(self.execution, digest=digest, plan=plan, lease=lease, inherits=inherits)

    def part(self, *bodies: Event | Record, keeps_records: bool = False, keeps_plan: bool = False) -> Append:
        """Return the append of `bodies` to the current log."""
        entries: list[LoggedEvent | Record] = []
        sequence = self.execution.last_sequence
        for body in bodies:
            if isinstance(body, Record):
                entries.append(body)
            else:
                sequence += 1
                entries.append(LoggedEvent(sequence=sequence, create_time=START, event=body))
        execution = replace(self.execution, last_sequence=sequence)
        last = bodies[-1] if bodies else None
        if isinstance(last, Result):
            execution = _end(execution, last)
        return Append(
            execution=execution,
            entries=entries,
            version=self.version,
            fence=self.fence,
            keeps_records=keeps_records,
            keeps_plan=keeps_plan,
        )

    def suspension(self, *bodies: Event | Record, wake_time: datetime | None = None) -> Append:
        """Return the append of `bodies` that suspends the execution."""
        part = self.part(*bodies)
        execution = replace(part.execution, state=ExecutionState.SUSPENDED, wake_time=wake_time)
        return replace(part, execution=execution)

    async def suspend(self, *bodies: Event | Record, wake_time: datetime | None = None) -> ReasondError | None:
        """Append `bodies`, suspending the execution, and return the error of a refusal, or None."""
        part = self.suspension(*bodies, wake_time=wake_time)
        (refused,) = await self.store.append([part])
        if refused is None:
            self.took(part)
        return refused

    def go_on(self, recovery: Recovery) -> None:
        """Write from now on as the owner of `recovery`."""
        self.execution, self.version, self.fence = recovery.execution, recovery.version, recovery.fence

    def took(self, part: Append) -> None:
        """Record that the store has accepted `part`."""
        self.execution = part.execution
        self.version += len(part.entries)

    async def write(
        self, *bodies: Event | Record, keeps_records: bool = False, keeps_plan: bool = False
    ) -> ReasondError | None:
        """Append `bodies` and return the error of a refusal, or None."""
        part = self.part(*bodies, keeps_records=keeps_records, keeps_plan=keeps_plan)
        (refused,) = await self.store.append([part])
        if refused is None:
            self.took(part)
        return refused

    def result(self, reason: FinishReason = FinishReason.ANSWERED, *, answer: str = "yes") -> Result:
        """Return a Result of the execution."""
        return Result(
            execution_id=self.execution.execution_id,
            answer=answer,
            strategy_used="s",
            strategy_source=StrategySource.SYSTEM,
            finish_reason=reason,
            metrics=Metrics(usage=Usage(), execution_time_s=0.5),
            warnings=(),
            model="m",
        )


def first_event() -> ExecutionStarted:
    """Return the first event of a log."""
    return ExecutionStarted(strategy="s", strategy_source=StrategySource.SYSTEM, model="m", config={})


def step(text: str = "step", *, index: int = 0) -> Iteration:
    """Return a step with the text `text`."""
    detail = CustomStep(data={"text": text})
    return Iteration(index=index, answer_found=False, usage=Usage(), elapsed_s=0.25, detail=detail)


def _end(execution: Execution, result: Result) -> Execution:
    is_cancelled = result.finish_reason is FinishReason.CANCELLED
    return replace(
        execution,
        state=ExecutionState.CANCELLED if is_cancelled else ExecutionState.SUCCEEDED,
        finish_reason=result.finish_reason,
        end_time=START,
        expire_time=START + timedelta(seconds=KEPT_S),
    )
