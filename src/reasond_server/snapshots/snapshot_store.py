"""The port of the stores of snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from reasond_server.errors.base import Violation, show
from reasond_server.errors.limits import StoreFullError
from reasond_server.errors.repairs import SnapshotNotFoundError
from reasond_server.errors.request import InvalidRequestError
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from reasond_server.types.snapshots import FileEntry, Snapshot


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
