"""Unreadable logs: they end with the events that could be read, and do not stop any other log from being recovered."""

import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg
import pytest

from reasond_server.errors.base import InternalError
from reasond_server.errors.executions import ExecutionNotFoundError
from reasond_server.eventlog.store import ExecutionStore, Lease, Record, Recovery
from reasond_server.reasoning.strategy_selection import OfferedModels
from reasond_server.reasoning.strategy_work import ReasoningKind
from reasond_server.runs.plan import Plan, encode_plan
from reasond_server.runs.runner import Runner, RunnerLimits
from reasond_server.types import ExecutionState, FinishReason, Result, StrategySource, Task
from tests.stores.logs import HandWrittenLog, first_event, step
from tests.unit.eventlog.stored.conftest import Time, open_one
from tests.unit.runs.conftest import EchoModel, ManualClock, Script
from tests.unit.runs.servers import Replayable

SECRET = "hush"
WORK = {
    "task": asdict(Task(query="why?")),
    "strategy": "replayable",
    "source": StrategySource.REQUEST,
    "config": {},
    "warnings": [],
}
PLAN = encode_plan(Plan(work=WORK, nonce="n" * 28))


@dataclass(frozen=True)
class Breakable:
    """A store, a function that damages it, and a function that lets time pass."""

    store: ExecutionStore
    change: Callable[[str], Awaitable[None]]
    pass_time: Callable[[float], Awaitable[None]]

    async def recover(self, limit: int = 9) -> list[Recovery]:
        return list(await self.store.recover(Lease(owner="two", seconds=15), limit=limit))

    async def write_log(self) -> HandWrittenLog:
        """Return a log of three events and one record, whose writer is gone."""
        log = HandWrittenLog.new(self.store, tenant="acme", request_id="r1")
        await log.create(plan=PLAN)
        assert await log.write(first_event(), Record(key="count:1", body="{}"), step("a"), step("b", index=1)) is None
        return log


@pytest.fixture(params=["sqlite", "postgres"])
async def breakable(request: pytest.FixtureRequest, tmp_path: Path, time: Time) -> AsyncGenerator[Breakable, None]:
    url = "" if request.param == "sqlite" else request.getfixturevalue("postgres_url")

    async def change(statement: str) -> None:
        if not url:
            with sqlite3.connect(tmp_path / "reasond.db") as other:
                other.execute(statement)
            other.close()
            return
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await connection.execute(statement.encode())

    async with open_one(url, tmp_path, time) as one:
        yield Breakable(store=one.store, change=change, pass_time=one.pass_time)


@pytest.mark.parametrize(
    ("damage", "readable"),
    [
        ("UPDATE entries SET body = 'hush' WHERE sequence = 2", 1),
        ("DELETE FROM entries WHERE sequence = 2", 1),
        ("DELETE FROM entries WHERE sequence = 3", 2),
        ("DELETE FROM entries WHERE sequence IS NULL", 3),
        ("UPDATE entries SET body = 'hush'", 0),
        ("UPDATE entries SET body = 'hush' WHERE sequence IS NULL", 3),
        ("UPDATE entries SET body = '[]' WHERE sequence IS NULL", 3),
        ("UPDATE executions SET body = 'hush'", 3),
        ("UPDATE executions SET plan = 'hush'", 3),
        ("UPDATE executions SET plan = '[1]'", 3),
    ],
)
async def test_a_damaged_log_ends_as_failed_with_what_is_left_of_it(
    breakable: Breakable, damage: str, readable: int, caplog: pytest.LogCaptureFixture
) -> None:
    log = await breakable.write_log()
    await breakable.change(damage)
    other = HandWrittenLog.new(breakable.store, tenant="acme")
    await other.create(plan=PLAN)
    await breakable.pass_time(20)
    model = EchoModel()
    model.gate.clear()
    clock = ManualClock().clock()
    runner = Runner(
        store=breakable.store,
        model=model,
        clock=clock,
        limits=RunnerLimits(max_concurrent=3, retention_s=60),
        kinds=[
            ReasoningKind(clock=clock, find_strategy=lambda _name: Replayable(Script()), models=OfferedModels(model))
        ],
    )
    await runner._recoverer.lease_keeper.round()
    assert runner.find_live(other.execution.execution_id) is not None, "one that is whole goes on"
    await runner.stop()
    found = await breakable.store.find(*log.name)
    assert (found.state, found.finish_reason, found.last_sequence) == (ExecutionState.FAILED, FinishReason.FAILED, 4)
    (last,) = await breakable.store.read(*log.name, after=3)
    assert isinstance(last.event, Result)
    assert last.event.error is not None
    assert "no other can go on" in last.event.error.message
    if readable:
        kept = await breakable.store.read(*log.name, limit=3)
        assert [event.sequence for event in kept][:readable] == [1, 2, 3][:readable]
    else:
        with pytest.raises(InternalError):
            await breakable.store.read(*log.name, limit=3)
    assert log.name[1] not in {one.execution.execution_id for one in await breakable.recover()}
    assert SECRET not in caplog.text + repr(last)


@pytest.mark.parametrize(
    "change",
    [
        """UPDATE executions SET body = replace(body, '"v":1', '"v":2')""",
        """UPDATE entries SET body = replace(body, '"v":1', '"v":2')""",
    ],
)
async def test_a_log_of_a_later_release_is_left_to_it_and_given_up_in_the_end(
    breakable: Breakable, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = await breakable.write_log()
    await breakable.change(change)
    await breakable.pass_time(20)
    assert await breakable.recover() == []
    assert "left to a later release: a stored row has version 2" in caplog.text
    assert await breakable.recover() == [], "its lease is held now"
    await breakable.pass_time(20)
    await breakable.change("UPDATE executions SET fence = 99")
    (found,) = await breakable.recover()
    assert found.damage == "a stored row has version 2, this release reads 1"
    assert (found.execution.execution_id, found.execution.last_sequence, found.fence) == (log.name[1], 3, 100)


async def test_what_comes_before_damage_is_read_and_the_damage_is_told_to_who_asks_for_it(breakable: Breakable) -> None:
    log = await breakable.write_log()
    await breakable.change("UPDATE entries SET body = '' WHERE sequence = 2")
    assert [event.sequence for event in await breakable.store.read(*log.name)] == [1]
    with pytest.raises(InternalError, match="a stored row is no JSON"):
        await breakable.store.read(*log.name, after=1)
    assert [event.sequence for event in await breakable.store.read(*log.name, after=2)] == [3]
    with pytest.raises(ExecutionNotFoundError):
        await breakable.store.read("other", log.name[1])
