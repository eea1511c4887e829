"""The contract of every store of event logs, as checks for any implementation: the runner relies on nothing else."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from reasond_server.errors.base import InternalError
from reasond_server.errors.executions import CursorExpiredError, ExecutionNotFoundError
from reasond_server.errors.limits import StoreFullError
from reasond_server.eventlog.store import Change, ExecutionFilter, Lease, LeaseLostError, Record
from reasond_server.types import FinishReason
from tests.stores.creations import CreationChecks
from tests.stores.expectations import StoreContractError, expect_refusal, nothing, raises, same
from tests.stores.listings import ListingChecks
from tests.stores.logs import KEPT_S, LEASE_S, HandWrittenLog, first_event, step
from tests.stores.sessions import SessionChecks
from tests.stores.suspensions import SuspensionChecks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from reasond_server.eventlog.store import ExecutionStore, Recovery

_EVERYTHING = ExecutionFilter()
_CALLERS = 5
_HOSTILE = ("", "\x00", "\ud800", "a" * 5000, "'; DROP TABLE executions; --", "%s :name")


class ExecutionStoreConformance:
    """Checks one store, which may contain other executions, but no orphans.

    Args:
      store: the store to check; it is not closed. Its clock shows `tests.stores.logs.START` at first.
      pass_time: lets that many seconds pass, for leases and for `expire_time`.
      races: the number of races between two writers.
      largest_log_bytes: a number of bytes of text that exceeds every limit of the store for one log.
      timeout_s: the time limit of one check, in seconds.
    """

    CHECKS: ClassVar[tuple[str, ...]] = (
        "keeps_what_was_appended",
        "refuses_gaps_and_what_follows_the_end",
        "refuses_another_version",
        "refuses_a_lost_lease",
        "takes_the_rest_of_a_batch",
        "takes_several_parts_of_one_log",
        "takes_a_repeated_append_once",
        "lets_one_of_two_writers_win",
        "bounds_a_log_that_can_still_end",
        "keeps_tenants_apart",
        "answers_hostile_names",
        "holds_a_request_id_once",
        "lets_one_of_many_creators_win",
        "gives_a_request_id_up",
        "lets_a_cancelled_run_be_inherited",
        "inherits_from_cancelled_runs_only",
        "drops_records_at_the_end",
        "reads_in_pages",
        "recovers_orphans_once",
        "renews_leases",
        "gives_leases_back",
        "passes_a_cancellation_on",
        "passes_a_wish_to_keep_on",
        "tells_watchers",
        "deletes_everything",
        "forgets_in_batches",
        "frees_the_request_id_of_what_is_past",
        *CreationChecks.CHECKS,
        *ListingChecks.CHECKS,
        *SuspensionChecks.CHECKS,
        *SessionChecks.CHECKS,
    )

    def __init__(
        self,
        store: ExecutionStore,
        *,
        pass_time: Callable[[float], Awaitable[None]],
        races: int = 20,
        largest_log_bytes: int = 64 * 1024 * 1024,
        timeout_s: float = 180.0,
    ) -> None:
        self._store = store
        self._pass_time = pass_time
        self._races = races
        self._largest = largest_log_bytes
        self._timeout_s = timeout_s
        self._tenant = uuid.uuid4().hex
        self._others = (
            CreationChecks(store, pass_time=pass_time, tenant=self._tenant),
            ListingChecks(store, tenant=self._tenant),
            SuspensionChecks(store, pass_time=pass_time, tenant=self._tenant),
            SessionChecks(store, pass_time=pass_time, tenant=self._tenant),
        )

    async def check(self, name: str) -> None:
        """Run one of CHECKS.

        Raises:
          StoreContractError: the store violates its contract.
        """
        if name not in self.CHECKS:
            raise ValueError(name)
        check = next((getattr(other, name) for other in self._others if name in other.CHECKS), None)
        try:
            async with asyncio.timeout(self._timeout_s):
                await (check or getattr(self, f"_{name}"))()
        except TimeoutError:
            raise StoreContractError(f"{name} took longer than {self._timeout_s} s") from None

    async def _keeps_what_was_appended(self) -> None:
        log = await self._begin_log()
        nothing(await log.write(step("a"), Record(key="k", body='{"b":1}'), step("b")))
        nothing(await log.write(log.result()))
        same(await self._sequences(log), [1, 2, 3, 4])
        events = await self._store.read(*log.name)
        same([event.event for event in events], [first_event(), step("a"), step("b"), log.result()])
        same(await self._store.find(*log.name), log.execution)

    async def _refuses_gaps_and_what_follows_the_end(self) -> None:
        log = await self._begin_log()
        gap = log.part(step(), step())
        expect_refusal(InternalError, (await self._store.append([replace(gap, entries=gap.entries[1:])]))[0])
        wrong = replace(gap, execution=log.execution)
        expect_refusal(InternalError, (await self._store.append([wrong]))[0])
        after_end = log.part(log.result(), step())
        expect_refusal(InternalError, (await self._store.append([after_end]))[0])
        same(await self._sequences(log), [1])
        ended = await self._end_log()
        expect_refusal(InternalError, await ended.write(step()))
        ended_running = await self._begin_log()
        part = ended_running.part(ended_running.result())
        still_running = ended_running.part(step()).execution
        expect_refusal(InternalError, (await self._store.append([replace(part, execution=still_running)]))[0])
        same(await self._sequences(ended_running), [1])

    async def _refuses_another_version(self) -> None:
        log = await self._begin_log()
        log.version -= 1
        expect_refusal(InternalError, await log.write(step("behind")))
        log.version += 2
        expect_refusal(InternalError, await log.write(step("ahead")))
        same(await self._sequences(log), [1])

    async def _refuses_a_lost_lease(self) -> None:
        log = await self._begin_log()
        await self._pass_time(LEASE_S + 1)
        # The lease has expired, but nobody has taken it: its writer is still alive.
        nothing(await log.write(step("late")))
        taken = await self._recover_one(log, owner="two")
        expect_refusal(LeaseLostError, await log.write(step("too late")))
        log.fence = taken.fence
        nothing(await log.write(step("of two")))
        same(await self._sequences(log), [1, 2, 3])

    async def _takes_the_rest_of_a_batch(self) -> None:
        first, wrong, gone, last = [await self._begin_log() for _ in range(4)]
        await self._store.delete(*gone.name)
        wrong.fence += 1
        outcomes = await self._store.append([log.part(step()) for log in (first, wrong, gone, last)])
        nothing(outcomes[0])
        expect_refusal(LeaseLostError, outcomes[1])
        expect_refusal(ExecutionNotFoundError, outcomes[2])
        nothing(outcomes[3])
        for log, expected in ((first, [1, 2]), (wrong, [1]), (last, [1, 2])):
            same(await self._sequences(log), expected)
        same(list(await self._store.append([])), [])

    async def _takes_several_parts_of_one_log(self) -> None:
        log = await self._begin_log()
        first = log.part(step("a"))
        log.took(first)
        second = log.part(Record(key="k", body="{}"), step("b"))
        log.took(second)
        last = log.part(log.result())
        same(list(await self._store.append([first, second, last])), [None, None, None])
        same(await self._sequences(log), [1, 2, 3, 4])
        same(await self._store.find(*log.name), last.execution)

    async def _takes_a_repeated_append_once(self) -> None:
        log = await self._begin_log()
        for bodies in ([step("a"), Record(key="k", body="{}")], [Record(key="l", body="{}")], [log.result()]):
            part = log.part(*bodies)
            same([*await self._store.append([part]), *await self._store.append([part])], [None, None])
            log.took(part)
        same(await self._sequences(log), [1, 2, 3])
        unlike = await self._begin_log()
        part = unlike.part(step("a"))
        nothing((await self._store.append([part]))[0])
        expect_refusal(InternalError, (await self._store.append([unlike.part(step("b"))]))[0])
        created = self._log(request_id=uuid.uuid4().hex)
        same(await created.create(), await created.create())

    async def _lets_one_of_two_writers_win(self) -> None:
        log = await self._begin_log()
        for race in range(self._races):
            parts = [log.part(step(f"{race} by {writer}")) for writer in "ab"]
            outcomes = await asyncio.gather(*(self._store.append([part]) for part in parts))
            winners = [part for part, (outcome,) in zip(parts, outcomes, strict=True) if outcome is None]
            if len(winners) != 1:
                raise StoreContractError(f"{len(winners)} of two writers won race {race}")
            log.took(winners[0])
        same(await self._sequences(log), list(range(1, self._races + 2)))

    async def _bounds_a_log_that_can_still_end(self) -> None:
        log = await self._begin_log()
        expect_refusal(StoreFullError, await log.write(step("x" * self._largest)))
        nothing(await log.write(log.result()))
        same(await self._sequences(log), [1, 2])

    async def _keeps_tenants_apart(self) -> None:
        log = await self._begin_log(request_id="same")
        stranger = (uuid.uuid4().hex, log.execution.execution_id)
        for call in self._calls():
            await raises(ExecutionNotFoundError, call(*stranger))
        same(list(await self._store.page(stranger[0], _EVERYTHING, size=9, before=None)), [])
        nothing(await self._store.find_claim(stranger[0], "same"))
        await self._store.announce(*stranger)
        other = HandWrittenLog.new(self._store, tenant=stranger[0], request_id="same")
        same((await other.create()).execution_id, other.execution.execution_id)
        part = log.part(step())
        (outcome,) = await self._store.append([replace(part, execution=replace(part.execution, tenant=stranger[0]))])
        expect_refusal(ExecutionNotFoundError, outcome)
        same(await self._store.find(*log.name), log.execution)

    async def _answers_hostile_names(self) -> None:
        await self._begin_log()
        for name in _HOSTILE:
            for call in self._calls():
                await raises(ExecutionNotFoundError, call(self._tenant, name))
                await raises(ExecutionNotFoundError, call(name, name))
            nothing(await self._store.find_claim(self._tenant, name))
            await self._store.announce(self._tenant, name)
            wanted = ExecutionFilter(strategy=name or "none")
            same(list(await self._store.page(self._tenant, wanted, size=9, before=None)), [])
            await self._store.page(name, _EVERYTHING, size=1, before=(1.0, name))

    async def _holds_a_request_id_once(self) -> None:
        first, second = self._log(request_id="r"), self._log(request_id="r")
        same((await first.create(digest="one")).digest, "one")
        claim = await second.create(digest="two")
        same((claim.execution_id, claim.digest), (first.execution.execution_id, "one"))
        same(await self._store.find_claim(self._tenant, "r"), claim)
        await raises(ExecutionNotFoundError, self._store.find(*second.name))
        one, two = self._log(), self._log()
        for log in (one, two):
            same((await log.create()).execution_id, log.execution.execution_id)

    async def _lets_one_of_many_creators_win(self) -> None:
        logs = [self._log(request_id="race") for _ in range(100)]
        claims = await asyncio.gather(*(log.create() for log in logs))
        same(len({claim.execution_id for claim in claims}), 1)
        page = await self._store.page(self._tenant, _EVERYTHING, size=200, before=None)
        same([one.execution_id for one in page], [claims[0].execution_id])

    async def _gives_a_request_id_up(self) -> None:
        first, second = await self._begin_log(request_id="r"), self._log(request_id="r")
        await self._store.release(*first.name)
        nothing(await self._store.find_claim(self._tenant, "r"))
        same((await second.create()).execution_id, second.execution.execution_id)
        await self._store.release(*first.name)
        await self._store.delete(*first.name)
        claim = await self._store.find_claim(self._tenant, "r")
        same(claim and claim.execution_id, second.execution.execution_id)

    async def _lets_a_cancelled_run_be_inherited(self) -> None:
        records = [Record(key="a", body='{"x":1}'), Record(key="b", body="{}")]
        parent = await self._begin_log(request_id="r", plan='{"p":1}')
        nothing(await parent.write(records[0], step(), records[1]))
        nothing(await parent.write(parent.result(FinishReason.CANCELLED), keeps_records=True))
        kept = await self._store.read_checkpoint(*parent.name)
        same((kept.plan, list(kept.records)), ('{"p":1}', records))
        child = self._log(request_id="r")
        claim = await child.create(inherits=parent.execution.execution_id, digest="new")
        same((claim.execution_id, claim.digest, claim.inherited), (child.execution.execution_id, "new", len(records)))
        same(list((await self._store.read_checkpoint(*child.name)).records), records)
        same(list((await self._store.read_checkpoint(*parent.name)).records), records)
        child.version = len(records)
        nothing(await child.write(first_event()))
        await self._pass_time(LEASE_S + 1)
        recovery = await self._recover_one(child)
        same((list(recovery.records), recovery.version, recovery.fence), (records, 3, 2))
        await self._store.delete(*parent.name)
        same((await self._store.find_claim(self._tenant, "r")), claim)
        again = await child.create(inherits=parent.execution.execution_id, digest="new")
        same((again, again.inherited), (claim, len(records)))
        orphan = self._log(request_id="q")
        same((await orphan.create(inherits=parent.execution.execution_id)).inherited, 0)
        nothing(await orphan.write(first_event()))

    async def _inherits_from_cancelled_runs_only(self) -> None:
        running = await self._begin_log(request_id="r")
        nothing(await running.write(Record(key="a", body="{}")))
        claim = await self._log(request_id="r").create(inherits=running.execution.execution_id)
        same(claim.execution_id, running.execution.execution_id)
        cancelled = await self._begin_log(request_id="q")
        nothing(await cancelled.write(Record(key="a", body="{}")))
        nothing(await cancelled.write(cancelled.result(FinishReason.CANCELLED), keeps_records=True))
        stranger = HandWrittenLog.new(self._store, tenant=uuid.uuid4().hex, request_id="q")
        await stranger.create(inherits=cancelled.execution.execution_id)
        same(list((await self._store.read_checkpoint(*stranger.name)).records), [])
        held = await self._begin_log(request_id="held")
        claim = await self._log(request_id="held").create(inherits=cancelled.execution.execution_id)
        same(claim.execution_id, held.execution.execution_id)

    async def _drops_records_at_the_end(self) -> None:
        log = await self._begin_log(plan='{"p":1}')
        nothing(await log.write(Record(key="a", body="{}"), step()))
        same([record.key for record in (await self._store.read_checkpoint(*log.name)).records], ["a"])
        nothing(await log.write(Record(key="b", body="{}"), log.result()))
        kept = await self._store.read_checkpoint(*log.name)
        same((kept.plan, list(kept.records)), ("", []))
        same(await self._sequences(log), [1, 2, 3])
        asked = await self._begin_log(plan='{"p":2}')
        same((await self._store.read_checkpoint(*asked.name, with_records=False)).plan, '{"p":2}')
        nothing(await asked.write(Record(key="c", body="{}"), asked.result(), keeps_plan=True))
        kept = await self._store.read_checkpoint(*asked.name)
        same((kept.plan, list(kept.records)), ('{"p":2}', []))

    async def _reads_in_pages(self) -> None:
        log = await self._begin_log()
        for index in range(5):
            nothing(await log.write(Record(key="k", body="{}"), step(str(index), index=index)))
        same(await self._sequences(log, after=2), [3, 4, 5, 6])
        same(await self._sequences(log, after=2, limit=3), [3, 4, 5])
        same(await self._sequences(log, after=6), [])
        same(await self._sequences(log, after=10**9), [])
        same(await self._sequences(log, limit=0), [])

    async def _recovers_orphans_once(self) -> None:
        logs = [await self._begin_log(plan=f'{{"n":{index}}}') for index in range(10)]
        for log in logs:
            nothing(await log.write(Record(key="k", body="{}"), step()))
        ended = await self._end_log()
        alive = await self._begin_log()
        same(await self._recoveries(), [])
        await self._pass_time(LEASE_S + 1)
        await self._store.renew(Lease(owner="one", seconds=LEASE_S), {alive.execution.execution_id: 1})
        lots = await asyncio.gather(*(self._recoveries(owner=f"owner {n}", limit=4) for n in range(_CALLERS)))
        found = [one for lot in lots for one in lot]
        same(sorted(one.execution.execution_id for one in found), sorted(log.execution.execution_id for log in logs))
        if max(map(len, lots)) > 4:
            raise StoreContractError("recover returned more than its limit")
        by_id = {one.execution.execution_id: one for one in found}
        one = by_id[logs[3].execution.execution_id]
        same((one.plan, one.version, one.fence, one.execution), ('{"n":3}', 3, 2, logs[3].execution))
        same([event.event for event in one.events], [first_event(), step()])
        same([record.key for record in one.records], ["k"])
        same(await self._recoveries(), [])
        same((await self._store.find(*ended.name)).finish_reason, FinishReason.ANSWERED)

    async def _renews_leases(self) -> None:
        log, ended, taken = await self._begin_log(), await self._end_log(), await self._begin_log()
        ids = [one.execution.execution_id for one in (log, ended, taken)]
        lease = Lease(owner="one", seconds=LEASE_S)
        renewal = await self._store.renew(lease, {ids[0]: 1, ids[1]: 1, ids[2]: 2, "unknown": 1})
        same((sorted(renewal.lost), list(renewal.cancel_requested)), (sorted([ids[1], ids[2], "unknown"]), []))
        stranger = await self._store.renew(Lease(owner="two", seconds=LEASE_S), {ids[0]: 1})
        same(list(stranger.lost), [ids[0]])
        await self._pass_time(LEASE_S - 5)
        same(list((await self._store.renew(lease, {ids[0]: 1})).lost), [])
        await self._pass_time(LEASE_S - 5)
        same([one.execution.execution_id for one in await self._recoveries()], [ids[2]])
        same(list((await self._store.renew(lease, {})).lost), [])

    async def _gives_leases_back(self) -> None:
        log = await self._begin_log()
        await self._store.renew(Lease(owner="one", seconds=0), {log.execution.execution_id: 1})
        same((await self._recover_one(log, owner="two")).fence, 2)

    async def _passes_a_cancellation_on(self) -> None:
        log, other = await self._begin_log(), await self._begin_log()
        await self._store.request_cancel(*log.name)
        fences = {one.execution.execution_id: 1 for one in (log, other)}
        renewal = await self._store.renew(Lease(owner="one", seconds=LEASE_S), fences)
        same((list(renewal.lost), list(renewal.cancel_requested)), ([], [log.execution.execution_id]))

    async def _passes_a_wish_to_keep_on(self) -> None:
        log, other = await self._begin_log(), await self._begin_log()
        await self._store.request_keep(*log.name)
        fences = {one.execution.execution_id: 1 for one in (log, other)}
        renewal = await self._store.renew(Lease(owner="one", seconds=0), fences)
        same((list(renewal.lost), list(renewal.keep_requested)), ([], [log.execution.execution_id]))
        found = {one.execution.execution_id: one.is_keep_requested for one in await self._recoveries()}
        same(found, {log.execution.execution_id: True, other.execution.execution_id: False})

    async def _tells_watchers(self) -> None:
        log, other = await self._begin_log(), await self._begin_log()
        heard: asyncio.Queue[Change] = asyncio.Queue()
        with ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(self._store.watch(log.execution.execution_id, heard.put_nowait))
            nothing(await other.write(step()))
            acts: Sequence[tuple[Change, Callable[[], Awaitable[object]]]] = (
                (Change.GREW, partial(log.write, step())),
                (Change.FOLLOWED, partial(self._store.announce, *log.name)),
                (Change.CANCEL_REQUESTED, partial(self._store.request_cancel, *log.name)),
                (Change.KEEP_REQUESTED, partial(self._store.request_keep, *log.name)),
                (Change.GREW, partial(self._store.delete, *log.name)),
            )
            for change, act in acts:
                await act()
                same([await _hear(heard, change), await _hear(heard, change)], [change, change])
        nothing(await other.write(step()))
        same(heard.empty(), True)

    async def _deletes_everything(self) -> None:
        for log in (await self._begin_log(request_id="r"), await self._end_log(request_id="q")):
            await self._store.delete(*log.name)
            for call in self._calls():
                await raises(ExecutionNotFoundError, call(*log.name))
            nothing(await self._store.find_claim(self._tenant, log.execution.request_id))
            expect_refusal(ExecutionNotFoundError, await log.write(step()))
        same(list(await self._store.page(self._tenant, _EVERYTHING, size=9, before=None)), [])

    async def _forgets_in_batches(self) -> None:
        running = await self._begin_log()
        logs = [await self._end_log() for _ in range(5)]
        same(await self._store.forget(limit=9), 0)
        await self._pass_time(KEPT_S + 1)
        await raises(CursorExpiredError, self._store.find(*logs[0].name))
        same(
            [one.execution_id for one in await self._store.page(self._tenant, _EVERYTHING, size=9, before=None)],
            [running.execution.execution_id],
        )
        removed = [await self._store.forget(limit=2) for _ in range(4)]
        # A store may also delete expired executions by itself.
        if removed not in ([2, 2, 1, 0], [0, 0, 0, 0]):
            raise StoreContractError(f"forget(limit=2) removed {removed} of five")
        for call in self._calls():
            await raises(CursorExpiredError, call(*logs[0].name))
        await raises(ExecutionNotFoundError, self._store.find("stranger", logs[0].execution.execution_id))
        same(await self._store.find(*running.name), running.execution)

    async def _frees_the_request_id_of_what_is_past(self) -> None:
        await self._end_log(request_id="r")
        await self._pass_time(KEPT_S + 1)
        nothing(await self._store.find_claim(self._tenant, "r"))
        log = self._log(request_id="r")
        same((await log.create()).execution_id, log.execution.execution_id)
        await self._store.forget(limit=9)
        claim = await self._store.find_claim(self._tenant, "r")
        same(claim and claim.execution_id, log.execution.execution_id)

    def _calls(self) -> Sequence[Callable[[str, str], Awaitable[object]]]:
        """Return the calls that need an existing execution."""
        store = self._store
        wishes = (store.request_cancel, store.request_keep)
        wake = partial(store.wake, Lease(owner="two", seconds=LEASE_S))
        return (
            store.find,
            store.read,
            store.delete,
            *wishes,
            store.release,
            store.read_checkpoint,
            wake,
        )

    def _log(self, *, strategy: str = "s", request_id: str = "", minute: int = 0) -> HandWrittenLog:
        return HandWrittenLog.new(
            self._store, tenant=self._tenant, strategy=strategy, request_id=request_id, minute=minute
        )

    async def _begin_log(self, *, request_id: str = "", plan: str = "{}") -> HandWrittenLog:
        """Return a running log with its first event."""
        log = self._log(request_id=request_id)
        await log.create(plan=plan)
        nothing(await log.write(first_event()))
        return log

    async def _end_log(self, *, request_id: str = "") -> HandWrittenLog:
        log = await self._begin_log(request_id=request_id)
        nothing(await log.write(log.result()))
        return log

    async def _sequences(self, log: HandWrittenLog, *, after: int = 0, limit: int | None = None) -> list[int]:
        return [event.sequence for event in await self._store.read(*log.name, after=after, limit=limit)]

    async def _recoveries(self, *, owner: str = "two", limit: int = 100) -> list[Recovery]:
        return list(await self._store.recover(Lease(owner=owner, seconds=LEASE_S), limit=limit))

    async def _recover_one(self, log: HandWrittenLog, *, owner: str = "two") -> Recovery:
        found = [one for one in await self._recoveries(owner=owner) if one.execution.execution_id == log.name[1]]
        same(len(found), 1)
        return found[0]


async def _hear(heard: asyncio.Queue[Change], wanted: Change) -> Change:
    """Return the next change; a store that reconnects may also say of every log that it may have grown."""
    while (found := await heard.get()) is Change.GREW and wanted is not Change.GREW:
        pass
    return found
