"""Shared by all stores of snapshots: when they refuse, and the errors of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.errors.base import Violation, show
from reasond_server.errors.limits import StoreFullError
from reasond_server.errors.repairs import SnapshotNotFoundError
from reasond_server.errors.request import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reasond_server.snapshots.snapshot_store import SnapshotQuota

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
