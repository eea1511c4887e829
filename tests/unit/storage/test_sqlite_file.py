"""When a file is refused at the start, when it is read completely, and what happens if it disappears."""

import os
import resource
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from sqlite3 import Connection

import pytest

from reasond_server.errors.base import InternalError, SettingsError
from reasond_server.errors.limits import StoreUnavailableError
from reasond_server.storage.sqlite_file import SqliteFile, migrate_file, read_file_state

PAGE = 4096
FILL = "INSERT INTO forgotten (tenant, execution_id, forget_time) VALUES ('acme', printf('%0900d', {}), 0)"
DIE_WHILE_OPEN = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("DELETE FROM agents")
connection.execute("INSERT INTO agents (tenant, agent_id, etag, body) VALUES ('a', 'b', 'c', '{}')")
os._exit(0)
"""


def fill(connection: Connection) -> None:
    for number in range(100):
        connection.execute(FILL.format(number))


@pytest.fixture
async def damaged(tmp_path: Path) -> Path:
    """A file that was closed and then damaged in the middle, in pages that opening it does not read."""
    path = tmp_path / "reasond.db"
    file = await SqliteFile.open(path)
    await file.write(fill, then=lambda _: None)
    await file.aclose()
    content = bytearray(path.read_bytes())
    middle = len(content) // PAGE - 20
    content[middle * PAGE : (middle + 15) * PAGE] = b"\xff" * (15 * PAGE)
    path.write_bytes(content)
    return path


async def test_a_small_file_is_checked_at_every_start(damaged: Path) -> None:
    with pytest.raises(SettingsError, match="is damaged"):
        await SqliteFile.open(damaged)


async def test_a_large_file_that_was_closed_opens_without_being_read(damaged: Path) -> None:
    file = await SqliteFile.open(damaged, checked_bytes=1)
    with pytest.raises(InternalError):
        await file.read(lambda connection: connection.execute("SELECT * FROM forgotten").fetchall())
    await file.aclose()


async def test_why_a_file_cannot_be_written_is_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The operating system refuses the write, as a quota does. SQLite does not report that as a full disk."""
    file = await SqliteFile.open(tmp_path / "reasond.db")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(StoreUnavailableError, match="cannot be reached") as refused:
            await file.write(fill, then=lambda _: None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "in the server's log" in refused.value.remedy
    (told,) = [record for record in caplog.records if record.message == "the file of the store failed"]
    assert vars(told)["error"] == "SQLITE_IOERR_WRITE"
    await file.write(fill, then=lambda _: None)
    await file.aclose()


async def test_a_file_that_is_closed_says_so_in_our_words(tmp_path: Path) -> None:
    file = await SqliteFile.open(tmp_path / "reasond.db")
    await file.aclose()
    with pytest.raises(StoreUnavailableError, match="is closed"):
        await file.read(lambda connection: connection.execute("SELECT 1").fetchall())
    with pytest.raises(StoreUnavailableError, match="is closed"):
        await file.write(fill, then=lambda _: None)
    with pytest.raises(StoreUnavailableError, match="is closed"):
        await file.erase()


async def test_a_large_file_whose_process_died_is_checked(damaged: Path, caplog: pytest.LogCaptureFixture) -> None:
    subprocess.run([sys.executable, "-c", DIE_WHILE_OPEN, damaged], check=True, timeout=180)  # noqa: ASYNC221 - a test
    with pytest.raises(SettingsError, match="is damaged"):
        await SqliteFile.open(damaged, checked_bytes=1)
    assert "its whole file is checked" in caplog.text


async def test_a_disk_that_is_full_at_the_start_is_not_called_a_damaged_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is full") as refused:
        await SqliteFile.open(tmp_path / "reasond.db", max_file_bytes=PAGE)
    assert "Free space" in refused.value.remedy
    assert "move it away" not in refused.value.full_message


async def test_a_disk_that_refuses_a_write_at_the_start_is_not_called_a_damaged_file(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (PAGE, limits[1]))
    try:
        with pytest.raises(SettingsError, match="cannot be read or written") as refused:
            await SqliteFile.open(tmp_path / "reasond.db")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "Keep the file" in refused.value.remedy
    await (await SqliteFile.open(tmp_path / "reasond.db")).aclose()


async def test_a_file_that_another_program_holds_is_not_called_damaged(tmp_path: Path) -> None:
    path = tmp_path / "reasond.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(SettingsError, match="is in use by another program") as refused:
            await SqliteFile.open(path)
    assert "move it away" not in refused.value.full_message


@pytest.mark.parametrize(
    "made",
    [
        "CREATE TABLE moz_places (id INTEGER PRIMARY KEY, url TEXT)",
        "CREATE TABLE alembic_version (version_num TEXT); CREATE TABLE users (name TEXT)",
        "CREATE TABLE alembic_version AS SELECT 'a1b2c3' AS version_num; CREATE TABLE users (name TEXT)",
    ],
)
async def test_the_file_of_another_program_is_refused_and_stays_as_it_is(tmp_path: Path, made: str) -> None:
    path = tmp_path / "places.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(made)
    before = path.read_bytes()
    with pytest.raises(SettingsError, match="that reasond did not make"):
        await SqliteFile.open(path)
    for look in (migrate_file, read_file_state):
        with pytest.raises(SettingsError, match="that reasond did not make"):
            look(path)
    assert path.read_bytes() == before


async def test_a_second_process_is_refused_though_every_file_beside_the_database_was_deleted(tmp_path: Path) -> None:
    path = tmp_path / "reasond.db"
    file = await SqliteFile.open(path)
    try:
        (tmp_path / "reasond.db.lock").unlink(missing_ok=True)
        with pytest.raises(SettingsError, match="is in use by another process"):
            await SqliteFile.open(path)
    finally:
        await file.aclose()


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_file_that_was_deleted_or_replaced_is_neither_written_nor_made_anew(
    tmp_path: Path, *, is_replaced: bool
) -> None:
    path = tmp_path / "reasond.db"
    file = await SqliteFile.open(path)
    try:
        path.rename(tmp_path / "moved.db")
        if is_replaced:
            path.touch()
        assert not file.is_in_place
        with pytest.raises(StoreUnavailableError, match="was deleted, replaced or cut"):
            await file.write(fill, then=lambda _: None)
        with pytest.raises(StoreUnavailableError, match="was deleted, replaced or cut"):
            await file.read(lambda connection: connection.execute("SELECT count(*) FROM agents").fetchone())
        assert path.exists() is is_replaced
        (tmp_path / "moved.db").rename(path)
        await file.write(fill, then=lambda _: None)
    finally:
        await file.aclose()


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_write_ahead_log_or_index_that_was_deleted_or_replaced_is_noticed_like_the_file(
    tmp_path: Path, suffix: str, *, is_replaced: bool
) -> None:
    path = tmp_path / "reasond.db"
    await (await SqliteFile.open(path)).aclose()
    file = await SqliteFile.open(path)
    beside = tmp_path / f"reasond.db{suffix}"
    try:
        assert file.is_in_place
        beside.rename(tmp_path / "moved")
        if is_replaced:
            beside.touch()
        assert not file.is_in_place
        with pytest.raises(StoreUnavailableError, match="was deleted, replaced or cut"):
            await file.write(fill, then=lambda _: None)
        with pytest.raises(StoreUnavailableError, match="was deleted, replaced or cut"):
            await file.read(lambda connection: connection.execute("SELECT count(*) FROM agents").fetchone())
        (tmp_path / "moved").rename(beside)
        await file.write(fill, then=lambda _: None)
    finally:
        await file.aclose()


async def test_a_write_ahead_log_with_the_bytes_of_another_one_of_its_size_is_noticed_and_moved_nowhere(
    tmp_path: Path,
) -> None:
    path, log = tmp_path / "reasond.db", tmp_path / "reasond.db-wal"
    file = await SqliteFile.open(path)
    try:
        assert not file.find_foreign_log()
        await file.write(fill, then=lambda _: None)
        assert not file.find_foreign_log()
        await file.erase()
        assert not file.find_foreign_log()
        await file.write(lambda connection: connection.execute("DELETE FROM forgotten"), then=lambda _: None)
        assert not file.find_foreign_log()
        own, before = log.read_bytes(), path.read_bytes()
        log.write_bytes(bytes(len(own)))
        assert file.is_in_place
        assert file.find_foreign_log()
        log.write_bytes(own)
        with pytest.raises(StoreUnavailableError, match="was deleted, replaced or cut"):
            await file.write(fill, then=lambda _: None)
        with pytest.raises(StoreUnavailableError, match="was deleted, replaced or cut"):
            await file.erase()
        assert path.read_bytes() == before
    finally:
        await file.aclose()


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
@pytest.mark.parametrize("kept_bytes", [0, 4096])
async def test_a_file_that_was_cut_in_its_place_is_not_written_any_more(
    tmp_path: Path, suffix: str, kept_bytes: int
) -> None:
    file = await SqliteFile.open(tmp_path / "reasond.db")
    cut = tmp_path / f"reasond.db{suffix}"
    try:
        await file.write(fill, then=lambda _: None)
        await file.erase()
        await file.write(lambda connection: connection.execute("DELETE FROM forgotten"), then=lambda _: None)
        await file.write(lambda connection: connection.execute("DELETE FROM forgotten"), then=lambda _: None)
        assert file.is_in_place
        size = cut.stat().st_size
        os.truncate(cut, kept_bytes)
        assert not file.is_in_place
        with pytest.raises(StoreUnavailableError, match="was deleted, replaced or cut"):
            await file.write(fill, then=lambda _: None)
        with pytest.raises(StoreUnavailableError, match="was deleted, replaced or cut"):
            await file.erase()
        assert not file.is_in_place
        os.truncate(cut, size)
        assert not file.is_in_place
    finally:
        await file.aclose()


async def test_what_was_committed_into_a_deleted_write_ahead_log_is_moved_into_the_file(tmp_path: Path) -> None:
    path = tmp_path / "reasond.db"
    file = await SqliteFile.open(path)
    await file.write(fill, then=lambda _: None)
    (tmp_path / "reasond.db-wal").unlink()
    await file.erase()
    # A copy is what a process finds after this one was killed.
    copy = tmp_path / "copy.db"
    copy.write_bytes(path.read_bytes())
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("SELECT count(*) FROM forgotten").fetchone() == (100,)
    await file.aclose()
