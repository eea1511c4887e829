"""Empty stores of all three kinds, with a clock that a test moves."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from reasond_server.assembly.stores import StoreOptions, open_stores
from reasond_server.eventlog.store import ExecutionStore
from reasond_server.eventlog.stored.sqlite_store import MemoryExecutionStore
from tests.stores.logs import START


class Time:
    """A clock that shows START until a test advances it."""

    def __init__(self) -> None:
        self.time: datetime = START

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return self.time.timestamp()

    async def advance(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


@dataclass(frozen=True)
class Opened:
    """A store, and a function that lets time pass for it."""

    store: ExecutionStore
    pass_time: Callable[[float], Awaitable[None]]


@pytest.fixture
def time() -> Time:
    return Time()


@asynccontextmanager
async def open_one(url: str, folder: Path, time: Time) -> AsyncGenerator[Opened, None]:
    """Open the store at `url`. For PostgreSQL, time passes when the leases are moved in its table."""
    stores = await open_stores(
        StoreOptions(
            url=url,
            data_dir=str(folder),
            now=time.now,
            monotonic=time.monotonic,
            max_bytes=10**6,
            max_agents=10,
        )
    )

    async def pass_in_database(seconds: float) -> None:
        await time.advance(seconds)
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await connection.execute("UPDATE executions SET lease_until = lease_until - %s", (seconds,))

    pass_time = pass_in_database if url.startswith("postgresql") else time.advance
    try:
        yield Opened(store=stores.executions, pass_time=pass_time)
    finally:
        await stores.aclose()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def any_store(request: pytest.FixtureRequest, tmp_path: Path, time: Time) -> AsyncGenerator[Opened, None]:
    """Each kind of store in turn."""
    if request.param == "memory":
        store = MemoryExecutionStore(max_bytes=10**6, now=time.now, monotonic=time.monotonic)
        yield Opened(store=store, pass_time=time.advance)
        return
    url = ""
    if request.param == "postgres":
        request.getfixturevalue("patient_pool")
        url = request.getfixturevalue("postgres_url")
    async with open_one(url, tmp_path, time) as one:
        yield one
