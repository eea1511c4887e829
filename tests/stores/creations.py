"""Checks of an append that creates its log; a part of `ExecutionStoreConformance`."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from reasond_server.errors.base import InternalError
from reasond_server.eventlog.store import Creation, Lease, Record
from tests.stores.expectations import expect_refusal, nothing, same
from tests.stores.logs import LEASE_S, HandWrittenLog, first_event, step

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from reasond_server.eventlog.store import Append, ExecutionStore
    from reasond_server.types import Event


class CreationChecks:
    """Checks of `store`; `pass_time` lets seconds pass, `tenant` belongs to this check only."""

    CHECKS: ClassVar[tuple[str, ...]] = (
        "makes_logs_with_their_first_entries",
        "makes_a_log_once",
        "leases_what_it_makes",
    )

    def __init__(self, store: ExecutionStore, *, pass_time: Callable[[float], Awaitable[None]], tenant: str) -> None:
        self._store = store
        self._pass_time = pass_time
        self._tenant = tenant

    async def makes_logs_with_their_first_entries(self) -> None:
        """One append can create whole logs and beginnings of logs, and continue others."""
        whole, begun, known = self._log(), self._log(), self._log()
        await known.create()
        parts = [
            _making(whole, first_event(), Record(key="k", body="{}"), step("a"), whole.result()),
            known.part(first_event()),
            _making(begun, first_event(), Record(key="k", body="{}")),
        ]
        same(list(await self._store.append(parts)), [None, None, None])
        for log, part in zip((whole, known, begun), parts, strict=True):
            same(await self._store.find(*log.name), part.execution)
            events = [entry for entry in part.entries if not isinstance(entry, Record)]
            same(list(await self._store.read(*log.name)), events)
        kept = await self._store.read_checkpoint(*begun.name)
        same((kept.plan, list(kept.records)), ("the plan", [Record(key="k", body="{}")]))
        ended = await self._store.read_checkpoint(*whole.name)
        same((ended.plan, list(ended.records)), ("", []))
        asked = self._log()
        part = replace(_making(asked, first_event(), Record(key="k", body="{}"), asked.result()), keeps_plan=True)
        same(list(await self._store.append([part])), [None])
        kept = await self._store.read_checkpoint(*asked.name)
        same((kept.plan, list(kept.records)), ("the plan", []))
        begun.took(parts[2])
        nothing(await begun.write(step("b"), begun.result()))
        same([event.sequence for event in await self._store.read(*begun.name)], [1, 2, 3])

    async def makes_a_log_once(self) -> None:
        """A repeated append succeeds again; a different append for the same id changes nothing, whoever makes it."""
        log = self._log()
        part = _making(log, first_event(), step("a"))
        same([*await self._store.append([part]), *await self._store.append([part])], [None, None])
        other = _making(log, first_event(), step("b"))
        expect_refusal(InternalError, (await self._store.append([other]))[0])
        foreign = replace(other, execution=replace(other.execution, tenant=uuid.uuid4().hex))
        beside = self._log()
        outcomes = await self._store.append([foreign, _making(beside, first_event())])
        expect_refusal(InternalError, outcomes[0])
        nothing(outcomes[1])
        same([event.event for event in await self._store.read(*log.name)], [first_event(), step("a")])

    async def leases_what_it_makes(self) -> None:
        """A log that an append created is leased to its owner; others recover it when the lease has expired."""
        log = self._log()
        nothing((await self._store.append([_making(log, first_event())]))[0])
        other = Lease(owner="two", seconds=LEASE_S)
        same([one.execution.execution_id for one in await self._store.recover(other, limit=10)], [])
        same(list((await self._store.renew(Lease(owner="one", seconds=LEASE_S), {log.name[1]: 1})).lost), [])
        await self._pass_time(LEASE_S + 1)
        (found,) = await self._store.recover(other, limit=10)
        same((found.execution.execution_id, found.plan, found.version, found.fence), (log.name[1], "the plan", 1, 2))

    def _log(self) -> HandWrittenLog:
        return HandWrittenLog.new(self._store, tenant=self._tenant)


def _making(log: HandWrittenLog, *bodies: Event | Record) -> Append:
    creation = Creation(plan="the plan", lease=Lease(owner="one", seconds=LEASE_S))
    return replace(log.part(*bodies), creation=creation)
