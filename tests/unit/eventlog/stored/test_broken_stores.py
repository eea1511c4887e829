"""The conformance checks fail on stores that break the contract. Other tests show that our stores pass them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from reasond_server.errors.base import ReasondError
from reasond_server.eventlog.memory import MemoryExecutionStore
from reasond_server.eventlog.store import Append, Change, ExecutionFilter, Lease, Recovery, Renewal
from reasond_server.types import Execution, ExecutionState, LoggedEvent
from tests.stores.conformance import ExecutionStoreConformance
from tests.stores.expectations import StoreContractError
from tests.stores.logs import START


class Time:
    def __init__(self) -> None:
        self.time: datetime = START

    def now(self) -> datetime:
        return self.time

    async def advance(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


class NoFence(MemoryExecutionStore):
    """Accepts a writer that was replaced."""

    async def append(self, batch: Sequence[Append]) -> Sequence[ReasondError | None]:
        logs = self._logs
        fences = [
            logs[part.execution.execution_id].fence if part.execution.execution_id in logs else 1 for part in batch
        ]
        return await super().append([replace(part, fence=fence) for part, fence in zip(batch, fences, strict=True)])


class NoVersion(MemoryExecutionStore):
    """Appends at the current version of the log, whatever version the writer gives."""

    async def append(self, batch: Sequence[Append]) -> Sequence[ReasondError | None]:
        moved = []
        for part in batch:
            log = self._logs.get(part.execution.execution_id)
            moved.append(part if log is None else replace(part, version=log.version))
        return await super().append(moved)


class AllOrNothing(MemoryExecutionStore):
    """Refuses a whole batch because of one part."""

    async def append(self, batch: Sequence[Append]) -> Sequence[ReasondError | None]:
        outcomes = await super().append(batch)
        wrong = next((one for one in outcomes if one is not None), None)
        return [wrong for _ in batch]


class LostAnswers(MemoryExecutionStore):
    """Does not recognise a repeated append."""

    async def append(self, batch: Sequence[Append]) -> Sequence[ReasondError | None]:
        known = [part.execution.execution_id in self._logs for part in batch]
        before = [
            self._logs[part.execution.execution_id].version if is_known else 0
            for part, is_known in zip(batch, known, strict=True)
        ]
        again = [
            replace(part, version=-1) if version >= part.version + len(part.entries) > 0 else part
            for part, version in zip(batch, before, strict=True)
        ]
        return await super().append(again)


class Deaf(MemoryExecutionStore):
    """Notifies nobody."""

    def watch(self, execution_id: str, notify: Callable[[Change], None]) -> AbstractContextManager[None]:
        del execution_id, notify
        return nullcontext()


class SharedOrphans(MemoryExecutionStore):
    """Gives one orphan to every process that asks."""

    async def recover(self, lease: Lease, *, limit: int) -> Sequence[Recovery]:
        return await super().recover(replace(lease, seconds=-1), limit=limit)


class Greedy(MemoryExecutionStore):
    """Recovers more executions than were asked for."""

    async def recover(self, lease: Lease, *, limit: int) -> Sequence[Recovery]:
        return await super().recover(lease, limit=limit + 100)


class Mixed(MemoryExecutionStore):
    """Shows every execution to every tenant."""

    async def find(self, tenant: str, execution_id: str) -> Execution:
        return (
            self._logs[execution_id].execution
            if execution_id in self._logs
            else await super().find(tenant, execution_id)
        )


class OldestFirst(MemoryExecutionStore):
    """Lists in the wrong order."""

    async def page(self, *arguments: Any, **options: Any) -> Sequence[Execution]:
        return (await super().page(*arguments, **options))[::-1]


class Unfiltered(MemoryExecutionStore):
    """Lists all executions and ignores the filter."""

    async def page(
        self, tenant: str, wanted: ExecutionFilter, *, size: int, before: tuple[float, str] | None
    ) -> Sequence[Execution]:
        del wanted
        return await super().page(tenant, ExecutionFilter(), size=size, before=before)


class Content(MemoryExecutionStore):
    """Never reports a cancellation when a lease is renewed."""

    async def renew(self, lease: Lease, fences: Any) -> Renewal:
        return replace(await super().renew(lease, fences), cancel_requested=())


class Sticky(MemoryExecutionStore):
    """Never releases a request id."""

    async def release(self, tenant: str, execution_id: str) -> None:
        await self.find(tenant, execution_id)


class Generous(MemoryExecutionStore):
    """Gives one suspended execution to every process that wakes it."""

    async def wake(
        self, lease: Lease, tenant: str, execution_id: str, *, event: LoggedEvent | None = None
    ) -> Recovery | None:
        log = self._table.find(tenant, execution_id)
        return log.take(lease, now_s=0.0, event=event) if log.execution.end_time is None else None


class Crowded(MemoryExecutionStore):
    """Lets any number of executions enter a session."""

    def __init__(self, **limits: Any) -> None:
        super().__init__(**limits)
        self._table.sessions.require_entry = lambda *_: None  # type: ignore[method-assign]  # on purpose


class Careless(MemoryExecutionStore):
    """Frees a session only if its execution leaves a state."""

    async def append(self, batch: Sequence[Append]) -> Sequence[ReasondError | None]:
        for part in batch:
            if part.session_end is None and part.execution.state.has_ended:
                self._table.sessions.detach(part.execution)
        return await super().append(batch)


class Sleepy(MemoryExecutionStore):
    """Never recovers a suspended execution."""

    async def recover(self, lease: Lease, *, limit: int) -> Sequence[Recovery]:
        return [one for one in await super().recover(lease, limit=limit) if not one.was_suspended]


class Leasing(MemoryExecutionStore):
    """Accepts further appends from the process that suspended an execution."""

    async def append(self, batch: Sequence[Append]) -> Sequence[ReasondError | None]:
        for part in batch:
            if (log := self._logs.get(part.execution.execution_id)) and log.execution.wake_time is None:
                log.execution = replace(log.execution, state=ExecutionState.RUNNING)
        return await super().append(batch)


class Unlimited(MemoryExecutionStore):
    """Ignores the limit of a read."""

    async def read(self, tenant: str, execution_id: str, *, after: int = 0, limit: int | None = None) -> Any:
        del limit
        return await super().read(tenant, execution_id, after=after)


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (NoFence, "refuses_a_lost_lease"),
        (NoVersion, "refuses_another_version"),
        (AllOrNothing, "takes_the_rest_of_a_batch"),
        (LostAnswers, "takes_a_repeated_append_once"),
        (SharedOrphans, "recovers_orphans_once"),
        (Greedy, "recovers_orphans_once"),
        (Mixed, "keeps_tenants_apart"),
        (OldestFirst, "pages_newest_first"),
        (Unfiltered, "pages_newest_first"),
        (Content, "passes_a_cancellation_on"),
        (Sticky, "gives_a_request_id_up"),
        (Unlimited, "reads_in_pages"),
        (Generous, "lets_one_of_many_wakes_win"),
        (Generous, "wakes_nothing_else"),
        (Generous, "lets_one_of_many_events_wake"),
        (Crowded, "lets_one_of_many_starts_win"),
        (Crowded, "compares_the_revision"),
        (Careless, "frees_a_session_whatever_ends_its_execution"),
        (Sleepy, "wakes_at_its_time"),
        (Sleepy, "wakes_what_somebody_wants_stopped"),
        (Leasing, "refuses_what_follows_a_suspension"),
    ],
)
async def test_a_store_that_breaks_the_contract_is_found_out(broken: type[MemoryExecutionStore], check: str) -> None:
    time = Time()
    store = broken(max_executions=1000, max_bytes=10**6, now=time.now)
    with pytest.raises((StoreContractError, ReasondError)):
        await ExecutionStoreConformance(store, pass_time=time.advance).check(check)


async def test_a_store_that_tells_nobody_is_found_out_by_time() -> None:
    time = Time()
    store = Deaf(max_executions=1000, max_bytes=10**6, now=time.now)
    with pytest.raises(StoreContractError, match="took longer than"):
        await ExecutionStoreConformance(store, pass_time=time.advance, timeout_s=0.05).check("tells_watchers")


async def test_a_check_that_does_not_exist_is_refused() -> None:
    time = Time()
    store = MemoryExecutionStore(max_executions=1, max_bytes=1, now=time.now)
    with pytest.raises(ValueError, match="nope"):
        await ExecutionStoreConformance(store, pass_time=time.advance).check("nope")
