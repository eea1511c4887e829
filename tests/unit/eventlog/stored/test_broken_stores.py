"""The conformance checks fail on stores that break the contract. Other tests show that our stores pass them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from reasond_server.errors.base import ReasondError
from reasond_server.eventlog.store import Append, Change, Claim, ExecutionFilter, Lease, Recovery, Renewal, SessionClaim
from reasond_server.eventlog.stored.sqlite_store import MemoryExecutionStore
from reasond_server.types import Execution, LoggedEvent
from tests.stores.conformance import ExecutionStoreConformance
from tests.stores.expectations import StoreContractError
from tests.stores.logs import START
from tests.stores.statements import run_statement


class Time:
    def __init__(self) -> None:
        self.time: datetime = START

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return self.time.timestamp()

    async def advance(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


class Broken(MemoryExecutionStore):
    """A store in memory that reads and changes its rows as it likes."""

    async def run(self, statement: str, *values: object) -> Sequence[Sequence[Any]]:
        return await run_statement(self, statement, *values)

    async def read_head(self, part: Append) -> tuple[int, int]:
        """Return fence and version of the log; those of the part if there is none."""
        rows = await self.run(
            "SELECT fence, version FROM executions WHERE execution_id = ?", part.execution.execution_id
        )
        return (rows[0][0], rows[0][1]) if rows else (part.fence, part.version)


class NoFence(Broken):
    """Accepts a writer that was replaced."""

    async def append(self, batch: Sequence[Append]) -> Sequence[ReasondError | None]:
        return await super().append([replace(part, fence=(await self.read_head(part))[0]) for part in batch])


class NoVersion(Broken):
    """Appends at the current version of the log, whatever version the writer gives."""

    async def append(self, batch: Sequence[Append]) -> Sequence[ReasondError | None]:
        return await super().append([replace(part, version=(await self.read_head(part))[1]) for part in batch])


class AllOrNothing(Broken):
    """Refuses a whole batch because of one part."""

    async def append(self, batch: Sequence[Append]) -> Sequence[ReasondError | None]:
        outcomes = await super().append(batch)
        wrong = next((one for one in outcomes if one is not None), None)
        return [wrong for _ in batch]


class LostAnswers(Broken):
    """Does not recognise a repeated append."""

    async def append(self, batch: Sequence[Append]) -> Sequence[ReasondError | None]:
        again = [
            replace(part, version=-1) if (await self.read_head(part))[1] >= part.version + len(part.entries) else part
            for part in batch
        ]
        return await super().append(again)


class Deaf(Broken):
    """Notifies nobody."""

    def watch(self, execution_id: str, notify: Callable[[Change], None]) -> AbstractContextManager[None]:
        del execution_id, notify
        return nullcontext()


class SharedOrphans(Broken):
    """Gives one orphan to every process that asks."""

    async def recover(self, lease: Lease, *, limit: int) -> Sequence[Recovery]:
        return await super().recover(replace(lease, seconds=-1), limit=limit)


class Greedy(Broken):
    """Recovers more executions than were asked for."""

    async def recover(self, lease: Lease, *, limit: int) -> Sequence[Recovery]:
        return await super().recover(lease, limit=limit + 100)


class Mixed(Broken):
    """Shows every execution to every tenant."""

    async def find(self, tenant: str, execution_id: str) -> Execution:
        owners = await self.run("SELECT tenant FROM executions WHERE execution_id = ?", execution_id)
        return await super().find(owners[0][0] if owners else tenant, execution_id)


class OldestFirst(Broken):
    """Lists in the wrong order."""

    async def page(self, *arguments: Any, **options: Any) -> Sequence[Execution]:
        return (await super().page(*arguments, **options))[::-1]


class Unfiltered(Broken):
    """Lists all executions and ignores the filter."""

    async def page(
        self, tenant: str, wanted: ExecutionFilter, *, size: int, before: tuple[float, str] | None
    ) -> Sequence[Execution]:
        del wanted
        return await super().page(tenant, ExecutionFilter(), size=size, before=before)


class Content(Broken):
    """Never reports a cancellation when a lease is renewed."""

    async def renew(self, lease: Lease, fences: Any) -> Renewal:
        return replace(await super().renew(lease, fences), cancel_requested=())


class Sticky(Broken):
    """Never releases a request id."""

    async def release(self, tenant: str, execution_id: str) -> None:
        await self.find(tenant, execution_id)


class Generous(Broken):
    """Gives one suspended execution to every process that wakes it."""

    async def wake(
        self, lease: Lease, tenant: str, execution_id: str, *, event: LoggedEvent | None = None
    ) -> Recovery | None:
        del lease, event
        execution = await self.find(tenant, execution_id)
        taken = Recovery(execution=execution, plan="", events=(), records=(), version=1, fence=1)
        return None if execution.state.has_ended else taken


class Crowded(Broken):
    """Lets any number of executions enter a session."""

    async def create(self, execution: Execution, *, session: SessionClaim | None = None, **creation: Any) -> Claim:
        await self.run("UPDATE executions SET session_id = '' WHERE session_id = ?", execution.session_id)
        claim = session and replace(session, if_revision=None)
        return await super().create(execution, session=claim, **creation)


class Careless(Broken):
    """Counts the end of an execution only if it leaves a state to its session."""

    async def append(self, batch: Sequence[Append]) -> Sequence[ReasondError | None]:
        refusals = await super().append(batch)
        for part in batch:
            if part.session_end is None and part.execution.state.has_ended:
                await self.run(
                    "UPDATE sessions SET revision = revision - 1 WHERE session_id = ?", part.execution.session_id
                )
        return refusals


class Sleepy(Broken):
    """Never recovers a suspended execution."""

    async def recover(self, lease: Lease, *, limit: int) -> Sequence[Recovery]:
        return [one for one in await super().recover(lease, limit=limit) if not one.was_suspended]


class Leasing(Broken):
    """Accepts further appends from the process that suspended an execution."""

    async def append(self, batch: Sequence[Append]) -> Sequence[ReasondError | None]:
        for part in batch:
            name = part.execution.execution_id
            await self.run("UPDATE executions SET state = 'running' WHERE execution_id = ? AND wake_time IS NULL", name)
        return await super().append(batch)


class Unlimited(Broken):
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
async def test_a_store_that_breaks_the_contract_is_found_out(broken: type[Broken], check: str) -> None:
    time = Time()
    store = broken(now=time.now, monotonic=time.monotonic)
    with pytest.raises((StoreContractError, ReasondError)):
        await ExecutionStoreConformance(store, pass_time=time.advance).check(check)


async def test_a_store_that_tells_nobody_is_found_out_by_time() -> None:
    time = Time()
    store = Deaf(now=time.now, monotonic=time.monotonic)
    with pytest.raises(StoreContractError, match="took longer than"):
        await ExecutionStoreConformance(store, pass_time=time.advance, timeout_s=0.05).check("tells_watchers")


async def test_a_check_that_does_not_exist_is_refused() -> None:
    time = Time()
    store = MemoryExecutionStore(now=time.now, monotonic=time.monotonic)
    with pytest.raises(ValueError, match="nope"):
        await ExecutionStoreConformance(store, pass_time=time.advance).check("nope")
