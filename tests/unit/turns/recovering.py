"""Processes that work out turns on one store, and die."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from reasond_server.eventlog.store import ExecutionFilter, Lease
from reasond_server.testing import Reply
from reasond_server.turns.fold import fold
from reasond_server.turns.handoff import check_reentry
from reasond_server.types import LoggedEvent
from reasond_server.types.turns import (
    TurnResult,
    TurnStart,
)
from tests.turning import CALLER, Note, TurnServer, WallClock, ask_tools

if TYPE_CHECKING:
    from typing import Any

    from reasond_server.eventlog.store import ExecutionStore
    from reasond_server.testing import Reply
    from reasond_server.turns.turn_service import TurnView
    from reasond_server.types.turns import TurnReentry, TurnResult


class Servers:
    """Processes that work out turns on one store."""

    def __init__(self, store: ExecutionStore, time: WallClock) -> None:
        self.store = store
        self.time = time
        self.all: list[TurnServer] = []

    def server(self, *replies: str | Reply, **options: Any) -> TurnServer:
        server = TurnServer(self.store, replies, time=self.time, **options)
        self.all.append(server)
        return server


async def forget_all(store: ExecutionStore) -> None:
    """Delete what another test left in the database."""
    for each in await store.page(CALLER.tenant, ExecutionFilter(), size=100, before=None):
        await store.delete(CALLER.tenant, each.execution_id)
    for session in await store.sessions.page(CALLER.tenant, size=100, before=None):
        await store.sessions.delete(CALLER.tenant, session.session_id)


async def end_of(server: TurnServer, turn_id: str) -> TurnResult:
    run = server.runner.find_live(turn_id)
    if run is not None:
        await run.wait_for_end()
    view = await server.service.get(CALLER, turn_id)
    assert view.result is not None
    return view.result


async def start_and_die(servers: Servers, note: Note, *, calls: int = 1, **options: Any) -> str:
    """Return a turn whose process died while the tool was at work."""
    note.gate.clear()
    server = servers.server(ask_tools(*[("note", {"text": "x"})] * calls), tools=[note], **options)
    running = asyncio.create_task(server.run(TurnStart(session_id="s1", message="Go", **options.pop("start", {}))))
    await note.begun.wait()
    (turn_id,) = server.runner.runs.by_id
    await server.kill()
    running.cancel()
    await asyncio.wait([running])
    note.gate.set()
    note.begun.clear()
    return turn_id


async def take_and_die(servers: Servers, view: TurnView, reentry: TurnReentry | None) -> None:
    """Take a turn that waits like a process that is killed before it does anything with it."""
    event = None
    if reentry is not None:
        progress = fold(await servers.all[0].log(view.turn.turn_id))
        taken = check_reentry(reentry, progress, now=servers.time.now(), max_result_bytes=10**6)
        event = LoggedEvent(sequence=view.turn.last_sequence + 1, create_time=servers.time.now(), event=taken)
    dead = Lease(owner="dead", seconds=0)
    assert await servers.store.wake(dead, CALLER.tenant, view.turn.turn_id, event=event) is not None
