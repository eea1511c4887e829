"""The entry point of repairs: starts and reads them, and keeps the snapshots of their code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reasond_server.types import Principal, StreamEvent
    from reasond_server.types.repairs import EnvironmentList, Repair, RepairTask, RepairView
    from reasond_server.types.snapshots import FileEntry, Snapshot


@value
class RepairCursor:
    """A place in the log of a repair, to follow it from."""

    execution_id: str
    after_sequence: int = 0


class RepairService:
    """Works out repairs for verified callers."""

    async def run(self, caller: Principal, task: RepairTask, *, request_id: str = "") -> Repair:
        """Work out a repair and return its result.

        Raises:
            ReasondError: nothing was started, or the repair failed; then `execution_id` is set.
        """
        raise NotImplementedError

    def stream(
        self,
        caller: Principal,
        source: RepairTask | RepairCursor,
        *,
        request_id: str = "",
        include_deltas: bool = False,
        keep_running: bool = False,
    ) -> AsyncGenerator[StreamEvent, None]:
        """Start a repair or resume one; yield its events to the end.

        Events of the class RepairDelta and Heartbeat are not logged. A repair that failed raises its error after its
        last event. When the last follower leaves, the repair is cancelled unless `keep_running` was asked.

        Raises:
            ReasondError: nothing was started, or the repair failed; then `execution_id` is set.
        """
        raise NotImplementedError

    async def get(self, caller: Principal, execution_id: str) -> RepairView:
        """Return a repair.

        Raises:
            ExecutionNotFoundError: this caller has no such repair.
        """
        raise NotImplementedError

    async def create_snapshot(self, caller: Principal, entries: Sequence[FileEntry]) -> Snapshot:
        """Keep a manifest and return it with the digests of the contents that are missing.

        Raises:
            InvalidRequestError: with one violation for each bad path, size or digest.
            StoreFullError: the caller's quota would be exceeded.
        """
        raise NotImplementedError

    async def upload_blobs(self, caller: Principal, contents: Sequence[bytes]) -> Sequence[str]:
        """Store contents that snapshots of the caller miss; return their digests in order.

        Raises:
            InvalidRequestError: no snapshot of the caller has such a content.
        """
        raise NotImplementedError

    def list_environments(self) -> EnvironmentList:
        """Return the environments, by name."""
        raise NotImplementedError
