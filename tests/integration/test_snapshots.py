"""A folder is uploaded by the client to a server with a database, and kept as the server was told."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from reasond import AsyncClient, FileEntry, InvalidRequestError, ResourceExhaustedError
from reasond_server.testing import running_server

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_S = 120.0


def environ_of(folder: Path, **repair: str) -> dict[str, str]:
    keys = {f"REASOND__REPAIR__{name.upper()}": value for name, value in repair.items()}
    url = f"sqlite:///{folder / 'reasond.db'}"
    return {"REASOND__STORE__URL": url, "REASOND__STORE__LEASE_S": "3", "REASOND__REPAIR__ENABLED": "true", **keys}


def make_project(root: Path, *, files: int, size: int) -> Path:
    root.mkdir()
    for index in range(files):
        (root / f"m{index}.py").write_bytes(b"%d\n" % index * size)
    return root


@pytest.mark.slow
async def test_an_unchanged_folder_sends_nothing_again_also_after_a_restart(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project", files=120, size=10_000)
    for sent in (120, 0, 1):
        async with (
            running_server(environ=environ_of(tmp_path)) as listening,
            AsyncClient(listening.grpc, token=listening.token) as client,
        ):
            done = await client.upload_snapshot(project)
            assert (done.sent_contents, done.snapshot.file_count) == (sent, 120)
            assert (await client.upload_snapshot(project)).sent_contents == 0
        if not sent:
            (project / "m7.py").write_text("changed")


async def test_hostile_manifests_and_too_large_ones_are_refused_with_their_fields(tmp_path: Path) -> None:
    entry = FileEntry(path="../../etc/passwd", digest="0" * 64)
    settings = environ_of(tmp_path, snapshot_quota_bytes="200000", max_snapshot_files="50")
    async with (
        running_server(environ=settings) as listening,
        AsyncClient(listening.grpc, token=listening.token) as client,
    ):
        with pytest.raises(InvalidRequestError) as caught:
            await client.create_snapshot([entry, FileEntry(path=".git/config", digest="x")])
        assert [each.field for each in caught.value.violations] == [
            "manifest[0].path",
            "manifest[1].path",
            "manifest[1].digest",
        ]
        with pytest.raises(InvalidRequestError, match="at most 50 files, got 51"):
            await client.upload_snapshot(make_project(tmp_path / "many", files=51, size=1))
        with pytest.raises(ResourceExhaustedError, match="at most 200000 are allowed") as full:
            await client.upload_snapshot(make_project(tmp_path / "large", files=2, size=100_000))
        assert full.value.reason == "STORE_FULL"
        with pytest.raises(InvalidRequestError, match="which no snapshot of yours names"):
            await client.upload_blobs([b"of no manifest"])


async def test_the_upkeep_of_a_server_deletes_what_has_expired(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project", files=3, size=10)
    async with (
        running_server(environ=environ_of(tmp_path)) as listening,
        AsyncClient(listening.grpc, token=listening.token) as client,
    ):
        await client.upload_snapshot(project)
        with closing(sqlite3.connect(tmp_path / "reasond.db", isolation_level=None, timeout=LIMIT_S)) as other:
            other.execute("UPDATE snapshots SET expire_time = 1")
            async with asyncio.timeout(LIMIT_S):
                while other.execute("SELECT count(*) FROM snapshot_contents").fetchone() != (0,):
                    await client.list_environments()
        assert (await client.upload_snapshot(project)).sent_contents == 3
