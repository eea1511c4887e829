"""Shared by all stores: checks of appends, quotas of tenants, errors of refusals, notification of watchers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from reasond_server.errors.base import DEFAULT_RETRY_S, InternalError, ReasondError, show
from reasond_server.errors.executions import CursorExpiredError, ExecutionNotFoundError
from reasond_server.errors.limits import StoreFullError
from reasond_server.errors.turns import EtagMismatchError, SessionNotFoundError, TurnLeasedError
from reasond_server.eventlog.store import Append, Change, LeaseLostError, SessionClaim
from reasond_server.types import Execution, ExecutionState, LastEvent, LoggedEvent
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager


LARGEST_LOG_BYTES = 64 * 1024 * 1024
"""The default limit of one log, in bytes."""


class TenantQuotaError(StoreFullError):
    """One tenant has as much in the store as it may have; the store takes what other tenants write."""


@value
class TenantQuota:
    """The most that one tenant may have in a store; None sets no bound.

    Beside others it may have less: `share` of what their open executions leave of the store, so that no number of
    tenants fills it.

    Attributes:
        waiting: suspended executions of one kind of work.
        max_bytes: bytes of the logs of open executions, that is, running and suspended ones.
        share: the share of what others leave, at most 1.
        store_bytes: the bytes that the store takes of all tenants.
    """

    waiting: int | None = None
    max_bytes: int | None = None
    share: float = 1.0
    store_bytes: int | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether there is any bound."""
        return self.waiting is not None or self.max_bytes is not None

    def beside(self, open_bytes: int) -> TenantQuota:
        """Return the quota of a tenant beside others that have so many bytes in open executions."""
        if self.store_bytes is None or self.share >= 1:
            return self
        left = max(1, int((self.store_bytes - open_bytes) * self.share))
        return replace(self, max_bytes=left if self.max_bytes is None else min(self.max_bytes, left))

    def require_room(self, *, kind: str, waiting: Mapping[str, int], open_bytes: int) -> None:
        """Refuse another execution of `kind` to a tenant that has so much already; `waiting` is by kind.

        Raises:
            TenantQuotaError: a bound is reached.
        """
        if self.waiting is not None and waiting.get(kind, 0) >= self.waiting:
            what = f"suspended executions of the kind {kind}"
            raise _build_error(what, waiting[kind], self.waiting, keys="tenant_waiting")
        if self.max_bytes is not None and open_bytes >= self.max_bytes:
            raise _build_error(
                "bytes in open executions", open_bytes, self.max_bytes, keys="tenant_bytes, tenant_share or its bound"
            )


UNBOUNDED = TenantQuota()


@value
class TenantShare:
    """What an operator allows one tenant of any store.

    Attributes:
        share: the largest share that its open executions may take of what those of other tenants leave of the bounds
            of a store; 1 sets no bound.
        waiting: most suspended executions of a kind; 0 sets no bound.
        max_bytes: most bytes in open executions; 0 sets no bound.
    """

    share: float = 1.0
    waiting: int = 0
    max_bytes: int = 0

    def build_quota(self, *, store_bytes: int = 0) -> TenantQuota:
        """Return the quota of a tenant in a store that takes so many bytes; 0: it has no bound."""
        own = TenantQuota(
            waiting=self.waiting or None,
            max_bytes=self.max_bytes or None,
            share=self.share,
            store_bytes=store_bytes or None,
        )
        return own.beside(open_bytes=0)


NO_SHARE = TenantShare()


def _build_error(what: str, value: int, limit: int, *, keys: str) -> TenantQuotaError:
    return TenantQuotaError(
        f"Your tenant has {value} {what}, and the store keeps {limit} of one tenant at most",
        remedy=f"Finish or cancel some of them, wait until others have, or have the operator raise [store] {keys}.",
        metadata={"tenant_quota": what, "value": str(value), "limit": str(limit)},
    )


@value
class Head:
    """What decides whether a log accepts an append: its entries, events and bytes so far, its lease and its state."""

    version: int
    fence: int
    last_sequence: int
    size: int
    state: ExecutionState


