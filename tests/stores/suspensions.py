"""Checks of suspended executions; a part of `ExecutionStoreConformance`."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from reasond_server.errors.base import InternalError
from reasond_server.errors.executions import CursorExpiredError, ExecutionNotFoundError
from reasond_server.eventlog.store import Change, Creation, ExecutionFilter, Lease, LeaseLostError, Record
from reasond_server.types import ExecutionState, FinishReason, LoggedEvent
from tests.stores.expectations import StoreContractError, expect_refusal, nothing, raises, same
from tests.stores.logs import KEPT_S, LEASE_S, START, HandWrittenLog, first_event, step

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime

    from reasond_server.eventlog.store import ExecutionStore, Recovery
    from reasond_server.types import Execution

_WAKERS = 40
_WAIT_S = 1000.0
_LONG_S = 10 * 365 * 86_400.0


class SuspensionChecks:
    """Checks of `store`; `pass_time` lets seconds pass, `tenant` belongs to this check only."""

    CHECKS: ClassVar[tuple[str, ...]] = (
        "gives_the_lease_up_with_a_suspension",
        "takes_a_repeated_suspension_once",
        "refuses_what_follows_a_suspension",
        "lets_one_of_many_wakes_win",
        "wakes_nothing_else",
        "wakes_at_its_time",
        "wakes_what_somebody_wants_stopped",
        "recovers_what_its_waker_left",
        "suspends_again_and_again",
        "lists_and_deletes_what_is_suspended",
        "keeps_what_is_suspended_until_it_ends",
        "makes_a_log_that_is_suspended",
        "tells_kinds_apart",
        "counts_what_is_suspended",
        "wakes_with_an_event",
        "lets_one_of_many_events_wake",
        "wakes_with_the_next_event_only",
        "recovers_what_an_event_woke",
        "tells_a_due_time_from_a_call",
    )

    def __init__(self, store: ExecutionStore, *, pass_time: Callable[[float], Awaitable[None]], tenant: str) -> None:
        self._store = store
        self._pass_time = pass_time
        self._tenant = tenant
        self._now = START

    async def gives_the_lease_up_with_a_suspension(self) -> None:
        """A suspended execution has no lease and is not recovered; its plan and records stay."""
        log = await self._suspend_log(plan='{"p":1}', wake_time=START + timedelta(seconds=_LONG_S))
        same(await self._store.find(*log.name), log.execution)
        same(log.execution.state, ExecutionState.SUSPENDED)
        same([event.sequence for event in await self._store.read(*log.name)], [1, 2])
        kept = await self._store.read_checkpoint(*log.name)
        same((kept.plan, list(kept.records)), ('{"p":1}', [Record(key="k", body="{}")]))
        same(list((await self._store.renew(Lease(owner="one", seconds=LEASE_S), {log.name[1]: 1})).lost), [log.name[1]])
        await self._let_pass(LEASE_S + 1)
        same(await self._recover_ids(), [])

    async def takes_a_repeated_suspension_once(self) -> None:
        """A suspension whose answer was lost can be repeated until the execution is woken."""
        log = await self._begin_log()
        part = log.suspension(Record(key="k", body="{}"), step())
        same([*await self._store.append([part]), *await self._store.append([part])], [None, None])
        same((await self._store.find(*log.name)).last_sequence, 2)
        same((await self._wake(log)) is None, False)
        expect_refusal(LeaseLostError, (await self._store.append([part]))[0])

    async def refuses_what_follows_a_suspension(self) -> None:
        """A suspended log refuses every entry of its writer, also the result; a suspension needs an entry."""
        log = await self._suspend_log()
        running = replace(log.execution, state=ExecutionState.RUNNING, wake_time=None)
        late = replace(log, execution=running)
        for bodies in ([step()], [Record(key="l", body="{}")], [late.result()], []):
            expect_refusal(LeaseLostError, await late.write(*bodies))
        expect_refusal(LeaseLostError, await late.suspend(step()))
        other = await self._begin_log()
        expect_refusal(InternalError, await other.suspend())
        first = other.suspension(step())
        other.took(first)
        other.execution = replace(other.execution, state=ExecutionState.RUNNING)
        outcomes = await self._store.append([first, other.part(step())])
        nothing(outcomes[0])
        expect_refusal(LeaseLostError, outcomes[1])
        same([event.sequence for event in await self._store.read(*other.name)], [1, 2])

    async def lets_one_of_many_wakes_win(self) -> None:
        """Of many concurrent wake calls, one gets the execution with all its data."""
        log = await self._suspend_log(plan='{"p":1}')
        woken = await asyncio.gather(*(self._wake(log, owner=f"owner {n}") for n in range(_WAKERS)))
        winners = [one for one in woken if one is not None]
        same(len(winners), 1)
        found = winners[0]
        running = replace(log.execution, state=ExecutionState.RUNNING)
        same((found.execution, found.plan, found.version, found.fence), (running, '{"p":1}', 3, 2))
        same([event.event for event in found.events], [first_event(), step()])
        same(list(found.records), [Record(key="k", body="{}")])
        same((found.was_suspended, found.is_cancel_requested, found.damage), (True, False, ""))
        same(await self._store.find(*log.name), running)
        log.go_on(found)
        nothing(await log.write(step(), log.result()))
        same((await self._store.find(*log.name)).state, ExecutionState.SUCCEEDED)

    async def wakes_nothing_else(self) -> None:
        """A running or ended execution is not woken; for a deleted one or another tenant's, the call fails."""
        running, ended, deleted, foreign = [await self._begin_log() for _ in range(4)]
        nothing(await ended.write(ended.result()))
        for log in (running, ended):
            nothing(await self._wake(log))
        nothing(await running.write(step()))
        nothing(await deleted.suspend(step()))
        await self._store.delete(*deleted.name)
        await raises(ExecutionNotFoundError, self._wake(deleted))
        nothing(await foreign.suspend(step()))
        lease = Lease(owner="two", seconds=LEASE_S)
        await raises(ExecutionNotFoundError, self._store.wake(lease, uuid.uuid4().hex, foreign.name[1]))
        same((await self._store.find(*foreign.name)).state, ExecutionState.SUSPENDED)

    async def wakes_at_its_time(self) -> None:
        """Recovery returns it once after its wake time, to one caller, and never if it has no wake time."""
        await self._suspend_log()
        later = [await self._suspend_log(wake_time=START + timedelta(seconds=_WAIT_S)) for _ in range(6)]
        orphan = await self._begin_log()
        await self._let_pass(_WAIT_S - 1)
        same(await self._recover_ids(), [orphan.name[1]])
        await self._let_pass(1)
        lots = await asyncio.gather(*(self._recover(owner=f"owner {n}", limit=4) for n in range(5)))
        same(max(map(len, lots)) <= 4, True)
        found = [one for lot in lots for one in lot]
        same(sorted(one.execution.execution_id for one in found), sorted(log.name[1] for log in later))
        same({(one.fence, one.was_suspended, one.execution.wake_time) for one in found}, {(2, True, None)})
        same({(await self._store.find(*log.name)).state for log in later}, {ExecutionState.RUNNING})
        nothing(await self._wake(later[0]))

    async def wakes_what_somebody_wants_stopped(self) -> None:
        """Recovery returns a cancelled one at once, whether the cancellation came before the suspension or after."""
        after, before, other = await self._suspend_log(), await self._begin_log(), await self._suspend_log()
        await self._store.request_cancel(*after.name)
        await self._store.request_cancel(*before.name)
        nothing(await before.suspend(step(), wake_time=START + timedelta(seconds=_LONG_S)))
        found = {one.execution.execution_id: one for one in await self._recover()}
        same(set(found), {after.name[1], before.name[1]})
        same({(one.was_suspended, one.is_cancel_requested) for one in found.values()}, {(True, True)})
        after.go_on(found[after.name[1]])
        nothing(await after.write(after.result(FinishReason.CANCELLED), keeps_records=True))
        same((await self._store.find(*after.name)).state, ExecutionState.CANCELLED)
        same((await self._store.find(*other.name)).state, ExecutionState.SUSPENDED)

    async def recovers_what_its_waker_left(self) -> None:
        """A process that dies after it woke an execution, or did not receive the answer, leaves an orphan."""
        log = await self._suspend_log(plan='{"p":1}')
        woken = await self._wake(log)
        nothing(await self._wake(log))
        same(await self._recover_ids(), [])
        await self._let_pass(LEASE_S + 1)
        (found,) = await self._recover(owner="three")
        same((found.execution.execution_id, found.fence, found.was_suspended), (log.name[1], 3, False))
        same((found.plan, found.version, woken and woken.version), ('{"p":1}', 3, 3))
        log.fence = 2
        log.execution = replace(log.execution, state=ExecutionState.RUNNING)
        expect_refusal(LeaseLostError, await log.write(step()))

    async def suspends_again_and_again(self) -> None:
        """Each wake gives a new fence; the wish to keep the execution running survives all suspensions."""
        log = await self._suspend_log()
        await self._store.request_keep(*log.name)
        for life in range(2, 5):
            found = await self._wake(log)
            same(found and (found.fence, found.is_keep_requested), (life, True))
            if found is not None:
                log.go_on(found)
            nothing(await log.write(step()))
            nothing(await log.suspend(step()))
        same([event.sequence for event in await self._store.read(*log.name)], list(range(1, 9)))

    async def lists_and_deletes_what_is_suspended(self) -> None:
        """A suspended execution is listed, holds its request id, and notifies its watchers when it is deleted."""
        log = await self._begin_log(request_id="r")
        heard: asyncio.Queue[Change] = asyncio.Queue()
        with self._store.watch(log.name[1], heard.put_nowait):
            nothing(await log.suspend(step()))
            same(await heard.get(), Change.GREW)
            await self._store.request_cancel(*log.name)
            # The notice of the first event may have come late.
            while (change := await heard.get()) is Change.GREW:
                pass
            same(change, Change.CANCEL_REQUESTED)
        same(list(await self._page()), [log.execution])
        claim = await self._log(request_id="r").create(digest="other")
        same((claim.execution_id, claim.digest), (log.name[1], "d"))
        await self._store.delete(*log.name)
        same((list(await self._page()), await self._store.find_claim(self._tenant, "r")), ([], None))
        same(await self._recover_ids(), [])

    async def keeps_what_is_suspended_until_it_ends(self) -> None:
        """A suspended execution is kept however long it waits; its retention begins with its end."""
        log = await self._suspend_log()
        await self._let_pass(_LONG_S)
        await self._store.forget(limit=1000)
        found = await self._wake(log)
        same(found and found.execution.execution_id, log.name[1])
        if found is not None:
            log.go_on(found)
        expired = await self._begin_log()
        for one in (log, expired):
            part = one.part(one.result())
            expire_time = self._now + timedelta(seconds=KEPT_S)
            nothing(
                (await self._store.append([replace(part, execution=replace(part.execution, expire_time=expire_time))]))[
                    0
                ]
            )
        await self._let_pass(KEPT_S + 1)
        await self._store.forget(limit=1000)
        await raises(CursorExpiredError, self._wake(log))

    async def makes_a_log_that_is_suspended(self) -> None:
        """The append that creates an execution can suspend it."""
        log = self._log()
        creation = Creation(plan="the plan", lease=Lease(owner="one", seconds=LEASE_S))
        nothing((await self._store.append([replace(log.suspension(first_event()), creation=creation)]))[0])
        same(list((await self._store.renew(Lease(owner="one", seconds=LEASE_S), {log.name[1]: 1})).lost), [log.name[1]])
        found = await self._wake(log)
        same(found and (found.plan, found.version, found.fence), ("the plan", 1, 2))

    async def tells_kinds_apart(self) -> None:
        """The kind of work is stored, and lists can filter by it."""
        turn, reasoning = self._log(), await self._begin_log()
        turn.execution = replace(turn.execution, kind="turn")
        await turn.create()
        nothing(await turn.suspend(first_event()))
        same([one.execution_id for one in await self._page(kind="turn")], [turn.name[1]])
        same([one.execution_id for one in await self._page(kind="reasoning")], [reasoning.name[1]])
        found = await self._wake(turn)
        same(found and found.execution.kind, "turn")

    async def counts_what_is_suspended(self) -> None:
        """Executions of one kind are counted while they are suspended, whatever their tenants."""
        kind = f"kind-{uuid.uuid4().hex}"
        logs = [self._log(), self._log()]
        for place, log in enumerate(logs):
            log.execution = replace(log.execution, kind=kind)
            await log.create()
            same(await self._store.sessions.count_suspended(kind), place)
            nothing(await log.suspend(first_event()))
        same(
            (await self._store.sessions.count_suspended(kind), await self._store.sessions.count_suspended("none such")),
            (2, 0),
        )
        await self._wake(logs[0])
        same(await self._store.sessions.count_suspended(kind), 1)

    async def wakes_with_an_event(self) -> None:
        """The event that wakes an execution is in the log and in the recovery, and its writer continues after it."""
        log = await self._suspend_log(wake_time=START + timedelta(seconds=_WAIT_S))
        heard: asyncio.Queue[Change] = asyncio.Queue()
        with self._store.watch(log.name[1], heard.put_nowait):
            found = await self._wake(log, event=_event(3, "go on"))
            same(await heard.get(), Change.GREW)
        if found is None:
            raise StoreContractError("the event woke nothing")
        same((found.version, found.fence, found.was_suspended, found.has_waking_event), (4, 2, True, True))
        same([event.event for event in found.events], [first_event(), step(), step("go on")])
        same([record.key for record in found.records], ["k"])
        same((found.execution.last_sequence, found.execution.wake_time, found.is_due), (3, None, False))
        same(await self._store.find(*log.name), found.execution)
        log.go_on(found)
        nothing(await log.write(step("after"), log.result()))
        same([event.sequence for event in await self._store.read(*log.name)], [1, 2, 3, 4, 5])

    async def lets_one_of_many_events_wake(self) -> None:
        """Of many events for the same place in a log one wakes it, again and again; the others leave no trace."""
        log = await self._suspend_log()
        for _ in range(5):
            sequence = log.execution.last_sequence + 1
            events = [_event(sequence, str(number)) for number in range(_WAKERS)]
            outcomes = await asyncio.gather(*(self._wake(log, event=event) for event in events))
            woken = [(event, one) for event, one in zip(events, outcomes, strict=True) if one is not None]
            same(len(woken), 1)
            event, found = woken[0]
            same((await self._store.read(*log.name))[-1], event)
            log.go_on(found)
            nothing(await log.suspend(step()))

    async def wakes_with_the_next_event_only(self) -> None:
        """An event of another place in the log, or for an execution that is not suspended, changes nothing."""
        log, running = await self._suspend_log(), await self._begin_log()
        for sequence in (1, 2, 4):
            nothing(await self._wake(log, event=_event(sequence)))
        nothing(await self._wake(running, event=_event(2)))
        same(await self._store.find(*log.name), log.execution)
        same([event.sequence for event in await self._store.read(*log.name)], [1, 2])
        same([event.sequence for event in await self._store.read(*running.name)], [1])
        same((await self._wake(log, event=_event(3))) is None, False)
        nothing(await self._wake(log, event=_event(4)))
        await self._store.delete(*running.name)
        await raises(ExecutionNotFoundError, self._wake(running, event=_event(2)))

    async def recovers_what_an_event_woke(self) -> None:
        """If its process dies, or the answer was lost, the log with the event is recovered."""
        log = await self._suspend_log(plan='{"p":1}')
        same((await self._wake(log, event=_event(3))) is None, False)
        await self._let_pass(LEASE_S + 1)
        (found,) = await self._recover(owner="three")
        same((found.fence, found.version, found.was_suspended, found.has_waking_event), (3, 4, False, False))
        same(([event.sequence for event in found.events], found.plan), ([1, 2, 3], '{"p":1}'))

    async def tells_a_due_time_from_a_call(self) -> None:
        """A recovery says whether the wake time had come; a call and a cancellation are something else."""
        due, called = [await self._suspend_log(wake_time=START + timedelta(seconds=_WAIT_S)) for _ in range(2)]
        cancelled = await self._suspend_log(wake_time=START + timedelta(seconds=_LONG_S))
        await self._store.request_cancel(*cancelled.name)
        await self._let_pass(_WAIT_S)
        woken = await self._wake(called)
        same(woken and (woken.was_suspended, woken.is_due), (True, False))
        found = {one.execution.execution_id: one.is_due for one in await self._recover()}
        same(found, {due.name[1]: True, cancelled.name[1]: False})

    def _log(self, *, request_id: str = "") -> HandWrittenLog:
        return HandWrittenLog.new(self._store, tenant=self._tenant, request_id=request_id)

    async def _begin_log(self, *, request_id: str = "", plan: str = "{}") -> HandWrittenLog:
        """Return a running log with its first event."""
        log = self._log(request_id=request_id)
        await log.create(plan=plan)
        nothing(await log.write(first_event()))
        return log

    async def _suspend_log(self, *, plan: str = "{}", wake_time: datetime | None = None) -> HandWrittenLog:
        """Return a suspended log with two events and a record."""
        log = await self._begin_log(plan=plan)
        nothing(await log.suspend(Record(key="k", body="{}"), step(), wake_time=wake_time))
        return log

    async def _wake(
        self, log: HandWrittenLog, *, owner: str = "two", event: LoggedEvent | None = None
    ) -> Recovery | None:
        return await self._store.wake(Lease(owner=owner, seconds=LEASE_S), *log.name, event=event)

    async def _recover(self, *, owner: str = "two", limit: int = 100) -> Sequence[Recovery]:
        return await self._store.recover(Lease(owner=owner, seconds=LEASE_S), limit=limit)

    async def _recover_ids(self) -> list[str]:
        return [one.execution.execution_id for one in await self._recover()]

    async def _page(self, *, kind: str = "") -> Sequence[Execution]:
        return await self._store.page(self._tenant, ExecutionFilter(kind=kind), size=9, before=None)

    async def _let_pass(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
        await self._pass_time(seconds)


def _event(sequence: int, text: str = "event") -> LoggedEvent:
    return LoggedEvent(sequence=sequence, create_time=START, event=step(text))
