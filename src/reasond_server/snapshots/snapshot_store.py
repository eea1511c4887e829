"""Snapshots in the database of the event logs."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from reasond_server.errors.base import InternalError, Violation, show
from reasond_server.errors.limits import StoreFullError
from reasond_server.errors.repairs import SnapshotNotFoundError
from reasond_server.errors.request import InvalidRequestError
from reasond_server.snapshots.manifests import derive_snapshot_id, is_snapshot_id, measure_manifest
from reasond_server.types.repairs import FileEntry, Snapshot
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from reasond_server.storage.transactions import Job, Rows, Transactions, Values

ResultT = TypeVar("ResultT")

_VERSION: Final = 1
_PIECE_BYTES: Final = 1024 * 1024
_JOBS_AT_ONCE: Final = 2

# Makes or locks the row: whatever else changes snapshots of the tenant waits until this transaction ends.
_LOCK: Final = """
INSERT INTO snapshot_tenants (tenant) VALUES (:tenant) ON CONFLICT (tenant) DO UPDATE SET tenant = excluded.tenant
"""
_LEAVE: Final = """
DELETE FROM snapshot_tenants
WHERE tenant = :tenant AND NOT EXISTS (SELECT 1 FROM snapshots s WHERE s.tenant = :tenant)
"""
_PROLONG: Final = """
UPDATE snapshots SET expire_time = CASE WHEN expire_time < :expire_time THEN :expire_time ELSE expire_time END
WHERE tenant = :tenant AND snapshot_id = :snapshot_id AND expire_time > :now
RETURNING create_time, expire_time, manifest
"""
# One that has expired begins anew, with the contents that are still there.
_CREATE: Final = """
INSERT INTO snapshots (tenant, snapshot_id, create_time, expire_time, manifest_bytes, manifest)
VALUES (:tenant, :snapshot_id, :now, :expire_time, :manifest_bytes, :manifest)
ON CONFLICT (tenant, snapshot_id) DO UPDATE SET create_time = excluded.create_time, expire_time = excluded.expire_time
"""
_ADD_CONTENTS: Final = """
INSERT INTO snapshot_contents (tenant, digest, size_bytes)
SELECT :tenant, key, CAST(CAST(value AS TEXT) AS BIGINT) FROM json_each(:contents) WHERE TRUE ON CONFLICT DO NOTHING
"""
_ADD_FILES: Final = """
INSERT INTO snapshot_files (tenant, snapshot_id, digest, size_bytes)
SELECT :tenant, :snapshot_id, key, CAST(CAST(value AS TEXT) AS BIGINT) FROM json_each(:contents) WHERE TRUE
ON CONFLICT DO NOTHING
"""
_USED: Final = """
SELECT
    (SELECT CAST(coalesce(sum(size_bytes), 0) AS BIGINT) FROM snapshot_contents WHERE tenant = :tenant)
    + CAST(coalesce(sum(manifest_bytes), 0) AS BIGINT),
    count(*)
