"""What every store checks before it takes entries, and how it refuses; the stores differ in where they keep them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.errors import CursorExpiredError, ExecutionNotFoundError, InternalError, StoreFullError, shown
from reasond_server.logs.store import LeaseLostError
from reasond_server.types import ExecutionState, LoggedEvent, Result
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.errors import ReasondError
    from reasond_server.logs.store import Append


LARGEST_LOG_BYTES = 64 * 1024 * 1024
"""How large one log may get where nothing else is said."""


@value
class Head:
    """What of a log decides whether it takes more: its entries, events and bytes so far, its lease and its state."""

    version: int
    fence: int
    last_sequence: int
    size: int
    state: ExecutionState


_BEGINNING = Head(version=0, fence=1, last_sequence=0, size=0, state=ExecutionState.RUNNING)


def events_of(part: Append) -> list[LoggedEvent]:
    """Return the events among the entries."""
    return [entry for entry in part.entries if isinstance(entry, LoggedEvent)]


def ends(part: Append) -> bool:
    """Return whether a Result is among the entries."""
    return any(isinstance(event.event, Result) for event in events_of(part))


def may_repeat(part: Append, head: Head) -> bool:
    """Return whether `part` can be what was appended last, so that its contents have to be compared."""
    return part.fence == head.fence and part.version + len(part.entries) == head.version and bool(part.entries)


def refusal(part: Append, head: Head | None, *, size: int, largest: int) -> ReasondError | None:
    """Return why the log does not take `part`, which has `size` bytes; None if it does."""
    execution_id = part.execution.execution_id
    if (head is None) is (part.creation is None):
        return not_found(execution_id) if head is None else id_taken(execution_id)
    head = head or _BEGINNING
    if part.fence != head.fence or head.state is ExecutionState.SUSPENDED:
        state = head.state.value
        return LeaseLostError(f"fence {part.fence} writes {execution_id} no more: it is {state} at fence {head.fence}")
    if head.state is not ExecutionState.RUNNING or part.version != head.version:
        state = "runs" if head.state is ExecutionState.RUNNING else "has ended"
        return InternalError(
            f"version {part.version} is not that of the log of {execution_id}, which {state} at {head.version}"
        )
    events = events_of(part)
    # One that is followed by other events is no end, and a gap.
    has_result = bool(events) and isinstance(events[-1].event, Result)
    if wrong := _first_gap(part, events, head.last_sequence, has_result=has_result):
        return InternalError(f"{wrong} does not continue the log of {execution_id}")
    if head.size + size > largest and not has_result:
        return StoreFullError(
            f"The execution wrote more than the {largest} bytes that one log may hold",
            remedy="What it wrote until then is kept. Ask for less.",
            metadata={"max_log_bytes": str(largest)},
        )
    return None


def id_taken(execution_id: str) -> InternalError:
    """Make the error of a creation whose id stands for another execution."""
    return InternalError(f"there is another execution {execution_id} already")


def not_found(execution_id: str) -> ExecutionNotFoundError:
    """Make the error of an execution that its caller does not have."""
    return ExecutionNotFoundError(
        f"Execution not found: {shown(execution_id)}",
        remedy="Use an execution_id that this server returned to the same tenant.",
    )


def no_longer_kept(execution_id: str) -> CursorExpiredError:
    """Make the error of an execution that is past its time."""
    return CursorExpiredError(
        f"Execution {shown(execution_id)} is no longer kept",
        remedy="Start the task again, or raise [store] retention_s, max_executions or max_bytes.",
    )


def _first_gap(part: Append, events: Sequence[LoggedEvent], last: int, *, has_result: bool) -> str:
    """Return what does not fit about the `events` of `part` after event `last`; empty if all does."""
    for event in events:
        last += 1
        if event.sequence != last:
            return f"event {event.sequence}"
        if isinstance(event.event, Result) and event is not events[-1]:
            return "an event after the result"
    if part.execution.last_sequence != last:
        return f"an execution whose last event is {part.execution.last_sequence}"
    state = part.execution.state
    is_suspended = state is ExecutionState.SUSPENDED
    if has_result is (is_suspended or state is ExecutionState.RUNNING) or (is_suspended and not part.entries):
        return f"an execution that is {state.value}"
    return ""
