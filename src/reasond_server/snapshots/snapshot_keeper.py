"""Snapshots as repairs use them: checked, with limits and retention, and loaded as files."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from reasond_server.errors.base import Violation, show
from reasond_server.errors.repairs import SnapshotNotFoundError
from reasond_server.errors.request import InvalidRequestError
from reasond_server.snapshots.manifests import (
    MAX_UPLOAD_BYTES,
    build_entries,
    check_manifest,
    digest_content,
    find_in_files,
)
from reasond_server.types.repairs import FileEntry, Snapshot, SourceFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from reasond_server.snapshots.manifests import SnapshotLimits
    from reasond_server.snapshots.snapshot_store import SnapshotStore


class SnapshotKeeper:
    """Keeps the snapshots of tenants in `store`; each use prolongs one. `now` returns the time in UTC.

    Checking and hashing happen in a thread: 5,000 paths take some 60 ms.
    """

    def __init__(self, *, store: SnapshotStore, limits: SnapshotLimits, now: Callable[[], datetime]) -> None:
        self._store = store
        self._limits = limits
        self._now = now

    async def create(self, tenant: str, entries: Sequence[FileEntry], *, field: str = "manifest") -> Snapshot:
        """Keep a manifest and return it with what is missing; `field` is its name in the request.

        Raises:
            InvalidRequestError: with one violation for each bad path, size or digest.
            StoreFullError: the tenant's quota would be exceeded.
        """
        await asyncio.to_thread(check_manifest, entries, limits=self._limits, field=field)
        return await self._create(tenant, entries)

    async def put(self, tenant: str, contents: Sequence[bytes]) -> Sequence[str]:
        """Store contents that snapshots of the tenant have; return their digests in order.

        Raises:
            InvalidRequestError: there are none or too many bytes, or no snapshot has such a content.
        """
        size = sum(map(len, contents))
        if not contents:
            raise InvalidRequestError.at("contents", "must have at least one content")
        if size > MAX_UPLOAD_BYTES:
            most = f"must have at most {MAX_UPLOAD_BYTES} bytes in all, got {size}; send them in several requests"
            raise InvalidRequestError.at("contents", most)
        digests = await asyncio.to_thread(lambda: [*map(digest_content, contents)])
        await self._store.put(tenant, dict(zip(digests, contents, strict=True)))
        return digests

    async def find_in_files(self, files: Sequence[SourceFile]) -> Sequence[Violation]:
        """Return why files that came with a request cannot be kept: bad paths, or too many files or bytes."""
        return await asyncio.to_thread(find_in_files, files, limits=self._limits)

    async def keep_files(self, tenant: str, files: Sequence[SourceFile]) -> Snapshot:
        """Make a snapshot of files in which `find_in_files` found nothing.

        Raises:
            StoreFullError: the tenant's quota would be exceeded.
        """
        entries = await asyncio.to_thread(build_entries, files)
        snapshot = await self._create(tenant, entries)
        if not snapshot.missing:
            return snapshot
        missing = frozenset(snapshot.missing)
        contents = {
            entry.digest: file.content for entry, file in zip(entries, files, strict=True) if entry.digest in missing
        }
        await self._store.put(tenant, contents)
        return await self._find(tenant, snapshot.snapshot_id)

    async def require(self, tenant: str, snapshot_id: str) -> Snapshot:
        """Return a snapshot of which nothing is missing; no content is read.

        Raises:
            SnapshotNotFoundError: the tenant has none with this id, it has expired, or contents are missing.
        """
        snapshot = await self._find(tenant, snapshot_id)
        _require_whole(snapshot, missing=len(snapshot.missing))
        return snapshot

    async def load(self, tenant: str, snapshot_id: str) -> Mapping[str, SourceFile]:
        """Return the files of a snapshot by path. Raises as `require`."""
        snapshot = await self.require(tenant, snapshot_id)
        digests = [*dict.fromkeys(entry.digest for entry in snapshot.entries)]
        contents = await self._store.read(tenant, digests)
        # It may have been deleted between the two calls, where the retention is very short.
        _require_whole(snapshot, missing=sum(digest not in contents for digest in digests))
        return await asyncio.to_thread(_build_files, snapshot, contents)

    async def _create(self, tenant: str, entries: Sequence[FileEntry]) -> Snapshot:
        now = self._now()
        return await self._store.create(tenant, entries, now=now, expire_time=self._expire_time(now))

    async def _find(self, tenant: str, snapshot_id: str) -> Snapshot:
        now = self._now()
        return await self._store.find(tenant, snapshot_id, now=now, expire_time=self._expire_time(now))

    def _expire_time(self, now: datetime) -> datetime:
        return now + timedelta(seconds=self._limits.retention_s)


def _require_whole(snapshot: Snapshot, *, missing: int) -> None:
    if missing:
        number = len({entry.digest for entry in snapshot.entries})
        raise SnapshotNotFoundError(
            f"Snapshot {show(snapshot.snapshot_id)} is not complete: {missing} of its {number} contents are missing",
            remedy="Create it again and upload the contents that the answer names.",
            metadata={"missing": str(missing)},
        )


def _build_files(snapshot: Snapshot, contents: Mapping[str, bytes]) -> Mapping[str, SourceFile]:
    return {
        entry.path: SourceFile(path=entry.path, content=contents[entry.digest], is_executable=entry.is_executable)
        for entry in snapshot.entries
    }
