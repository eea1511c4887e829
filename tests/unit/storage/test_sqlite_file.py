"""When a file is read whole at the start, and what is found then."""

import resource
import subprocess
import sys
from pathlib import Path
from sqlite3 import Connection

import pytest

from reasond_server.errors import InternalError, SettingsError, StoreUnavailableError
from reasond_server.storage.sqlite_file import SqliteFile

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
    """A file that was closed and then damaged in the middle, where opening it does not look."""
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
    """The system refuses the write, as a quota does; that is no full disk for SQLite."""
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
