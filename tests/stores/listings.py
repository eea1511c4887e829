"""Checks of lists of executions; a part of `ExecutionStoreConformance`."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from reasond_server.eventlog.store import ExecutionFilter
from reasond_server.types import ExecutionState, FinishReason
from tests.stores.expectations import nothing, same
from tests.stores.logs import HandWrittenLog, first_event

if TYPE_CHECKING:
    from reasond_server.eventlog.store import ExecutionStore
    from reasond_server.types import Execution


class ListingChecks:
    """Checks of `store`; `tenant` belongs to this check only."""

    CHECKS: ClassVar[tuple[str, ...]] = ("pages_newest_first",)

    def __init__(self, store: ExecutionStore, *, tenant: str) -> None:
        self._store = store
        self._tenant = tenant

    async def pages_newest_first(self) -> None:
        """Pages join to all executions, newest first; each filter leaves those out that do not fit."""
        logs = [self._log(strategy="xy"[minute % 2], minute=minute) for minute in (0, 1, 2, 3)]
        twin = self._log(minute=3)
        for log in (*logs, twin):
            await log.create()
            nothing(await log.write(first_event()))
        nothing(await logs[2].write(logs[2].result(FinishReason.TRUNCATED)))
        newest = sorted((logs[3], twin), key=lambda log: log.execution.execution_id, reverse=True)
        expected = [*newest, logs[2], logs[1], logs[0]]
        seen: list[Execution] = []
        before = None
        while page := await self._store.page(self._tenant, ExecutionFilter(), size=2, before=before):
            seen += page
            before = (page[-1].create_time.timestamp(), page[-1].execution_id)
        same(seen, [log.execution for log in expected])
        for wanted, found in (
            (ExecutionFilter(strategy="y"), [logs[3], logs[1]]),
            (ExecutionFilter(finish_reason=FinishReason.TRUNCATED), [logs[2]]),
            (ExecutionFilter(strategy="y", finish_reason=FinishReason.TRUNCATED), []),
            (ExecutionFilter(state=ExecutionState.SUCCEEDED), [logs[2]]),
            (ExecutionFilter(state=ExecutionState.RUNNING), [*newest, logs[1], logs[0]]),
            (ExecutionFilter(state=ExecutionState.FAILED), []),
            (ExecutionFilter(state=ExecutionState.RUNNING, strategy="x"), [logs[0]]),
            (ExecutionFilter(created_since=logs[2].execution.create_time), [*newest, logs[2]]),
            (ExecutionFilter(created_until=logs[2].execution.create_time), [logs[1], logs[0]]),
            (
                ExecutionFilter(
                    state=ExecutionState.RUNNING,
                    created_since=logs[1].execution.create_time,
                    created_until=logs[3].execution.create_time,
                ),
                [logs[1]],
            ),
        ):
            page = await self._store.page(self._tenant, wanted, size=9, before=None)
            same(list(page), [log.execution for log in found])

    def _log(self, *, strategy: str = "s", minute: int = 0) -> HandWrittenLog:
        return HandWrittenLog.new(self._store, tenant=self._tenant, strategy=strategy, minute=minute)
