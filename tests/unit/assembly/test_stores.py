"""The place of each store, the files that opening it leaves behind, and the modules that it loads."""

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from reasond_server.assembly.app import Server
from reasond_server.assembly.stores import (
    MEMORY_URL,
    StoreOptions,
    Stores,
    examine_stores,
    find_store_file,
    migrate_stores,
    open_stores,
)
from reasond_server.config import load
from reasond_server.errors.base import InternalError, SettingsError
from reasond_server.snapshots.manifests import build_entries, digest_content
from reasond_server.types.repairs import SourceFile
from tests.stores.logs import HandWrittenLog
from tests.unit.eventlog.stored.conftest import Time

NOWHERE = "postgresql://ann:s3cret@127.0.0.1:1/mine"
REASOND = Path(sys.executable).with_name("reasond")
FREE = {"REASOND__SERVER__GRPC_ADDRESS": "127.0.0.1:0", "REASOND__SERVER__HTTP_ADDRESS": "127.0.0.1:0"}
RUNNING_SERVER = """
import asyncio
from reasond_server.testing import running_server

async def main():
    async with running_server() as listening:
        print(listening.store)

asyncio.run(main())
"""


def left_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def open_at(url: str, folder: Path, *, stores_content: bool = True) -> Stores:
    time = Time()
    return await open_stores(
        StoreOptions(
            url=url,
            data_dir=str(folder),
            now=time.now,
            monotonic=time.monotonic,
            max_bytes=10**6,
            max_agents=9,
            stores_content=stores_content,
        )
    )


@pytest.mark.parametrize("stores_content", [True, False])
async def test_without_content_the_file_has_nothing_of_a_snapshot(tmp_path: Path, *, stores_content: bool) -> None:
    stores = await open_at("", tmp_path, stores_content=stores_content)
    time, content = Time(), b"the code of a client"
    entries = build_entries([SourceFile(path="its/name", content=content)])
    made = await stores.snapshots.create("acme", entries, now=time.now(), expire_time=time.now() + timedelta(hours=1))
    await stores.snapshots.put("acme", {digest_content(content): content})
    assert (await stores.snapshots.find("acme", made.snapshot_id, now=time.now())).missing == ()
    written = b"".join(path.read_bytes() for path in left_in(tmp_path))
    assert [text in written for text in (b"its/name", content)] == [stores_content] * 2
    await stores.aclose()


async def test_memory_leaves_nothing_behind_and_says_that_it_ends(tmp_path: Path) -> None:
    stores = await open_at(MEMORY_URL, tmp_path)
    assert "end with the process" in stores.place
    await stores.aclose()
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("url", ["sqlite:///", "mysql://x", "reasond.db", "sqlite:reasond.db"])
async def test_an_address_of_no_known_form_is_refused_before_anything_is_made(tmp_path: Path, url: str) -> None:
    with pytest.raises(SettingsError, match="of no known form") as caught:
        await open_at(url, tmp_path)
    assert "memory:" in caught.value.remedy
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("missing", [("psycopg",), ("psycopg_pool",), ("psycopg", "psycopg_pool")])
async def test_postgresql_without_its_driver_names_the_extra(
    tmp_path: Path, missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SettingsError, match=" and ".join(missing) + " cannot be imported") as caught:
        await open_at(NOWHERE, tmp_path)
    for act in (migrate_stores, examine_stores):
        with pytest.raises(SettingsError, match="cannot be imported"):
            act(url=NOWHERE, data_dir="")
    assert "reasond-server[postgres]" in caught.value.remedy
    assert "s3cret" not in caught.value.full_message


async def test_a_file_that_fails_at_the_last_moment_is_let_go_of(tmp_path: Path) -> None:
    stores = await open_at("", tmp_path)
    await HandWrittenLog.new(stores.executions, tenant="acme").create()
    await stores.aclose()
    with sqlite3.connect(tmp_path / "reasond.db") as connection:
        refuse = "BEFORE UPDATE ON executions BEGIN SELECT RAISE(ABORT, 'no'); END"
        connection.execute(f"CREATE TRIGGER refuse {refuse}")
    with pytest.raises(InternalError):
        await open_at("", tmp_path)
    with sqlite3.connect(tmp_path / "reasond.db") as connection:
        connection.execute("DROP TRIGGER refuse")
    connection.close()
    await (await open_at("", tmp_path)).aclose()


def test_without_an_address_the_file_is_in_the_folder_for_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert find_store_file("", "") == Path("/home/ann/.local/state/reasond/reasond.db")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert find_store_file("", "") == Path("/state/reasond/reasond.db")
    assert find_store_file("", "~/data") == Path("/home/ann/data/reasond.db")
    assert find_store_file("sqlite:///~/mine.db", "/elsewhere") == Path("/home/ann/mine.db")
    assert find_store_file("sqlite:////srv/mine.db", "") == Path("/srv/mine.db")


async def test_a_fresh_server_makes_its_file_for_its_owner_alone_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    secret = tmp_path / "secret"
    secret.write_text("b3JkaW5hcnktdGVzdC1zZWNyZXQtb2YtMzItYnl0ZXMtb3ItbW9yZQ")
    settings = tmp_path / "config.toml"
    settings.write_text(f'[[auth.keys]]\nid = "k"\nsecret_file = "{secret}"\n')
    environ = FREE | {"REASOND__LLM__PROVIDER": "demo"}
    server = Server(load(settings, environ), environ=environ)
    listening = await server.start()
    file = tmp_path / "state" / "reasond" / "reasond.db"
    try:
        assert listening.store == f"SQLite, {file}"
        assert {stat.S_IMODE(path.stat().st_mode) for path in file.parent.iterdir()} == {0o600}
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    finally:
        await server.stop()
    assert sorted(path.name for path in file.parent.iterdir()) == ["reasond.db"]


async def test_under_dev_everything_is_in_memory_unless_an_address_is_given(tmp_path: Path) -> None:
    for url, place in (("", "in memory: executions end with the process"), ("sqlite:///{}/x.db", "SQLite, {}/x.db")):
        environ = FREE | {"REASOND__STORE__URL": url.format(tmp_path), "REASOND__STORE__DATA_DIR": str(tmp_path)}
        server = Server(load(Path(os.devnull), environ), environ=environ, dev=True)
        listening = await server.start()
        await server.stop()
        assert listening.store == place.format(tmp_path)
        assert bool(left_in(tmp_path)) == bool(url)


def seen_in(home: Path, *command: str | Path, environ: Mapping[str, str] = FREE) -> tuple[str, str]:
    """Run a program in `home`, which is also its home folder; return its output and the log of its imports."""
    clean = {name: os.environ[name] for name in ("PATH",)} | {"PYTHONPROFILEIMPORTTIME": "1", "HOME": str(home)}
    done = subprocess.run(
        command, env={**clean, **environ}, cwd=home, capture_output=True, text=True, timeout=180, check=True
    )
    return done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", [(sys.executable, "-c", RUNNING_SERVER), (REASOND, "demo")])
def test_tests_and_the_demo_keep_everything_in_memory_and_load_no_database(
    tmp_path: Path, command: tuple[str | Path, ...]
) -> None:
    output, imported = seen_in(tmp_path, *command)
    assert output
    assert "reasond_server.storage.sqlite_memory" in imported
    assert "sqlalchemy" not in imported
    assert [path for path in tmp_path.rglob("*") if "reasond" in path.name] == []
