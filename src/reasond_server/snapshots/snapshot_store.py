"""The port of the stores of snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
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
