"""The port of the stores of event logs; every store obeys the same contract and passes the same conformance suite."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, TypeAlias, final

from reasond_server.errors.base import InternalError, ReasondError
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime

    from reasond_server.types import Execution, ExecutionState, FinishReason, Json, LoggedEvent, Session


class LeaseLostError(InternalError):
    """The lease of the writer expired and another process has taken the log over; callers never see this error."""


@value
class Claim:
    """The execution that a request id stands for, with the digest of the request that first used the id.

    Only `create` sets `inherited`, the number of records with which the new log begins.
    """

    execution_id: str
    digest: str
    inherited: int = field(default=0, compare=False)


@value
class ExecutionFilter:
    """Which executions to list: None or "" matches all; with a `kind` those of the kind `or_kind` are listed too.

    `created_since` is the first time of creation that matches, `created_until` the first one after those that do.
    """

    strategy: str = ""
    finish_reason: FinishReason | None = None
    state: ExecutionState | None = None
    created_since: datetime | None = None
    created_until: datetime | None = None
    kind: str = ""
    or_kind: str = ""
    session_id: str = ""


@value
class Lease:
    """The right to write a log: `owner` is a server process; the lease expires after `seconds` unless renewed."""

    owner: str
    seconds: float


@final
@value
class Record:
    """A completed call, stored so that a recovered run need not repeat it; no client sees it.

    `key` identifies the call within its run, `body` is JSON text; `runs.run_journal` defines both.
    """

    key: str
    body: str


Entry: TypeAlias = "LoggedEvent | Record"


@value
class Creation:
    """The plan and the lease of a log that is created with its first append; its execution has no request id."""

    plan: str
    lease: Lease


@value
class SessionClaim:
    """The session in which an execution is created; it is made if there is none, and kept until `expire_time` at least.

    `if_revision` is the revision that the session must have; 0 means that there must be no session yet.
    """

    session_id: str
    expire_time: datetime
    if_revision: int | None = None


@value
class SessionEnd:
    """What an execution leaves in its session when it ends: the new state, and how long the session is then kept."""

    state: Json
    expire_time: datetime


@value
class Notice:
    """A message for the receiver `endpoint` that tells of an execution; `body` is JSON text without content.

    It is stored with the append that it is about. `sequence` is the last event of the log at that time. The id is made
    of the execution and the sequence, so that whoever tells it again tells the same id.
    """

    notice_id: str
    endpoint: str
    tenant: str
    execution_id: str
    sequence: int
    body: str


@value
class Append:
    """Entries for the end of one log, and the execution as it is afterwards.

    The store accepts it only if the log has exactly `version` entries and `fence` is that of its present lease. The
    events among the entries continue the sequence without a gap; records have no sequence. When a LastEvent is
    appended, the store drops the records and the plan, unless `keeps_records`; with `keeps_plan` only the records.

    If the execution is suspended, there must be an entry, and the lease is released in the same transaction: the log
    accepts nothing more until `wake` or `recover`. Plan and records stay.

    With a `creation` there is no log yet: it is created with fence 1 and begins with the entries. Such an execution has
    no request id and no session, because another execution could already have them.

    The append of a LastEvent also frees the session of the execution and raises its revision. With a `session_end` the
    session gets its state and its `expire_time`, without one it keeps both. All ended executions of the session are
    then kept as long as the session.

    `notices` are stored in the same transaction, where the store is a database.
    """

    execution: Execution
    entries: Sequence[Entry]
    version: int
    fence: int
    keeps_records: bool = False
    keeps_plan: bool = False
    creation: Creation | None = None
    session_end: SessionEnd | None = None
    notices: Sequence[Notice] = ()


@value
class Recovery:
    """An execution that no process wrote, now running and leased to the caller, with everything needed to resume it.

    `plan` is the plan that `create` got; `version` is the number of entries in the log; `was_suspended` says whether
    the execution was suspended until now; `is_cancel_requested` and `is_keep_requested` say whether `request_cancel`
    and `request_keep` were called for it. `is_due` says that `recover` took a suspended execution because its
    `wake_time` had come; `has_waking_event` that the last of the `events` was appended by `wake`, so that the
    execution was suspended by the event before. Both are known only to the one who took the suspended execution, not
    to one who recovers it after a crash: that one sees only whether the log has the waking event.

    `damage` tells an operator why the execution cannot be resumed; `events` are then only those before the damage, and
    there are no plan and no records.
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
    is_due: bool = False
    has_waking_event: bool = False
    damage: str = ""