_BEGINNING = Head(version=0, fence=1, last_sequence=0, size=0, state=ExecutionState.RUNNING)


def select_events(part: Append) -> list[LoggedEvent]:
    """Return the events among the entries."""
    # `type() is` is faster than `isinstance`, and this runs several times for every entry.
    return [entry for entry in part.entries if type(entry) is LoggedEvent]


def may_repeat(part: Append, head: Head) -> bool:
    """Return whether `part` may repeat the last append; the caller then has to compare the contents."""
    return part.fence == head.fence and part.version + len(part.entries) == head.version and bool(part.entries)


def find_refusal(
    part: Append, events: Sequence[LoggedEvent], head: Head | None, *, size: int, largest: int
) -> ReasondError | None:
    """Return the error that refuses `part`, whose `events` have `size` bytes; None if the log accepts it."""
    execution_id = part.execution.execution_id
    if (head is None) is (part.creation is None):
        return build_not_found_error(execution_id) if head is None else build_id_taken_error(execution_id)
    head = head or _BEGINNING
    if part.fence != head.fence or head.state is ExecutionState.SUSPENDED:
        state = head.state.value
        return LeaseLostError(f"fence {part.fence} writes {execution_id} no more: it is {state} at fence {head.fence}")
    if head.state is not ExecutionState.RUNNING or part.version != head.version:
        state = "runs" if head.state is ExecutionState.RUNNING else "has ended"
        return InternalError(
            f"version {part.version} is not that of the log of {execution_id}, which {state} at {head.version}"
        )
    # A last event that is followed by other events does not end the log: it counts as a gap.
    has_result = bool(events) and isinstance(events[-1].event, LastEvent)
    if wrong := _find_gap(part, events, head.last_sequence, has_result=has_result):
        return InternalError(f"{wrong} does not continue the log of {execution_id}")
    if head.size + size > largest and not has_result:
        return build_log_full_error(largest)
    return None


def may_wake(execution: Execution, event: LoggedEvent | None) -> bool:
    """Return whether `wake` may take the execution, and append `event` to its log if there is one."""
    if execution.state is not ExecutionState.SUSPENDED:
        return False
    return event is None or execution.last_sequence == event.sequence - 1


def require_entry(claim: SessionClaim, *, revision: int, other: str = "", is_running: bool = False) -> None:
    """Refuse an execution that may not enter the session, which has this revision; 0 if there is none.

    Args:
        claim: the session that it wants to enter.
        revision: the revision of the session.
        other: the open execution of the session; empty if there is none.
        is_running: whether that one runs, and is not suspended.

    Raises:
        TurnLeasedError: there is an open execution.
        EtagMismatchError: the session has another revision than `claim` asks for.
    """
    if other:
        raise build_leased_error(claim.session_id, other, is_running=is_running)
    if claim.if_revision is not None and claim.if_revision != revision:
        raise EtagMismatchError(
            f"Session {show(claim.session_id)} has revision {revision}, not {claim.if_revision}",
            remedy="Read the session again, and send its revision, or none.",
            metadata={
                "session_id": claim.session_id,
                "revision": str(revision),
                "if_revision": str(claim.if_revision),
            },
        )


def require_same_session(execution: Execution, claim: SessionClaim | None) -> None:
    """Refuse an execution whose session differs from the session of its claim.

    Raises:
        InternalError: the names differ, or are empty.
    """
    if execution.session_id != ("" if claim is None else claim.session_id or None):
        raise InternalError(f"the execution {execution.execution_id} names another session than it claims")


def build_leased_error(session_id: str, execution_id: str, *, is_running: bool) -> TurnLeasedError:
    """Make the error for a session with an open execution; only one that runs is worth waiting for."""
    does = "runs" if is_running else "waits for its caller"
    remedy = "Cancel it, or wait until it has ended." if is_running else "Cancel it, or finish it."
    return TurnLeasedError(
        f"Session {show(session_id)} has an open execution, {show(execution_id)}, which {does}",
        remedy=remedy,
        metadata={"session_id": session_id, "turn_id": execution_id},
        retry_after_s=DEFAULT_RETRY_S if is_running else None,
    )


