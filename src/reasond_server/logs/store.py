"""The port to where event logs are kept; every store obeys the same contract and passes the same conformance suite."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, TypeAlias

from reasond_server.errors import InternalError
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from reasond_server.errors import ReasondError
    from reasond_server.types import Execution, FinishReason, LoggedEvent


class LeaseLostError(InternalError):
    """The writer of a log was taken for dead and another one goes on; never told to a caller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A request id that stands for an execution, with the digest of the request it was first used for.

    `inherited` is told by `create` alone: how many records the new log begins with.
    """

    execution_id: str
    digest: str
    inherited: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionFilter:
    """Which executions to list: None or "" matches all."""

    strategy: str = ""
    finish_reason: FinishReason | None = None
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to write a log: `owner` is a server process, `seconds` how long it lasts unless it is renewed."""

    owner: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A call that was completed, kept so that a recovered run need not make it again; no client sees it.

    `key` tells which call of its run it was, `body` is JSON text; `runs.run_journal` knows both.
    """

    key: str
    body: str


Entry: TypeAlias = "LoggedEvent | Record"


@value
class Creation:
    """What is kept with a log whose execution has no request id: its plan, and who may write it."""

    plan: str
    lease: Lease


@value
class Append:
    """Entries for the end of one log, and the execution as it is afterwards.

    Taken only if the log has exactly `version` entries and `fence` is that of its present lease. The events
    among the entries continue the sequence without a gap; records have none. Records and plan are dropped when a
    Result is appended, unless `keeps_records`.

    With a suspended execution, which needs an entry, the lease is given up in the same transaction: the log takes
    nothing more until `wake` or `recover`. Plan and records stay.

    `size` is what the entries take in memory, roughly (`logs.sizes`).

    With a `creation` there is no log yet: it is made with fence 1, and begins with the entries. The execution has no
    request id then, because somebody else could have it.
    """

    execution: Execution
    entries: Sequence[Entry]
    version: int
    fence: int
    size: int
    keeps_records: bool = False
    creation: Creation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """An execution that nobody wrote, now running and leased to the caller, with all that is needed to go on.

    `plan` is what `create` was given; `version` the number of entries in the log; `was_suspended` tells whether it was
    suspended until now; `is_cancel_requested` and `is_keep_requested` tell whether `request_cancel` and `request_keep`
    were called for it. `damage` says, in words for an operator, why nobody can go on: then `events` are
    those that could be read before it, and there are neither plan nor records.
    """

    execution: Execution
    plan: str
    events: Sequence[LoggedEvent]
    records: Sequence[Record]
    version: int
    fence: int
    is_cancel_requested: bool = False
    is_keep_requested: bool = False
    was_suspended: bool = False
    damage: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a log holds besides its events: the plan that `create` was given, and the records that were not dropped."""

    plan: str
    records: Sequence[Record]


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """What an owner learns when it renews its leases: which are lost, which runs somebody wants to stop, or to keep."""

    lost: Sequence[str]
    cancel_requested: Sequence[str]
    keep_requested: Sequence[str] = ()


class Change(StrEnum):
    """What a watcher is told."""

    GREW = "grew"
    CANCEL_REQUESTED = "cancel_requested"
    KEEP_REQUESTED = "keep_requested"
    FOLLOWED = "followed"


