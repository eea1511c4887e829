"""What only databases have: files without deleted contents, several processes, and versions of rows."""

import asyncio
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from reasond_server.errors.base import InternalError
from reasond_server.snapshots.manifests import digest_content
from tests.unit.eventlog.stored.conftest import Time
from tests.unit.snapshots.conftest import Uploader, open_all, open_snapshots

SECRET = b"a text that must not stay " * 200


def bytes_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


async def wait_for_lock(url: str) -> None:
    """Return once a transaction of the database waits for another one."""
    waiting = """
        SELECT 1 FROM pg_sleep(0.01), pg_stat_activity
        WHERE wait_event_type = 'Lock' AND datname = current_database()
    """
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        while not await (await connection.execute(waiting)).fetchall():
            pass


async def test_swept_contents_are_in_no_file_any_more(tmp_path: Path, time: Time) -> None:
    async with open_snapshots("", tmp_path, time) as store:
        ann = Uploader(store, time)
        await ann.upload({"secret name": SECRET, "b": b"b"}, kept_s=1)
        await ann.upload({"b": b"b"})
        assert SECRET[:26] in bytes_of(tmp_path)
        await time.advance(1)
        assert await ann.sweep() == 1
        for text in (SECRET[:26], b"secret name", digest_content(SECRET).encode()):
            assert text not in bytes_of(tmp_path)
        assert await ann.read(b"b") == [b"b"]


async def test_nothing_is_left_when_the_last_snapshot_has_expired(
    tmp_path: Path, time: Time, postgres_url: str
) -> None:
    async with open_snapshots(postgres_url, tmp_path, time) as store:
        await Uploader(store, time).upload({"a": b"a"}, kept_s=1)
        await time.advance(1)
        assert await store.sweep(now=time.now(), limit=10) == 1
    with psycopg.connect(postgres_url) as connection:
        for table in ("snapshots", "snapshot_files", "snapshot_contents", "snapshot_tenants"):
            assert connection.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))).fetchone() == (
                0,
            )


async def test_processes_that_upload_and_sweep_at_once_lose_nothing(
    tmp_path: Path, time: Time, postgres_url: str
) -> None:
    trees = [{"shared": b"s", "own": bytes([index]), "pair": bytes([index // 2]) * 9} for index in range(4)]
    async with (
        open_snapshots(postgres_url, tmp_path, time) as first,
        open_snapshots(postgres_url, tmp_path, time) as second,
    ):
        clients = [Uploader(store, time) for store in (first, second)]
        for _ in range(4):
            for tree in trees[:2]:
                await clients[0].upload(tree, kept_s=1)
            await time.advance(1)
            sweeps = [asyncio.create_task(client.sweep()) for client in clients]
            uploads = [client.upload(tree, kept_s=2) for client in clients for tree in trees[1:]]
            for each in await asyncio.gather(*uploads):
                assert (await clients[0].find(each.snapshot_id)).missing == ()
            await asyncio.gather(*sweeps)
            await time.advance(10)
            await asyncio.gather(*(client.sweep() for client in clients))


async def test_a_sweep_waits_for_an_upload_that_names_the_same_content(
    tmp_path: Path, time: Time, postgres_url: str
) -> None:
    names = {"new": "1" * 64, "content": digest_content(b"a")}
    async with (
        open_snapshots(postgres_url, tmp_path, time) as store,
        await psycopg.AsyncConnection.connect(postgres_url) as other,
    ):
        await Uploader(store, time).upload({"a": b"a"}, kept_s=1)
        await time.advance(1)
        # What another process does that creates a snapshot with this content, up to the moment before its commit.
        await other.execute("UPDATE snapshot_tenants SET tenant = tenant")
        await other.execute("INSERT INTO snapshots VALUES ('acme', %(new)s, 0, 1e12, 1, '{}')", names)
        await other.execute("INSERT INTO snapshot_files VALUES ('acme', %(new)s, %(content)s, 1)", names)
        sweep = asyncio.create_task(store.sweep(now=time.now(), limit=10))
        waits = asyncio.create_task(wait_for_lock(postgres_url))
        await asyncio.wait([sweep, waits], return_when=asyncio.FIRST_COMPLETED)
        waits.cancel()
        await other.commit()
        assert await sweep == 1
        assert await Uploader(store, time).read(b"a") == [b"a"]


async def test_uploads_that_wait_for_each_other_leave_connections_for_executions(
    tmp_path: Path, time: Time, postgres_url: str
) -> None:
    async with (
        open_all(postgres_url, tmp_path, time) as stores,
        await psycopg.AsyncConnection.connect(postgres_url) as other,
    ):
        ann = Uploader(stores.snapshots, time)
        await ann.upload({"a": b"a"})
        await other.execute("UPDATE snapshot_tenants SET tenant = tenant")
        uploads = [asyncio.create_task(ann.upload({"a": b"a"})) for _ in range(20)]
        await wait_for_lock(postgres_url)
        # Each look gives the uploads time to take another connection.
        for _ in range(200):
            assert await stores.executions.find_claim("acme", "r") is None
        assert not any(upload.done() for upload in uploads)
        await other.rollback()
        assert len({upload.snapshot_id for upload in await asyncio.gather(*uploads)}) == 1


async def test_a_snapshot_of_a_later_release_is_not_misread(tmp_path: Path, time: Time) -> None:
    async with open_snapshots("", tmp_path, time) as store:
        made = await Uploader(store, time).upload({"a": b"a"})
        with closing(sqlite3.connect(tmp_path / "reasond.db", isolation_level=None)) as other:
            other.execute("""UPDATE snapshots SET manifest = '{"v":2}'""")
        with pytest.raises(InternalError, match="has version 2, this release reads 1"):
            await store.find("acme", made.snapshot_id, now=time.now())


async def test_contents_survive_the_process(tmp_path: Path, time: Time) -> None:
    async with open_snapshots("", tmp_path, time) as store:
        made = await Uploader(store, time).upload({"a": SECRET})
    async with open_snapshots("", tmp_path, time) as store:
        found = await store.find("acme", made.snapshot_id, now=time.now(), expire_time=time.now() + timedelta(hours=1))
        assert found.missing == ()
        assert await Uploader(store, time).read(SECRET) == [SECRET]
