"""Memory, SQLite and PostgreSQL fulfil the same contract of snapshots."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from reasond_server.errors.limits import StoreFullError
from reasond_server.errors.repairs import SnapshotNotFoundError
from reasond_server.errors.request import InvalidRequestError
from reasond_server.snapshots.manifests import digest_content
from reasond_server.snapshots.snapshot_store import SnapshotStore
from tests.unit.eventlog.stored.conftest import Time
from tests.unit.snapshots.conftest import KEPT_S, QUOTA, Uploader, entries_of

A, B, C, D = b"a" * 10, b"b" * 20, b"\x00\xff\r\nc", b""
TREE = {"src/ä.py": A, "src/b.py": B, "copy/of/b.py": B, "empty": D}


async def test_a_manifest_names_what_is_missing_until_it_is_there(ann: Uploader, time: Time) -> None:
    made = await ann.create(TREE)
    assert sorted(made.missing) == sorted(map(digest_content, (A, B, D)))
    assert (made.create_time, made.expire_time) == (time.now(), time.now() + timedelta(seconds=KEPT_S))
    await ann.store.put("acme", {digest_content(A): A})
    assert sorted((await ann.find(made.snapshot_id)).missing) == sorted(map(digest_content, (B, D)))
    await ann.store.put("acme", {digest_content(A): A, digest_content(B): B, digest_content(D): D})
    found = await ann.find(made.snapshot_id)
    assert found == replace(made, missing=())
    assert list(found.entries) == entries_of(TREE)
    assert found.total_bytes == 50
    assert await ann.read(A, B, C, D) == sorted([A, B, D])


async def test_an_unchanged_tree_sends_nothing_again_and_a_changed_one_what_changed(ann: Uploader) -> None:
    first = await ann.upload(TREE)
    ann.sent.clear()
    again = await ann.upload(dict(reversed(TREE.items())))
    assert (again.snapshot_id, ann.sent) == (first.snapshot_id, [])
    changed = await ann.upload({**TREE, "empty": C})
    assert ann.sent == [digest_content(C)]
    assert changed.snapshot_id != first.snapshot_id


async def test_what_a_file_may_do_and_where_it_is_are_part_of_the_id(ann: Uploader, time: Time) -> None:
    entries = entries_of({"a": A})
    times = {"now": time.now(), "expire_time": time.now() + timedelta(seconds=1)}
    ids = {
        (await ann.store.create("acme", each, **times)).snapshot_id
        for each in (entries, entries_of({"b": A}), [replace(entries[0], is_executable=True)])
    }
    assert len(ids) == 3


async def test_each_use_prolongs_a_snapshot_and_none_shortens_it(ann: Uploader, time: Time) -> None:
    made = await ann.upload(TREE)
    await time.advance(KEPT_S - 1)
    assert (await ann.create(TREE, kept_s=0)).expire_time == made.expire_time
    prolonged = await ann.find(made.snapshot_id, kept_s=KEPT_S)
    assert prolonged.expire_time == time.now() + timedelta(seconds=KEPT_S)
    assert (await ann.find(made.snapshot_id)).expire_time == prolonged.expire_time
    await time.advance(KEPT_S - 1)
    assert (await ann.create(TREE)).expire_time == time.now() + timedelta(seconds=KEPT_S)


async def test_no_tenant_learns_what_another_one_has(ann: Uploader, store: SnapshotStore, time: Time) -> None:
    made, eve = await ann.upload(TREE), Uploader(store, time, "eve")
    with pytest.raises(SnapshotNotFoundError):
        await eve.find(made.snapshot_id)
    assert await eve.read(A, B) == []
    with pytest.raises(InvalidRequestError):
        await store.put("eve", {digest_content(A): A})
    own = await eve.create(TREE)
    assert (own.snapshot_id, sorted(own.missing)) == (made.snapshot_id, sorted(map(digest_content, (A, B, D))))
    await time.advance(KEPT_S)
    await eve.upload(TREE)
    assert await ann.sweep() == 1
    assert await eve.read(A, B, D) == sorted([A, B, D])


async def test_a_content_that_no_snapshot_names_is_refused_and_nothing_of_its_batch_is_stored(ann: Uploader) -> None:
    made = await ann.create({"a": A})
    with pytest.raises(InvalidRequestError, match=digest_content(B)) as caught:
        await ann.store.put("acme", {digest_content(A): A, digest_content(B): B})
    assert [each.field for each in caught.value.violations] == ["contents"]
    assert (await ann.find(made.snapshot_id)).missing == (digest_content(A),)


async def test_a_content_of_another_size_than_the_manifest_names_is_never_that_of_its_file(
    ann: Uploader, time: Time
) -> None:
    entry = replace(entries_of({"a": A})[0], size_bytes=1)
    times = {"now": time.now(), "expire_time": time.now() + timedelta(seconds=1)}
    lie = await ann.store.create("acme", [entry], **times)
    with pytest.raises(InvalidRequestError):
        await ann.store.put("acme", {digest_content(A): A})
    honest = await ann.upload({"a": A})
    assert honest.missing == ()
    assert (await ann.find(lie.snapshot_id)).missing == (digest_content(A),)


async def test_shared_contents_count_once_and_missing_ones_from_the_beginning(ann: Uploader) -> None:
    large = bytes(600_000)
    await ann.create({"a": large})
    await ann.create({"a": large, "b": A})
    with pytest.raises(StoreFullError) as caught:
        await ann.create({"a": large, "b": b"x" * 500_000})
    assert caught.value.metadata["max_bytes"] == str(QUOTA.max_bytes)
    assert "snapshot_quota_bytes" in caught.value.remedy
    with pytest.raises(InvalidRequestError):
        await ann.store.put("acme", {digest_content(b"x" * 500_000): b"x" * 500_000})
    await ann.create({"c": b"x" * 300_000})


async def test_manifests_count_too_and_so_does_their_number(ann: Uploader) -> None:
    with pytest.raises(StoreFullError):
        await ann.create({f"{index}/{'p' * 200}": A for index in range(1500)})
    for index in range(QUOTA.max_snapshots):
        await ann.create({f"{index}": A})
    with pytest.raises(StoreFullError, match="5 snapshots"):
        await ann.create({"one/more": A})
    await ann.create({"0": A})


async def test_what_has_expired_makes_room_before_it_is_swept(ann: Uploader, time: Time) -> None:
    old = await ann.upload({"a": bytes(600_000), "b": B})
    await time.advance(KEPT_S)
    new = await ann.upload({"a": bytes(700_000), "b": B})
    assert new.missing == ()
    with pytest.raises(SnapshotNotFoundError):
        await ann.find(old.snapshot_id)
    assert await ann.read(bytes(600_000), bytes(700_000), B) == sorted([bytes(700_000), B])


async def test_a_sweep_forgets_what_has_expired_and_keeps_what_is_shared(ann: Uploader, time: Time) -> None:
    old = [await ann.upload({"shared": A, "own": bytes([index])}, kept_s=1) for index in range(3)]
    live = await ann.upload({"shared": A, "b": B})
    assert await ann.sweep() == 0
    await time.advance(1)
    for each in old:
        with pytest.raises(SnapshotNotFoundError):
            await ann.find(each.snapshot_id)
    assert [await ann.sweep(2), await ann.sweep(2), await ann.sweep(2)] == [2, 1, 0]
    assert await ann.read(A, B, bytes([0]), bytes([1]), bytes([2])) == [A, B]
    assert (await ann.find(live.snapshot_id)).missing == ()
    assert (await ann.create({"own": bytes([1])})).missing == (digest_content(bytes([1])),)


async def test_one_that_has_expired_is_made_anew(ann: Uploader, time: Time) -> None:
    made = await ann.upload(TREE, kept_s=1)
    await time.advance(1)
    again = await ann.upload(TREE)
    assert again == replace(made, create_time=time.now(), expire_time=time.now() + timedelta(seconds=KEPT_S))
    assert await ann.sweep() == 0
    assert await ann.read(A, B, D) == sorted([A, B, D])


@pytest.mark.parametrize("name", ["", "\x00", "\ud800", "a" * 5000, "A" * 64, "'; DROP TABLE snapshots; --", "%s :now"])
async def test_an_id_that_cannot_be_is_not_found(ann: Uploader, name: str) -> None:
    await ann.create(TREE)
    with pytest.raises(SnapshotNotFoundError):
        await ann.find(name)


async def test_uploads_and_sweeps_at_the_same_time_lose_nothing_that_is_needed(ann: Uploader, time: Time) -> None:
    for round_ in range(8):
        old = {"a": A, "b": B, "r": bytes([round_])}
        await ann.upload(old, kept_s=1)
        await time.advance(1)
        first, _, second, _, third = await asyncio.gather(
            ann.upload({"a": A, "round": bytes([round_]) * 2}, kept_s=2),
            ann.sweep(),
            ann.upload({"b": B, "round": bytes([round_]) * 3}, kept_s=2),
            ann.sweep(),
            ann.upload({"a": A, "b": B, "c": C}, kept_s=2),
        )
        for each in (first, second, third):
            assert (await ann.find(each.snapshot_id)).missing == ()
        assert await ann.read(A, B, C, bytes([round_]) * 2, bytes([round_]) * 3, bytes([round_])) == sorted(
            [A, B, C, bytes([round_]) * 2, bytes([round_]) * 3]
        )
        await time.advance(10)
        await ann.sweep()
    assert await ann.read(A, B, C) == []


async def test_a_use_at_the_moment_of_the_sweep_finds_all_or_nothing(ann: Uploader, time: Time) -> None:
    for _ in range(8):
        made = await ann.upload(TREE, kept_s=2)
        await time.advance(1)
        used, swept = await asyncio.gather(
            ann.find(made.snapshot_id, kept_s=KEPT_S),
            ann.store.sweep(now=time.now() + timedelta(seconds=1), limit=10),
            return_exceptions=True,
        )
        if isinstance(used, SnapshotNotFoundError):
            assert (swept, await ann.read(A, B, D)) == (1, [])
        else:
            assert (swept, (await ann.find(made.snapshot_id)).missing) == (0, ())
            await time.advance(2 * KEPT_S)
            assert await ann.sweep() == 1
