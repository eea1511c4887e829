"""A suspended execution survives when the process that suspended or woke it is killed."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import psycopg
import pytest

from reasond_server.assembly.stores import migrate_stores
from reasond_server.eventlog.store import Lease
from reasond_server.types import ExecutionState
from tests.stores.logs import HandWrittenLog, first_event, step
from tests.unit.eventlog.stored.conftest import Time, open_one

ROOT = Path(__file__).resolve().parents[4]
LEASE = Lease(owner="one", seconds=15)


async def suspend_and_die(url: str, folder: str, *, wakes: bool) -> None:
    """Suspend an execution, wake it if `wakes` is set, print its id, then kill this process."""
    async with open_one(url, Path(folder), Time()) as one:
        log = HandWrittenLog.new(one.store, tenant="acme", request_id="r")
        await log.create(plan='{"p":1}')
        assert await log.write(first_event()) is None
        assert await log.suspend(step()) is None
        if wakes:
            assert await one.store.wake(LEASE, *log.name) is not None
        sys.stdout.write(log.name[1])
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("wakes", [False, True], ids=["suspended", "woken"])
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_another_process_goes_on_with_what_a_killed_one_left(
    request: pytest.FixtureRequest, tmp_path: Path, time: Time, kind: str, *, wakes: bool
) -> None:
    url = "" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    migrate_stores(url=url, data_dir=str(tmp_path))
    program = (
        "import asyncio; from tests.unit.eventlog.stored.test_killed import suspend_and_die; "
        f"asyncio.run(suspend_and_die({url!r}, {str(tmp_path)!r}, wakes={wakes}))"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    told, _ = await process.communicate()
    assert process.returncode == -signal.SIGKILL
    execution_id = told.decode()
    async with open_one(url, tmp_path, time) as one:
        state = ExecutionState.RUNNING if wakes else ExecutionState.SUSPENDED
        assert (await one.store.find("acme", execution_id)).state is state
        if kind == "postgres":
            async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
                await connection.execute("UPDATE executions SET lease_until = 0")
        orphans = await one.store.recover(LEASE, limit=9)
        woken = await one.store.wake(LEASE, "acme", execution_id)
        assert len(orphans) == wakes
        found = orphans[0] if wakes else woken
        assert found is not None
        assert (found.plan, found.version, found.was_suspended) == ('{"p":1}', 2, not wakes)
        assert [event.sequence for event in found.events] == [1, 2]
