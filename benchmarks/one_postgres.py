"""Measure what one PostgreSQL carries: executions, events and followers, and what each costs its processor.

Prints a table and writes results/one_postgres.json beside this file, which `benchmarks.fleet` simulates with. A
PostgreSQL is started for it on loopback. Logs are appended as servers append them, one transaction at a time for many
logs; a follower is a server that listens for notices. The client shares the processors with the database, so the
claimed figures are microseconds of the database's processor time and their ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from benchmarks.machine import write_report
from reasond_server.assembly.stores import StoreOptions, migrate_stores, open_stores
from tests.engines.postgres import PostgresServer, is_postgres_here, running_postgres
from tests.stores.logs import HandWrittenLog, first_event, step

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from reasond_server.eventlog.store import ExecutionStore

RESULTS: Final = Path(__file__).resolve().parent / "results" / "one_postgres.json"
EVENTS: Final = 8
TEXT: Final = "x" * 600
BATCHES: Final = (1, 8, 64)
LISTENERS: Final = (1, 20, 60)
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def read_database_cpu(server: PostgresServer) -> float:
    """Return the seconds of processor time of the database and of all its ended and running processes."""
    main = server.process_id
    total = 0.0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text("ascii").rpartition(") ")[2].split()
        except (OSError, UnicodeDecodeError):
            continue
        if main in {int(folder.name), int(fields[1])}:
            # Own time, and for the first process that of its ended children.
            total += sum(map(int, fields[11:15] if int(folder.name) == main else fields[11:13])) / _TICKS
    return total


def configure(server: PostgresServer) -> None:
    """Let the database wait for its disk, and have room for many servers, unlike that of the tests."""
    settings = ("fsync = on", "full_page_writes = on", "shared_buffers = '256MB'", "max_connections = 200")
    with psycopg.connect(server.url(), autocommit=True) as connection:
        for setting in settings:
            connection.execute(f"ALTER SYSTEM SET {setting}".encode())
    server.restart("fast")


async def open_one(url: str, stack: AsyncExitStack) -> ExecutionStore:
    """Open a store as one server does, with its listening connection."""
    options = StoreOptions(
        url=url,
        now=lambda: datetime.now(UTC),
        monotonic=time.monotonic,
        max_bytes=1,
        max_agents=1,
    )
    stores = await open_stores(options)
    stack.push_async_callback(stores.aclose)
    return stores.executions


async def write_logs(store: ExecutionStore, batch: int) -> tuple[int, int]:
    """Create `batch` executions and write them to their ends together; return how many executions and events."""
    logs = [HandWrittenLog.new(store, tenant=f"tenant{place % 10}") for place in range(batch)]
    await asyncio.gather(*(log.create() for log in logs))
    bodies: list[Any] = [first_event(), *(step(TEXT, index=index) for index in range(EVENTS - 2))]
    for body in bodies:
        parts = [log.part(body) for log in logs]
        await store.append(parts)
        for log, part in zip(logs, parts, strict=True):
            log.took(part)
    await store.append([log.part(log.result(answer=TEXT)) for log in logs])
    return batch, batch * EVENTS


async def measure(
    server: PostgresServer, work: Callable[[], Awaitable[tuple[int, int]]], *, seconds: float
) -> dict[str, float]:
    """Repeat `work` for `seconds`; return executions and events per second, and processor time of each event."""
    await work()
    cpu_s, since_s = read_database_cpu(server), time.monotonic()
    executions = events = 0
    while time.monotonic() - since_s < seconds:
        made, written = await work()
        executions, events = executions + made, events + written
    took_s, spent_s = time.monotonic() - since_s, read_database_cpu(server) - cpu_s
    return {
        "executions_per_s": round(executions / took_s, 1),
        "events_per_s": round(events / took_s, 1),
        "database_us_per_event": round(spent_s / max(1, events) * 1e6, 1),
        "database_share": round(spent_s / took_s, 3),
    }


async def read_log(store: ExecutionStore, log: HandWrittenLog) -> tuple[int, int]:
    """Look at a log as a follower in another process does after a notice: one event is new."""
    for after in range(EVENTS):
        await store.read(*log.name, after=after, limit=1)
    return 1, EVENTS


async def run(server: PostgresServer, *, seconds: float) -> dict[str, Any]:
    """Return the figures of all cases."""
    found: dict[str, Any] = {"batches": {}, "listeners": {}}
    async with AsyncExitStack() as stack:
        url = server.new_database()
        await asyncio.to_thread(migrate_stores, url=url, data_dir="")
        store = await open_one(url, stack)
        for batch in BATCHES:
            found["batches"][str(batch)] = await measure(server, lambda: write_logs(store, batch), seconds=seconds)  # noqa: B023 - awaited here
        whole = HandWrittenLog.new(store, tenant="tenant0")
        await whole.create()
        await whole.write(first_event(), *(step(TEXT, index=index) for index in range(EVENTS - 1)))
        found["reads"] = await measure(server, lambda: read_log(store, whole), seconds=seconds)
        opened = 1
        for listeners in LISTENERS:
            for _ in range(listeners - opened):
                await open_one(url, stack)
            opened = listeners
            found["listeners"][str(listeners)] = await measure(server, lambda: write_logs(store, 8), seconds=seconds)
    return found


def main() -> None:
    """Measure, print and keep the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds for each case")
    wanted = parser.parse_args()
    if not is_postgres_here():
        sys.exit("PostgreSQL is not installed here")
    with running_postgres() as server:
        configure(server)
        found = asyncio.run(run(server, seconds=wanted.seconds))
    for case, rows in (*found["batches"].items(), ("reads", found["reads"]), *found["listeners"].items()):
        print(f"{case:>8}", rows)
    write_report(RESULTS, ("reasond-server", "psycopg"), **found)


if __name__ == "__main__":
    main()
