"""Waking an execution with an event that is large."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.eventlog.store import Lease
from reasond_server.types import LoggedEvent, ToolResult
from reasond_server.types.turns import Reentered
from tests.stores.logs import START, HandWrittenLog, first_event, step

if TYPE_CHECKING:
    from tests.unit.eventlog.stored.conftest import Opened


class Watched(Sequence[ToolResult]):
    """Results that note in which threads they are read."""

    def __init__(self, *results: ToolResult) -> None:
        self.threads: set[int] = set()
        self._results = results

    def __len__(self) -> int:
        return len(self._results)

    def __getitem__(self, place: Any) -> Any:
        return self._results[place]

    def __iter__(self) -> Iterator[ToolResult]:
        self.threads.add(threading.get_ident())
        return iter(self._results)


@pytest.mark.parametrize("any_store", ["sqlite", "postgres"], indirect=True)
async def test_results_of_a_reentry_are_not_encoded_on_the_event_loop(any_store: Opened) -> None:
    """They may hold megabytes: of three times 2 MB the loop stood still for 30 ms."""
    log = HandWrittenLog.new(any_store.store, tenant="acme")
    await log.create()
    assert await log.write(first_event()) is None
    assert await log.suspend(step()) is None
    results = Watched(ToolResult(call_id="c1", result_json="{}"))
    event = Reentered(etag="e", digest="d", call_ids=("c1",), results=results)
    logged = LoggedEvent(sequence=log.execution.last_sequence + 1, create_time=START, event=event)
    recovery = await any_store.store.wake(Lease(owner="two", seconds=15.0), *log.name, event=logged)
    assert recovery is not None
    assert threading.get_ident() not in results.threads