@value
class Checkpoint:
    """What a log holds besides its events: the plan that `create` got, and the records that were not dropped."""

    plan: str
    records: Sequence[Record]


@value
class Renewal:
    """The answer to a renewal: the leases that are lost, and the runs that were asked to stop or to keep running."""

    lost: Sequence[str]
    cancel_requested: Sequence[str]
    keep_requested: Sequence[str] = ()

    @classmethod
    def of(cls, fences: Mapping[str, int], held: Mapping[str, tuple[bool, bool]]) -> Renewal:
        """Return the answer for `fences`; `held` says of each lease that holds what its run was asked: stop, keep."""
        return cls(
            lost=[name for name in fences if name not in held],
            cancel_requested=[name for name, (is_cancelled, _) in held.items() if is_cancelled],
            keep_requested=[name for name, (_, is_kept) in held.items() if is_kept],
        )


class Change(StrEnum):
    """What a watcher is notified of."""

    GREW = "grew"
    CANCEL_REQUESTED = "cancel_requested"
    KEEP_REQUESTED = "keep_requested"
    FOLLOWED = "followed"


class SessionStore(Protocol):
    """Sessions of executions; `ExecutionStore` creates and changes them together with the executions.

    A session that has expired, and has no open execution, does not exist for any method.
    """

    async def find(self, tenant: str, session_id: str) -> Session:
        """Return the session.

        Raises:
            SessionNotFoundError: there is none for this tenant.
        """

    async def page(self, tenant: str, *, size: int, before: tuple[float, str] | None) -> Sequence[Session]:
        """Return up to `size` sessions, latest update first, that follow `before` (update time in seconds, id)."""

    async def delete(self, tenant: str, session_id: str) -> None:
        """Delete the session, its executions with their content, and their request ids.

        Raises:
            SessionNotFoundError: there is none for this tenant.
            TurnLeasedError: one of its executions is open.
        """

    async def count_suspended(self, kind: str) -> int:
        """Return how many executions of this kind of work are suspended now, of all tenants and in no session too."""


class StoreRoom(Protocol):
    """How much a store can still take."""

    async def require(self, tenant: str, kind: str) -> None:
        """Refuse another execution of this kind of work to a tenant that has as much as it may have.

        Called before an execution is created; what several processes create at the same moment may exceed the quota.

        Raises:
            TenantQuotaError: the quota of the tenant is used up.
        """

    async def read_fill(self) -> float:
        """Return the share of the store that is taken by what cannot make room: 0 to about 1, and 0 if unknown."""


