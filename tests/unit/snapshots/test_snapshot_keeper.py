"""What repairs need of snapshots: limits, retention, inline files, and files that are loaded whole."""

from datetime import timedelta

import pytest

from reasond_server.errors.repairs import SnapshotNotFoundError
from reasond_server.errors.request import InvalidRequestError
from reasond_server.snapshots.manifests import MAX_UPLOAD_BYTES, SnapshotLimits, digest_content
from reasond_server.snapshots.snapshot_keeper import SnapshotKeeper
from reasond_server.snapshots.snapshot_store import SnapshotStore
from reasond_server.types.repairs import SourceFile
from tests.unit.eventlog.stored.conftest import Time
from tests.unit.snapshots.conftest import entries_of

LIMITS = SnapshotLimits(max_bytes=100_000, max_files=3000, retention_s=60)
FILES = {"src/a.py": b"print(1)\n", "b": b"", "again": b"print(1)\n"}


@pytest.fixture
def keeper(store: SnapshotStore, time: Time) -> SnapshotKeeper:
    return SnapshotKeeper(store=store, limits=LIMITS, now=time.now)


async def test_files_come_back_as_they_were_sent(keeper: SnapshotKeeper) -> None:
    snapshot = await keeper.create("acme", entries_of(FILES))
    digests = await keeper.put("acme", [FILES["b"], FILES["src/a.py"], FILES["again"]])
    assert digests == [digest_content(FILES["b"]), digest_content(FILES["again"]), digest_content(FILES["again"])]
    loaded = await keeper.load("acme", snapshot.snapshot_id)
    assert loaded == {path: SourceFile(path=path, content=content) for path, content in FILES.items()}
    assert (await keeper.create("acme", entries_of(FILES))).missing == ()


async def test_inline_files_are_a_snapshot_that_keeps_what_they_may(keeper: SnapshotKeeper) -> None:
    files = [
        SourceFile(path="run.sh", content=b"#!/bin/sh\n", is_executable=True),
        SourceFile(path="a", content=bytes(range(256)) * 300),
    ]
    first = await keeper.keep_files("acme", files)
    assert first.missing == ()
    assert await keeper.load("acme", first.snapshot_id) == {file.path: file for file in files}
    assert await keeper.keep_files("acme", files) == first


async def test_thousands_of_files_are_loaded_whole(keeper: SnapshotKeeper) -> None:
    files = [SourceFile(path=f"pkg{index % 40}/m{index}.py", content=b"%d" % index) for index in range(1500)]
    snapshot = await keeper.keep_files("acme", files)
    loaded = await keeper.load("acme", snapshot.snapshot_id)
    assert [loaded[file.path] for file in files] == files


async def test_an_incomplete_snapshot_is_not_loaded_and_the_error_says_how_much_is_missing(
    keeper: SnapshotKeeper,
) -> None:
    snapshot = await keeper.create("acme", entries_of(FILES))
    await keeper.put("acme", [FILES["b"]])
    for act in (keeper.load, keeper.require):
        with pytest.raises(SnapshotNotFoundError, match="1 of its 2 contents are missing") as caught:
            await act("acme", snapshot.snapshot_id)
        assert caught.value.metadata == {"missing": "1"}
        for tenant, name in (("eve", snapshot.snapshot_id), ("acme", "0" * 64)):
            with pytest.raises(SnapshotNotFoundError, match="not found"):
                await act(tenant, name)
    await keeper.put("acme", [FILES["again"]])
    assert (await keeper.require("acme", snapshot.snapshot_id)).missing == ()


async def test_a_snapshot_is_kept_as_long_as_it_is_used(keeper: SnapshotKeeper, time: Time) -> None:
    snapshot = await keeper.keep_files("acme", [SourceFile(path="a", content=b"a")])
    assert snapshot.expire_time == time.now() + timedelta(seconds=60)
    for _ in range(3):
        await time.advance(50)
        await keeper.load("acme", snapshot.snapshot_id)
    await time.advance(60)
    with pytest.raises(SnapshotNotFoundError):
        await keeper.load("acme", snapshot.snapshot_id)


async def test_requests_beyond_the_limits_are_refused_with_their_own_fields(keeper: SnapshotKeeper) -> None:
    too_many = [SourceFile(path=str(index), content=b"") for index in range(LIMITS.max_files + 1)]
    for files in (too_many, [SourceFile(path="a", content=bytes(100_001))]):
        assert [each.field for each in await keeper.find_in_files(files)] == ["files"]
    for act, field in (
        (keeper.create("acme", entries_of({"a": bytes(100_001)})), "manifest"),
        (keeper.create("acme", entries_of({"../a": b""})), "manifest[0].path"),
        (keeper.put("acme", []), "contents"),
        (keeper.put("acme", [bytes(MAX_UPLOAD_BYTES), b"x"]), "contents"),
        (keeper.put("acme", [b"of no manifest"]), "contents"),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            await act
        assert [each.field for each in caught.value.violations] == [field]