def build_session_not_found_error(session_id: str) -> SessionNotFoundError:
    """Make the error for a session that does not exist for its caller."""
    return SessionNotFoundError(
        f"Session not found: {show(session_id)}",
        remedy="Use a session_id of the same tenant; a session is made by its first execution, and expires.",
    )


def build_log_full_error(largest: int) -> StoreFullError:
    """Make the error for an append that would exceed the `largest` size of a log, in bytes."""
    return StoreFullError(
        f"The execution wrote more than the {largest} bytes that one log may hold",
        remedy="What it wrote until then is kept. Ask for less.",
        metadata={"max_log_bytes": str(largest)},
    )


def build_id_taken_error(execution_id: str) -> InternalError:
    """Make the error for a creation whose id belongs to another execution."""
    return InternalError(f"there is another execution {execution_id} already")


def build_not_found_error(execution_id: str) -> ExecutionNotFoundError:
    """Make the error for an execution that does not exist for its caller."""
    return ExecutionNotFoundError(
        f"Execution not found: {show(execution_id)}",
        remedy="Use an execution_id that this server returned to the same tenant.",
    )


def build_expired_error(execution_id: str) -> CursorExpiredError:
    """Make the error for an execution that has expired."""
    return CursorExpiredError(
        f"Execution {show(execution_id)} is no longer kept",
        remedy="Start the task again, or raise [store] retention_s, max_bytes or max_file_bytes.",
    )


class Watchers:
    """Notifies watchers on the event loop; an instance belongs to one loop and may be used only there."""

    def __init__(self) -> None:
        self._callbacks: dict[str, list[Callable[[Change], None]]] = {}

    def watch(self, execution_id: str, notify: Callable[[Change], None]) -> AbstractContextManager[None]:
        """Call `notify` for each change of the execution while the context lasts."""
        return _Watch(self._callbacks, execution_id, notify)

    def notify(self, execution_ids: Iterable[str], change: Change) -> None:
        """Notify the watchers of the executions."""
        for execution_id in execution_ids:
            for notify in tuple(self._callbacks.get(execution_id, ())):
                notify(change)

    def notify_all(self) -> None:
        """Notify every watcher that its execution may have grown."""
        self.notify(tuple(self._callbacks), Change.GREW)


class _Watch:
    """The context of one watcher. Not a generator, which costs more: every run is watched, and most are short."""

    def __init__(
        self, callbacks: dict[str, list[Callable[[Change], None]]], execution_id: str, notify: Callable[[Change], None]
    ) -> None:
        self._callbacks = callbacks
        self._id = execution_id
        self._notify = notify

    def __enter__(self) -> None:
        self._callbacks.setdefault(self._id, []).append(self._notify)

    def __exit__(self, *_: object) -> None:
        callbacks = self._callbacks[self._id]
        callbacks.remove(self._notify)
        if not callbacks:
            del self._callbacks[self._id]


def _find_gap(part: Append, events: Sequence[LoggedEvent], last: int, *, has_result: bool) -> str:
    """Return why the `events` of `part` do not continue the log after event `last`; empty if they do."""
    if part.creation is not None and part.execution.session_id:
        return "a first append in a session"
    is_over = False
    for event in events:
        if is_over:
            return "an event after the result"
        last += 1
        if event.sequence != last:
            return f"event {event.sequence}"
        is_over = isinstance(event.event, LastEvent)
    if part.execution.last_sequence != last:
        return f"an execution whose last event is {part.execution.last_sequence}"
    state = part.execution.state
    is_suspended = state is ExecutionState.SUSPENDED
    if has_result is (is_suspended or state is ExecutionState.RUNNING) or (is_suspended and not part.entries):
        return f"an execution that is {state.value}"
    return ""