class ExecutionStore(Protocol):
    """Stores executions and their logs, separately for each tenant.

    At most one execution of a session is open, that is, neither ended nor deleted. Whether the named one is open is
    decided by its own row; therefore nothing that ends an execution can leave a session closed for ever.

    `sessions` reads and deletes sessions; `room` tells whether there is room for another execution.

    A log is append-only; its events are numbered 1, 2, 3 ... without gaps and end with one LastEvent. Any call may
    raise StoreUnavailableError if the store cannot be reached; the call then had either no effect or its whole effect.
    """

    sessions: SessionStore
    room: StoreRoom

    @property
    def is_durable(self) -> bool:
        """Whether another process, at the same time or later, can resume what one process leaves in the store."""

    @property
    def is_shared(self) -> bool:
        """Whether another process can take over the running executions of this one while both are alive."""

    async def find_claim(self, tenant: str, request_id: str) -> Claim | None:
        """Return the claim on the request id; None if there is none."""

    async def read_checkpoint(self, tenant: str, execution_id: str, *, with_records: bool = True) -> Checkpoint:
        """Return the plan and, unless they are left out, the records of an execution, running or ended.

        The plan is empty if it was dropped. Raises as `find`.
        """

    async def create(
        self,
        execution: Execution,
        *,
        digest: str,
        plan: str,
        lease: Lease,
        inherits: str = "",
        session: SessionClaim | None = None,
    ) -> Claim:
        """Store a new execution with fence 1, unless its tenant used its request id before; return the id's claim.

        `inherits` is a cancelled execution of the same tenant. If it still has its request id, the id passes to the new
        execution. Its records are copied: the new log begins with them, and its version is their number, which is
        `inherited` of the claim. That number is 0 if the other execution is already deleted.
        A call whose answer was lost may be repeated.

        With `session` the execution enters that session in the same transaction, which raises its revision. A request
        id that was used before is answered first, whatever the state of the session.

        Raises:
            StoreFullError: there is no room, and no ended execution that could be removed.
            TurnLeasedError: another execution of the session is open; its metadata name both.
            EtagMismatchError: the session does not have the revision `if_revision`.
        """

    async def release(self, tenant: str, execution_id: str) -> None:
        """Release the request id of the execution for another one; the execution stays. Raises as `find`.

        If it is still open, it leaves its session, which is then free for another one.
        """

    async def append(self, batch: Sequence[Append]) -> Sequence[ReasondError | None]:
        """Append in one transaction; return for each part of `batch` None, or the error that refuses it.

        - LeaseLostError: `fence` is not that of the present lease, or the log is suspended.
        - ExecutionNotFoundError: it was deleted.
        - StoreFullError: the log has reached its limit, or the disk is full; a log at its limit accepts a LastEvent.
          With a `creation`: there is no room, and no ended execution that could be removed.
        - InternalError: `version` or a sequence is not the next one, the log has ended, or the id of a `creation` is
          in use.

        A refused part changes nothing and does not affect the other parts. If a part is already the last append of its
        log, it is accepted without effect: a call whose answer was lost may be repeated.
        """

    async def find(self, tenant: str, execution_id: str) -> Execution:
        """Return the execution.

        Raises:
            ExecutionNotFoundError: there is none for this tenant.
            CursorExpiredError: there was one, but it is no longer kept.
        """

    async def read(
        self, tenant: str, execution_id: str, *, after: int = 0, limit: int | None = None
    ) -> Sequence[LoggedEvent]:
        """Return up to `limit` events with a sequence above `after`, in order. Raises as `find`."""

    async def page(
        self, tenant: str, wanted: ExecutionFilter, *, size: int, before: tuple[float, str] | None
    ) -> Sequence[Execution]:
        """Return up to `size` executions, newest first, that follow `before` (create time in seconds, id)."""

    async def delete(self, tenant: str, execution_id: str) -> None:
        """Delete the execution, its content and its request id. Raises as `find`."""

    async def renew(self, lease: Lease, fences: Mapping[str, int]) -> Renewal:
        """Renew the leases of `lease.owner` on the executions in `fences` (id to fence).

        With `lease.seconds` 0 the leases are released: the next `recover` finds the executions.
        """

    async def recover(self, lease: Lease, *, limit: int) -> Sequence[Recovery]:
        """Take over up to `limit` executions that no process writes, and raise their fences.

        These are running executions whose lease has expired, and suspended ones whose `wake_time` has come or whose
        cancellation was requested. No two callers get the same one. An execution that a later release wrote is not
        returned at first, so that a process of that release can take it; one that cannot be read is returned with its
        `damage`.
        """

    async def wake(
        self, lease: Lease, tenant: str, execution_id: str, *, event: LoggedEvent | None = None
    ) -> Recovery | None:
        """Take a suspended execution, which then runs again, and raise its fence. Raises as `find`.

        An `event` is appended in the same transaction; it must have the next sequence of the log. So of all callers,
        in any processes, that append after the same event, one succeeds.

        Return None if it is not suspended, or if `event` does not have the next sequence: another caller was first, or
        it has ended. If the answer to a call was lost, the execution may be leased to a caller that does not know of
        it; `recover` finds it when that lease expires, with the event in its log.

        Raises:
            StoreFullError: the log, or its tenant, has no room for `event`; nothing was changed.
        """

    async def request_cancel(self, tenant: str, execution_id: str) -> None:
        """Ask the execution's writer, in any process, to stop it. Raises as `find`.

        A suspended execution has no writer: the next `recover` of any process returns it.
        """

    async def request_keep(self, tenant: str, execution_id: str) -> None:
        """Let the execution run without subscribers, also after another process takes it over. Raises as `find`."""

    async def announce(self, tenant: str, execution_id: str) -> None:
        """Notify the execution's watchers, in all processes, that it has a subscriber (Change.FOLLOWED).

        Nothing is written, and a notice may be lost; therefore subscribers announce themselves repeatedly. Does nothing
        if this tenant has no such execution.
        """

    async def forget(self, *, limit: int) -> int:
        """Remove up to `limit` executions whose `expire_time` has passed; return how many were removed.

        Up to `limit` sessions whose `expire_time` has passed, and that have no open execution, are removed as well.
        """

    def watch(self, execution_id: str, notify: Callable[[Change], None]) -> AbstractContextManager[None]:
        """Call `notify` on the event loop for every change of the execution by any process.

        If the connection to the store was lost, GREW is reported once it is back, whatever the changes were.
        """

    async def aclose(self) -> None:
        """Close connections and files; no method may be called afterwards."""
