"""A database in memory: bounded, alone, and gone with the last who refers to it."""

import gc
import sqlite3
import weakref
from sqlite3 import Connection

import pytest

from reasond_server.errors.limits import StoreFullError, StoreUnavailableError
from reasond_server.storage.sqlite_memory import SqliteMemory


async def test_two_databases_share_nothing() -> None:
    one, other = SqliteMemory(), SqliteMemory()
    await one.write(lambda connection: connection.execute("CREATE TABLE mine (x)").close(), then=lambda _: None)
    with pytest.raises(StoreUnavailableError):
        await other.read(lambda connection: connection.execute("SELECT * FROM mine").fetchall())


async def test_what_is_told_after_a_commit_is_not_told_of_what_was_undone() -> None:
    database, told = SqliteMemory(), list[object]()

    def fail(connection: Connection) -> None:
        connection.execute("CREATE TABLE mine (x)")
        raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        await database.write(fail, then=told.append)
    assert told == []
    await database.write(lambda connection: connection.execute("CREATE TABLE mine (x)").close(), then=told.append)
    assert told == [None]


async def test_its_bound_leaves_the_empty_tables_out() -> None:
    database = SqliteMemory(64 * 1024)
    assert (await database.read_size(), await database.read_share()) == (0, 0.0)

    def fill(connection: Connection) -> None:
        connection.execute("CREATE TABLE mine (x)")
        connection.execute("INSERT INTO mine VALUES (zeroblob(50000))")

    await database.write(fill, then=lambda _: None)
    assert 0.8 < await database.read_share() <= 1.0
    with pytest.raises(StoreFullError, match="is full") as caught:
        await database.write(
            lambda connection: connection.execute("INSERT INTO mine VALUES (zeroblob(20000))").close(),
            then=lambda _: None,
        )
    assert "max_bytes" in caught.value.remedy
    assert await SqliteMemory().read_share() == 0.0


async def test_it_is_closed_when_nobody_refers_to_it() -> None:
    database = SqliteMemory()
    connection = await database.read(lambda connection: connection)
    await database.aclose()
    gone = weakref.ref(database)
    del database
    gc.collect()
    assert gone() is None
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")
