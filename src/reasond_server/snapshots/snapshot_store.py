"""The port of the stores of snapshots, and the store in memory, which is lost when the process ends."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from reasond_server.errors.base import Violation, show
from reasond_server.errors.limits import StoreFullError
from reasond_server.errors.repairs import SnapshotNotFoundError
from reasond_server.errors.request import InvalidRequestError
from reasond_server.snapshots.manifests import derive_snapshot_id, measure_manifest
from reasond_server.types.repairs import Snapshot
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from reasond_server.types.repairs import FileEntry


@value
class SnapshotQuota:
    """What the snapshots of one tenant may take together; contents that several of them share count once.

    A content counts from the moment at which a manifest names it. Manifests count, too.
    """

    max_bytes: int = 256 * 1024 * 1024
    max_snapshots: int = 1000


class SnapshotStore(Protocol):
    """Keeps manifests and contents by tenant. Equal contents of a tenant are stored once.

    A content is that of a file if it has the digest and the size that the manifest names.

    Every method raises StoreUnavailableError if the store cannot be reached.
    """

    async def create(
        self, tenant: str, entries: Sequence[FileEntry], *, now: datetime, expire_time: datetime
    ) -> Snapshot:
        """Keep a manifest, which was checked before, and return it with what is missing; prolong it if it is known.

        Raises:
            StoreFullError: the tenant's quota would be exceeded, missing contents included.
        """
        ...

    async def put(self, tenant: str, contents: Mapping[str, bytes]) -> None:
        """Store contents by digest; those that are stored already change nothing.

        Raises:
            InvalidRequestError: no snapshot of the tenant has a file with this digest and this size; nothing is stored.
        """
        ...

    async def find(
        self, tenant: str, snapshot_id: str, *, now: datetime, expire_time: datetime | None = None
    ) -> Snapshot:
        """Return a snapshot with what is missing; `expire_time` prolongs it, and never makes it shorter.

        Raises:
            SnapshotNotFoundError: the tenant has none with this id, or it has expired.
        """
        ...

    async def read(self, tenant: str, digests: Sequence[str]) -> Mapping[str, bytes]:
        """Return contents by digest; those that are not there are left out."""
        ...

    async def sweep(self, *, now: datetime, limit: int) -> int:
        """Forget at most `limit` expired snapshots, and contents that no snapshot has; return how many it forgot."""
        ...


_REMEDY = "Wait until older ones expire, or have the operator raise [repair] snapshot_quota_bytes."


def require_quota(quota: SnapshotQuota, *, used_bytes: int, snapshots: int) -> None:
    """Refuse a snapshot with which its tenant would have `snapshots` of them, with `used_bytes` in all.

    Raises:
        StoreFullError: that is more than the quota.
    """
    if used_bytes > quota.max_bytes:
        raise StoreFullError(
            f"Your snapshots would take {used_bytes} bytes, at most {quota.max_bytes} are allowed",
            remedy=_REMEDY,
            metadata={"max_bytes": str(quota.max_bytes), "used_bytes": str(used_bytes)},
        )
    if snapshots > quota.max_snapshots:
        raise StoreFullError(
            f"There are {quota.max_snapshots} snapshots of yours, and no more are allowed",
            remedy="Wait until older ones expire.",
            metadata={"max_snapshots": str(quota.max_snapshots)},
        )


def build_not_found_error(snapshot_id: str) -> SnapshotNotFoundError:
    """Make the error for a snapshot that does not exist for its caller."""
    return SnapshotNotFoundError(
        f"Snapshot not found: {show(snapshot_id)}",
        remedy="Create the snapshot again: an id holds for its tenant alone, until the snapshot expires.",
    )


def build_unknown_content_error(unknown: Iterable[tuple[str, int]]) -> InvalidRequestError:
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