FROM snapshots WHERE tenant = :tenant
"""
_USED_BY_ALL: Final = """
SELECT (SELECT coalesce(sum(size_bytes), 0) FROM snapshot_contents) + coalesce(sum(manifest_bytes), 0) FROM snapshots
"""
_MISSING: Final = """
SELECT c.digest FROM snapshot_files f
JOIN snapshot_contents c ON c.tenant = f.tenant AND c.digest = f.digest AND c.size_bytes = f.size_bytes
WHERE f.tenant = :tenant AND f.snapshot_id = :snapshot_id AND c.content IS NULL ORDER BY c.digest
"""
_KNOWN: Final = """
SELECT digest, size_bytes FROM snapshot_contents
WHERE tenant = :tenant AND digest IN (SELECT key FROM json_each(:digests))
"""
_HELD: Final = f"{_KNOWN} AND content IS NOT NULL ORDER BY digest"
_READ: Final = """
SELECT digest, content FROM snapshot_contents
WHERE tenant = :tenant AND digest IN (SELECT key FROM json_each(:digests)) AND content IS NOT NULL
"""
_PUT: Final = """
UPDATE snapshot_contents SET content = :content
WHERE tenant = :tenant AND digest = :digest AND size_bytes = :size_bytes AND content IS NULL
"""
_EXPIRED: Final = """
SELECT tenant, snapshot_id FROM snapshots WHERE expire_time <= :now ORDER BY expire_time LIMIT :limit
"""
_EXPIRED_OF_TENANT: Final = "SELECT snapshot_id FROM snapshots WHERE tenant = :tenant AND expire_time <= :now"
_DROP: Final = """
DELETE FROM snapshots WHERE tenant = :tenant AND snapshot_id = :snapshot_id AND expire_time <= :now
RETURNING snapshot_id
"""
_DROP_CONTENTS: Final = """
DELETE FROM snapshot_contents
WHERE tenant = :tenant AND (digest, size_bytes) IN (
    SELECT f.digest, f.size_bytes FROM snapshot_files f WHERE f.tenant = :tenant AND f.snapshot_id = :snapshot_id
) AND NOT EXISTS (
    SELECT 1 FROM snapshot_files o
    WHERE o.tenant = snapshot_contents.tenant AND o.digest = snapshot_contents.digest
        AND o.size_bytes = snapshot_contents.size_bytes AND o.snapshot_id <> :snapshot_id
)
"""
_DROP_FILES: Final = "DELETE FROM snapshot_files WHERE tenant = :tenant AND snapshot_id = :snapshot_id"


@value
class SnapshotQuota:
    """What the snapshots of one tenant may take together; contents that several of them share count once.

    A content counts from the moment at which a manifest names it. Manifests count, too. `max_bytes_of_all` bounds the
    snapshots of all tenants together, where they are in memory.
    """

    max_bytes: int = 256 * 1024 * 1024
    max_snapshots: int = 1000
    max_bytes_of_all: int | None = None


class SnapshotStore:
    """Keeps manifests and contents by tenant, over `rows`. Equal contents of a tenant are stored once.

    A content is that of a file if it has the digest and the size that the manifest names. Contents are read in pieces
    of about 1 MiB. Every method raises StoreUnavailableError if the store cannot be reached.

    At most two of its jobs are in the database at once, because all jobs of the other stores use the same connections.
    """

    def __init__(self, *, rows: Transactions, quota: SnapshotQuota) -> None:
        self._rows = rows
        self._quota = quota
        self._free = asyncio.Semaphore(_JOBS_AT_ONCE)

    async def create(
        self, tenant: str, entries: Sequence[FileEntry], *, now: datetime, expire_time: datetime
    ) -> Snapshot:
        """Keep a manifest, which was checked before, and return it with what is missing; prolong it if it is known.

        Raises:
            StoreFullError: the tenant's quota would be exceeded, missing contents included.
        """
        # 5,000 files take some 20 ms.
        values = await asyncio.to_thread(_encode, entries)
        values |= {"tenant": tenant, "now": now.timestamp(), "expire_time": expire_time.timestamp()}
        times, missing = await self._change(partial(_create, values, self._quota))
        return _build(values["snapshot_id"], entries, times, missing)

    async def put(self, tenant: str, contents: Mapping[str, bytes]) -> None:
        """Store contents by digest; those that are stored already change nothing.

        Raises:
            InvalidRequestError: no snapshot of the tenant has a file with this digest and this size; nothing is stored.
        """
        await self._change(partial(_put, tenant, contents))

    async def find(
        self, tenant: str, snapshot_id: str, *, now: datetime, expire_time: datetime | None = None
    ) -> Snapshot:
        """Return a snapshot with what is missing; `expire_time` prolongs it, and never makes it shorter.

        Raises:
            SnapshotNotFoundError: the tenant has none with this id, or it has expired.
        """
        if not is_snapshot_id(snapshot_id):
            raise _build_not_found_error(snapshot_id)
        values = {
            "tenant": tenant,
            "snapshot_id": snapshot_id,
            "now": now.timestamp(),
            "expire_time": (expire_time or now).timestamp(),
        }
        times, missing, manifest = await self._change(partial(_find, values))
        entries = await asyncio.to_thread(_decode, manifest)
        return _build(snapshot_id, entries, times, missing)

    async def read(self, tenant: str, digests: Sequence[str]) -> Mapping[str, bytes]:
        """Return contents by digest; those that are not there are left out."""
        contents: dict[str, bytes] = {}
        for piece in _split(await self._select(_HELD, {"tenant": tenant, "digests": _encode_names(digests)})):
            values = {"tenant": tenant, "digests": _encode_names(piece)}
            rows = await self._select(_READ, values)
            contents.update((digest, content) for digest, content in rows)
        return contents

    async def sweep(self, *, now: datetime, limit: int) -> int:
        """Forget at most `limit` expired snapshots, and contents that no snapshot has; return how many it forgot.

        Each snapshot is a transaction, so that other writers need not wait for all.
        """
        found = await self._select(_EXPIRED, {"now": now.timestamp(), "limit": limit})
        dropped = 0
        for tenant, snapshot_id in found:
            values = {"tenant": tenant, "snapshot_id": snapshot_id, "now": now.timestamp()}
            dropped += await self._change(partial(_sweep, values))
        if found:
            await self._rows.erase()
        return dropped

    async def _change(self, begin: Callable[[], Job[ResultT]]) -> ResultT:
        async with self._free:
            return await self._rows.change(begin)

    async def _select(self, statement: str, values: Values) -> Rows:
        async with self._free:
            return await self._rows.select(statement, values)


def _create(values: Values, quota: SnapshotQuota) -> Job[tuple[Sequence[Any], Rows]]:
    yield _LOCK, values
    found = yield _PROLONG, values
    if not found:
        yield _CREATE, values
        yield _ADD_CONTENTS, values
        yield _ADD_FILES, values
        try:
            yield from _require_quota(values, quota)
        except StoreFullError:
            for (snapshot_id,) in (yield _EXPIRED_OF_TENANT, values):
                yield from _drop({**values, "snapshot_id": snapshot_id})
            yield from _require_quota(values, quota)
    missing = yield _MISSING, values
    times = found[0][:2] if found else (values["now"], values["expire_time"])
    return times, missing


def _require_quota(values: Values, quota: SnapshotQuota) -> Job[None]:
    ((used_bytes, snapshots),) = yield _USED, values
    if used_bytes > quota.max_bytes:
        raise StoreFullError(
            f"Your snapshots would take {used_bytes} bytes, at most {quota.max_bytes} are allowed",
            remedy="Wait until older ones expire, or have the operator raise [repair] snapshot_quota_bytes.",
            metadata={"max_bytes": str(quota.max_bytes), "used_bytes": str(used_bytes)},
        )
    if snapshots > quota.max_snapshots:
        raise StoreFullError(
            f"There are {quota.max_snapshots} snapshots of yours, and no more are allowed",
            remedy="Wait until older ones expire.",
            metadata={"max_snapshots": str(quota.max_snapshots)},
        )
    if quota.max_bytes_of_all is not None:
        ((together,),) = yield _USED_BY_ALL, values
        if together > quota.max_bytes_of_all:
            raise StoreFullError(
                f"The snapshots of all callers would take {together} bytes in memory, at most "
                f"{quota.max_bytes_of_all} are allowed",
                remedy="Retry later, or have the operator use a database for [store], or raise [repair] "
                "snapshot_quota_bytes.",
            )


def _put(tenant: str, contents: Mapping[str, bytes]) -> Job[None]:
    yield _LOCK, {"tenant": tenant}
    rows = yield _KNOWN, {"tenant": tenant, "digests": _encode_names(contents)}
    known = {(digest, size) for digest, size in rows}
    if unknown := [(digest, len(each)) for digest, each in contents.items() if (digest, len(each)) not in known]:
        raise _build_unknown_content_error(unknown)
    yield (
        _PUT,
        [
            {"tenant": tenant, "digest": digest, "size_bytes": len(content), "content": content}
            for digest, content in contents.items()
        ],
    )


def _find(values: Values) -> Job[tuple[Sequence[Any], Rows, str]]:
    # The statement locks the row, also where it prolongs nothing: a sweep cannot come between it and the next one.
    rows = yield _PROLONG, values
    if not rows:
        raise _build_not_found_error(str(values["snapshot_id"]))
    missing = yield _MISSING, values
    return rows[0][:2], missing, rows[0][2]


def _sweep(values: Values) -> Job[bool]:
    yield _LOCK, values
    is_gone = yield from _drop(values)
    yield _LEAVE, values
    return is_gone


def _drop(values: Values) -> Job[bool]:
    """Delete a snapshot if it has expired, with the contents that no other one has."""
    if not (yield _DROP, values):
        return False
    yield _DROP_CONTENTS, values
    yield _DROP_FILES, values
    return True


def _encode(entries: Sequence[FileEntry]) -> dict[str, Any]:
    """Return the columns of a manifest, and its contents with their sizes."""
    files = [[entry.path, entry.digest, entry.size_bytes, entry.is_executable] for entry in entries]
    return {
        "snapshot_id": derive_snapshot_id(entries),
        "manifest": json.dumps({"v": _VERSION, "files": files}, ensure_ascii=False, separators=(",", ":")),
        "manifest_bytes": measure_manifest(entries),
        "contents": json.dumps({entry.digest: entry.size_bytes for entry in entries}),
    }


def _decode(manifest: str) -> Sequence[FileEntry]:
    row = json.loads(manifest)
    if row["v"] != _VERSION:
        raise InternalError(
            f"a stored snapshot has version {row['v']}, this release reads {_VERSION}",
            remedy="Run the release that wrote it, or a later one.",
        )
    return [
        FileEntry(path=path, digest=digest, size_bytes=size, is_executable=is_executable)
        for path, digest, size, is_executable in row["files"]
    ]


def _encode_names(digests: Sequence[str] | Mapping[str, bytes]) -> str:
    """Return digests as the keys of a JSON object, which both databases take apart with the same function."""
    return json.dumps(dict.fromkeys(digests, 0))


def _split(sizes: Rows) -> Iterator[Sequence[str]]:
    """Yield digests, given with their sizes, in pieces of about _PIECE_BYTES."""
    piece: list[str] = []
    held = 0
    for digest, size in sizes:
        piece.append(digest)
        held += size
        if held >= _PIECE_BYTES:
            yield piece
            piece, held = [], 0
    if piece:
        yield piece


def _build(snapshot_id: str, entries: Sequence[FileEntry], times: Sequence[Any], missing: Rows) -> Snapshot:
    create_time, expire_time = (datetime.fromtimestamp(each, tz=UTC) for each in times)
    return Snapshot(
        snapshot_id=snapshot_id,
        entries=tuple(entries),
        create_time=create_time,
        expire_time=expire_time,
        missing=tuple(digest for (digest,) in missing),
    )


def _build_not_found_error(snapshot_id: str) -> SnapshotNotFoundError:
    """Make the error for a snapshot that does not exist for its caller."""
    return SnapshotNotFoundError(
        f"Snapshot not found: {show(snapshot_id)}",
        remedy="Create the snapshot again: an id holds for its tenant alone, until the snapshot expires.",
    )


def _build_unknown_content_error(unknown: Iterable[tuple[str, int]]) -> InvalidRequestError:
    """Make the error for contents, each with digest and size, that no snapshot of the caller has."""
    return InvalidRequestError.of(
        *(
            Violation(
                field="contents",
                description=f"must be in a manifest that was created before, got one with the digest {digest} and "
                f"{size} bytes, which no snapshot of yours names",
            )
            for digest, size in unknown
        )
    )