class ExecutionStore(Protocol):
    """Keeps executions and their logs, apart by tenant.

    A log is append-only; its events are numbered 1, 2, 3 ... without gaps and end with one Result. Any call may
    raise StoreUnavailableError where the store is out of reach; nothing was changed then, or everything.
    """

    @property
    def is_durable(self) -> bool:
        """Whether a process, at the same time or later, can go on with what another one leaves in the store."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether another process can take over what this one is at work on, while both are alive."""
        ...

    async def find_claim(self, tenant: str, request_id: str) -> Claim | None:
        """Return who holds the request id, None where nobody does."""
        ...

    async def read_checkpoint(self, tenant: str, execution_id: str) -> Checkpoint:
        """Return the plan and the records of an execution, whether it runs or has ended. Raises as `find`."""
        ...

    async def create(self, execution: Execution, *, digest: str, plan: str, lease: Lease, inherits: str = "") -> Claim:
        """Keep a new execution with fence 1, unless its tenant used its request id before; return who holds the id.

        With `inherits`, an execution of the same tenant that was cancelled, its request id goes over to the new one,
        if it still has it, and its records are copied: the new log begins with them, its version is their number, which
        the claim tells. That is 0 where the other one is gone meanwhile.
        A call whose answer was lost may be repeated.

        Raises:
            StoreFullError: there is no room and nothing that has ended to forget.
        """
        ...

    async def release(self, tenant: str, execution_id: str) -> None:
        """Let another execution have the request id of this one, which stays. Raises as `find`."""
        ...

    async def append(self, batch: Sequence[Append]) -> Sequence[ReasondError | None]:
        """Append in one transaction; return for each part of `batch` None, or why it was refused.

        - LeaseLostError: `fence` is not that of the present lease, or the log is suspended.
        - ExecutionNotFoundError: it was deleted.
        - StoreFullError: the log is as large as one may get, or the disk is full; a log that is as large as it may
          get still takes a Result. With a `creation`: there is no room and nothing that has ended to forget.
        - InternalError: `version` or a sequence is not the next one, the log has ended, or the id of a `creation` is
          taken.

        A refused part changes nothing and keeps no other from being taken. A part that was taken already, and
        nothing after it, is taken again without effect: a call whose answer was lost may be repeated.
        """
        ...

    async def find(self, tenant: str, execution_id: str) -> Execution:
        """Return the execution.

        Raises:
            ExecutionNotFoundError: there is none for this tenant.
            CursorExpiredError: there was one, but it is no longer kept.
        """
        ...

    async def read(
        self, tenant: str, execution_id: str, *, after: int = 0, limit: int | None = None
    ) -> Sequence[LoggedEvent]:
        """Return up to `limit` events with a sequence above `after`, in order. Raises as `find`."""
        ...

    async def page(
        self, tenant: str, wanted: ExecutionFilter, *, size: int, before: tuple[float, str] | None
    ) -> Sequence[Execution]:
        """Return up to `size` executions, newest first, that come after `before` (create time, id)."""
        ...

    async def delete(self, tenant: str, execution_id: str) -> None:
        """Forget the execution, its content and its request id. Raises as `find`."""
        ...

    async def renew(self, lease: Lease, fences: Mapping[str, int]) -> Renewal:
        """Prolong the leases of `lease.owner` on the executions in `fences` (id to fence).

        With `lease.seconds` 0 they are given back: the next `recover` finds them.
        """
        ...

    async def recover(self, lease: Lease, *, limit: int) -> Sequence[Recovery]:
        """Take over up to `limit` executions that nobody writes, raising their fences.

        These are running ones whose lease has run out, and suspended ones whose `wake_time` has come or whose
        cancellation was requested. No two callers get the same one. One that a later release wrote is not returned at
        first, so that a process of that release can have it; one that nobody can read is returned with its `damage`.
        """
        ...

    async def wake(self, lease: Lease, tenant: str, execution_id: str) -> Recovery | None:
        """Take a suspended execution, raising its fence: it runs again. Raises as `find`.

        None where it is not suspended: another caller was first, or it has ended. If the answer of a call was lost, the
        execution may be leased to a caller that does not know it: `recover` finds it when that lease has run out.
        """
        ...

    async def request_cancel(self, tenant: str, execution_id: str) -> None:
        """Ask the execution's writer, in whatever process, to stop it. Raises as `find`.

        A suspended one has no writer: the next `recover`, of any process, returns it.
        """
        ...

    async def request_keep(self, tenant: str, execution_id: str) -> None:
        """Let the execution go on when nobody follows it, whoever works on it or takes it over. Raises as `find`."""
        ...

    async def announce(self, tenant: str, execution_id: str) -> None:
        """Tell the execution's watchers, in whatever process, that somebody follows it (Change.FOLLOWED).

        Nothing is written, and a notice may be lost; who follows says so again and again. Does nothing where there
        is no such execution for this tenant.
        """
        ...

    async def forget(self, *, limit: int) -> int:
        """Remove up to `limit` executions that are past their `expire_time`; return how many were removed."""
        ...

    def watch(self, execution_id: str, notify: Callable[[Change], None]) -> AbstractContextManager[None]:
        """Call `notify` on the event loop for every change of the execution, by whichever process.

        A change that is told while the connection to the store is lost is told as GREW when it is back.
        """
        ...

    async def aclose(self) -> None:
        """Give back connections and files; nothing is called afterwards."""
        ...
