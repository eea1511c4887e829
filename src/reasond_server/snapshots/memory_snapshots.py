"""Snapshots in memory, which are lost when the process ends."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from reasond_server.errors.limits import StoreFullError
from reasond_server.snapshots.manifests import derive_snapshot_id, measure_manifest
from reasond_server.snapshots.snapshot_store import build_not_found_error, build_unknown_content_error, require_quota
from reasond_server.types.snapshots import Snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from reasond_server.snapshots.snapshot_store import SnapshotQuota
    from reasond_server.types.snapshots import FileEntry

_ContentKey: TypeAlias = tuple[str, int]  # digest and size
_QUOTAS_IN_MEMORY: Final = 4


class MemorySnapshotStore:
    """A SnapshotStore in memory; all tenants together may take four times the bytes of the quota of one."""

    def __init__(self, *, quota: SnapshotQuota) -> None:
        self._quota = quota
        self._max_bytes = _QUOTAS_IN_MEMORY * quota.max_bytes
        self._shelves: dict[str, _Shelf] = {}

    async def create(
        self, tenant: str, entries: Sequence[FileEntry], *, now: datetime, expire_time: datetime
    ) -> Snapshot:
        """See SnapshotStore."""
        snapshot_id = derive_snapshot_id(entries)
        shelf = self._shelves.get(tenant) or _Shelf()
        known = shelf.find(snapshot_id, now)
        if known is None:
            shelf.drop(snapshot_id)
            made = Snapshot(snapshot_id=snapshot_id, entries=tuple(entries), create_time=now, expire_time=expire_time)
            try:
                self._require_room(shelf, made)
            except StoreFullError:
                for each in shelf.find_expired(now):
                    shelf.drop(each)
                self._require_room(shelf, made)
            self._shelves[tenant] = shelf
            shelf.add(made)
        return shelf.show(snapshot_id, expire_time)

    async def put(self, tenant: str, contents: Mapping[str, bytes]) -> None:
        """See SnapshotStore."""
        shelf = self._shelves.get(tenant) or _Shelf()
        keys = {(digest, len(content)): content for digest, content in contents.items()}
        if unknown := [key for key in keys if key not in shelf.users]:
            raise build_unknown_content_error(unknown)
        shelf.contents |= keys

    async def find(
        self, tenant: str, snapshot_id: str, *, now: datetime, expire_time: datetime | None = None
    ) -> Snapshot:
        """See SnapshotStore."""
        shelf = self._shelves.get(tenant) or _Shelf()
        snapshot = shelf.find(snapshot_id, now)
        if snapshot is None:
            raise build_not_found_error(snapshot_id)
        return shelf.show(snapshot_id, expire_time or snapshot.expire_time)

    async def read(self, tenant: str, digests: Sequence[str]) -> Mapping[str, bytes]:
        """See SnapshotStore."""
        shelf, wanted = self._shelves.get(tenant) or _Shelf(), frozenset(digests)
        return {digest: content for (digest, _), content in shelf.contents.items() if digest in wanted}

    async def sweep(self, *, now: datetime, limit: int) -> int:
        """See SnapshotStore."""
        expired = [(tenant, each) for tenant, shelf in self._shelves.items() for each in shelf.find_expired(now)]
        for tenant, snapshot_id in expired[:limit]:
            shelf = self._shelves[tenant]
            shelf.drop(snapshot_id)
            if not shelf.snapshots:
                del self._shelves[tenant]
        return min(limit, len(expired))

    def _require_room(self, shelf: _Shelf, made: Snapshot) -> None:
        used_bytes = shelf.used_bytes + shelf.measure_new(made)
        require_quota(self._quota, used_bytes=used_bytes, snapshots=len(shelf.snapshots) + 1)
        together = used_bytes + sum(each.used_bytes for each in self._shelves.values() if each is not shelf)
        if together > self._max_bytes:
            raise StoreFullError(
                f"The snapshots of all callers would take {together} bytes in memory, at most {self._max_bytes} are "
                "allowed",
                remedy="Retry later, or have the operator use a database for [store], or raise [repair] "
                "snapshot_quota_bytes.",
            )


@dataclass(slots=True)
class _Shelf:
    """The snapshots of one tenant; `users` counts the snapshots that have each content."""

    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    users: Counter[_ContentKey] = field(default_factory=Counter)
    contents: dict[_ContentKey, bytes] = field(default_factory=dict)
    used_bytes: int = 0

    def find(self, snapshot_id: str, now: datetime) -> Snapshot | None:
        """Return the snapshot; None if there is none, or if it has expired."""
        snapshot = self.snapshots.get(snapshot_id)
        return snapshot if snapshot is not None and snapshot.expire_time > now else None

    def find_expired(self, now: datetime) -> Sequence[str]:
        """Return the ids of the snapshots that have expired."""
        return [name for name, snapshot in self.snapshots.items() if snapshot.expire_time <= now]

    def show(self, snapshot_id: str, expire_time: datetime) -> Snapshot:
        """Return a snapshot with what is missing; it is kept until `expire_time` at least."""
        kept = self.snapshots[snapshot_id]
        kept = self.snapshots[snapshot_id] = replace(kept, expire_time=max(kept.expire_time, expire_time))
        return replace(
            kept, missing=tuple(digest for digest, size in _list_keys(kept) if (digest, size) not in self.contents)
        )

    def measure_new(self, snapshot: Snapshot) -> int:
        """Return the bytes that a snapshot would add."""
        return measure_manifest(snapshot.entries) + sum(
            size for digest, size in _list_keys(snapshot) if (digest, size) not in self.users
        )

    def add(self, snapshot: Snapshot) -> None:
        """Add a snapshot."""
        self.used_bytes += self.measure_new(snapshot)
        self.snapshots[snapshot.snapshot_id] = snapshot
        self.users.update(_list_keys(snapshot))

    def drop(self, snapshot_id: str) -> None:
        """Remove a snapshot, if it is there, and the contents that no other one has."""
        snapshot = self.snapshots.pop(snapshot_id, None)
        if snapshot is None:
            return
        for key in _list_keys(snapshot):
            self.users[key] -= 1
            if not self.users[key]:
                del self.users[key]
                self.contents.pop(key, None)
        self.used_bytes -= self.measure_new(snapshot)


def _list_keys(snapshot: Snapshot) -> Sequence[_ContentKey]:
    """Return each content of a snapshot once."""
    return [*dict.fromkeys((entry.digest, entry.size_bytes) for entry in snapshot.entries)]
