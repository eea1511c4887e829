"""One desk serves one kind of work: it finds no execution of another kind, and asks its kind who may use one."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from reasond_server.errors.access import PermissionMissingError
from reasond_server.errors.executions import ExecutionNotFoundError
from reasond_server.errors.request import InvalidRequestError
from reasond_server.eventlog.store import Lease, SessionClaim
from reasond_server.eventlog.stored.sqlite_store import MemoryExecutionStore
from reasond_server.executions.desk import ExecutionDesk
from reasond_server.runs.followers import Follower
from reasond_server.runs.runner import Runner, RunnerLimits
from reasond_server.types import Principal
from tests.stores.logs import START, HandWrittenLog, first_event
from tests.unit.runs.conftest import EchoModel, ManualClock

if TYPE_CHECKING:
    from reasond_server.types import Execution

LIMITS = RunnerLimits(max_concurrent=2, retention_s=60)
ANN = Principal(subject="ann", tenant="acme", permissions=frozenset())


def refuse_others(caller: Principal, execution: Execution) -> None:
    if execution.strategy != "s":
        raise PermissionMissingError(f"{caller.subject} may not use {execution.strategy}")


class Desks:
    """Desks of several kinds on one store."""

    def __init__(self, time: ManualClock) -> None:
        clock = time.clock()
        self.store = MemoryExecutionStore(max_bytes=10**8, now=time.now, monotonic=time.monotonic)
        self.runner = Runner(store=self.store, model=EchoModel(), clock=clock, limits=LIMITS)
        self.follower = Follower(
            store=self.store, runner=self.runner, clock=clock, heartbeat_interval_s=9, flush_interval_s=0
        )

    def of(self, kind: str) -> ExecutionDesk:
        return ExecutionDesk(
            store=self.store, runner=self.runner, follower=self.follower, kind=kind, require_use=refuse_others
        )

    async def end_one(self, kind: str, *, session_id: str = "", strategy: str = "s", minute: int = 0) -> str:
        """Return the id of an execution that has ended."""
        log = HandWrittenLog.new(self.store, tenant="acme", strategy=strategy, minute=minute)
        log.execution = replace(log.execution, kind=kind, session_id=session_id)
        session = SessionClaim(session_id=session_id, expire_time=START + timedelta(days=1)) if session_id else None
        lease = Lease(owner="one", seconds=15)
        await self.store.create(log.execution, digest="", plan="", lease=lease, session=session)
        assert await log.write(first_event(), log.result()) is None
        return log.name[1]


@pytest.fixture
def desks() -> Desks:
    return Desks(ManualClock())


async def test_an_execution_of_another_kind_is_not_found(desks: Desks) -> None:
    turn, reasoning = await desks.end_one("turn"), await desks.end_one("reasoning")
    for kind, own, other in (("turn", turn, reasoning), ("reasoning", reasoning, turn)):
        desk = desks.of(kind)
        assert (await desk.read(ANN, own)).execution.kind == kind
        for call in (desk.read, desk.cancel, desk.delete):
            with pytest.raises(ExecutionNotFoundError, match="Execution not found"):
                await call(ANN, other)
        with pytest.raises(ExecutionNotFoundError):
            await anext(desk.resume(ANN, other, after_sequence=0))
        assert [one.execution_id for one in (await desk.list(ANN)).executions] == [own]
    assert len((await desks.of("").list(ANN)).executions) == 2


async def test_the_kind_decides_who_may_use_an_execution(desks: Desks) -> None:
    desk, name = desks.of("turn"), await desks.end_one("turn", strategy="other")
    assert (await desk.read(ANN, name)).execution.execution_id == name
    for call in (desk.cancel, desk.delete):
        with pytest.raises(PermissionMissingError):
            await call(ANN, name)


async def test_executions_are_listed_by_session_page_by_page(desks: Desks) -> None:
    names = [await desks.end_one("turn", session_id="a") for _ in range(3)]
    await desks.end_one("turn", session_id="b")
    desk = desks.of("turn")
    first = await desk.list(ANN, session_id="a", page_size=2)
    rest = await desk.list(ANN, session_id="a", page_size=2, page_token=first.next_page_token)
    assert {one.execution_id for one in (*first.executions, *rest.executions)} == set(names)
    assert not rest.next_page_token
    for session_id in ("", "b"):
        with pytest.raises(InvalidRequestError, match="page_token"):
            await desk.list(ANN, session_id=session_id, page_token=first.next_page_token)


async def test_a_search_looks_at_a_thousand_executions_a_page_and_finds_what_comes_later(desks: Desks) -> None:
    wanted = await desks.end_one("reasoning")
    for _ in range(1_050):
        await desks.end_one("reasoning", minute=1)
    desk = desks.of("reasoning")
    page = await desk.list(ANN, text=wanted, page_size=5)
    assert page.executions == []
    assert page.next_page_token
    page = await desk.list(ANN, text=wanted, page_size=5, page_token=page.next_page_token)
    assert [each.execution_id for each in page.executions] == [wanted]
    assert not page.next_page_token


@pytest.mark.parametrize("size", [1, 2, 3, 50])
async def test_pages_of_a_search_have_every_execution_once(desks: Desks, size: int) -> None:
    ids = {await desks.end_one("reasoning") for _ in range(6)}
    desk, found, token = desks.of("reasoning"), list[str](), ""
    while True:
        page = await desk.list(ANN, text="M", page_size=size, page_token=token)
        found += [each.execution_id for each in page.executions]
        if not (token := page.next_page_token):
            break
    assert set(found) == ids
    assert len(found) == len(set(found))
