"""The port to where event logs are kept; a durable store obeys the same contract as the memory one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.types import Execution, FinishReason, LoggedEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A request id that stands for an execution, with the digest of the request it was first used for."""

    execution_id: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionFilter:
    """Which executions to list: None or "" matches all."""

    strategy: str = ""
    finish_reason: FinishReason | None = None


class ExecutionStore(Protocol):
    """Keeps executions and their logs, apart by tenant.

    A log is append-only; its events are numbered 1, 2, 3 ... without gaps and end with one Result.
    """

    async def create(self, execution: Execution, *, digest: str) -> Claim:
        """Keep a new execution, unless its tenant used its request id before; return who holds the id.

        Raises:
            StoreFullError: there is no room and nothing that has ended to forget.
        """
        ...

    async def release(self, tenant: str, execution_id: str) -> None:
        """Let another execution have the request id of this one, which stays. Raises as `find`."""
        ...

    async def append(self, execution: Execution, event: LoggedEvent) -> None:
        """Add `event` and replace what is known of the execution, both or neither.

        Raises:
            ExecutionNotFoundError: it was deleted.
            StoreFullError: the log is as large as one may get; a Result is still taken.
            InternalError: `event.sequence` is not the next one, or the log has ended.
        """
        ...

    async def find(self, tenant: str, execution_id: str) -> Execution:
        """Return the execution.

        Raises:
            ExecutionNotFoundError: there is none for this tenant.
            CursorExpiredError: there was one, but it is no longer kept.
        """
        ...

    async def read(self, tenant: str, execution_id: str, *, after: int = 0) -> Sequence[LoggedEvent]:
        """Return the events with a sequence above `after`, in order. Raises as `find`."""
        ...

    async def page(
        self, tenant: str, wanted: ExecutionFilter, *, size: int, before: tuple[float, str] | None
    ) -> Sequence[Execution]:
        """Return up to `size` executions, newest first, that come after `before` (create time, id)."""
        ...

    async def delete(self, tenant: str, execution_id: str) -> None:
        """Forget the execution and its request id. Raises as `find`."""
        ...
