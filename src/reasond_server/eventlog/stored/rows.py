"""Executions and entries as rows of a database, and back."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from reasond_server.errors.base import InternalError, show
from reasond_server.eventlog.contract import Head, find_refusal, select_events
from reasond_server.eventlog.store import Append, Notice, Record, Recovery
from reasond_server.eventlog.stored.codec import (
    LaterVersionError,
    decode_event,
    decode_execution,
    encode_event,
    encode_execution,
    encode_state,
)
from reasond_server.types import Execution, ExecutionState, LoggedEvent, StrategySource
from reasond_server.types.values import value

_log = logging.getLogger("reasond.executions")
# With leases of 15 s this takes about half an hour.
_MOST_LOOKS = 100


@value
class EntryRow:
    """An entry as it is stored: a record has a key, an event a sequence."""

    position: int
    sequence: int | None
    key: str
    body: str


@value
class PartRow:
    """A part of a batch, encoded; `entries` are those to store, `size` (bytes) is the size of all entries.

    `events` are those among the entries of the part. `session_state` is what the execution leaves in its session;
    empty if it leaves nothing.
    """

    part: Append
    events: Sequence[LoggedEvent]
    body: str
    entries: Sequence[EntryRow]
    size: int
    drops_records: bool
    drops_plan: bool
    session_state: str = ""

    @property
    def leaves_session(self) -> bool:
        """Whether the execution belongs to a session and ends with this part."""
        execution = self.part.execution
        return bool(execution.session_id) and execution.state.has_ended

    @property
    def first_sequence(self) -> int:
        """The last sequence that the log must have before this part."""
        return self.part.execution.last_sequence - len(self.events)


@value
class StoredHead:
    """The head of a log with the text of its execution, which identifies a repeated append."""

    head: Head
    body: str


def encode_part(part: Append) -> PartRow:
    """Return `part` as rows.

    Raises:
        InternalError: something in it cannot be stored.
    """
    rows = [
        EntryRow(position=position, sequence=entry.sequence, key="", body=encode_event(entry))
        if isinstance(entry, LoggedEvent)
        else EntryRow(position=position, sequence=None, key=entry.key, body=entry.body)
        for position, entry in enumerate(part.entries, part.version + 1)
    ]
    if not is_storable(*[row.key for row in rows], *[row.body for row in rows]):
        raise InternalError(f"an entry of {part.execution.execution_id} holds NUL or is no Unicode")
    if part.creation is not None:
        require_storable(part.execution)
    drops = part.execution.state.has_ended and not part.keeps_records
    return PartRow(
        part=part,
        events=select_events(part),
        body=encode_execution(part.execution),
        entries=[row for row in rows if row.sequence is not None] if drops else rows,
        size=sum([len(row.body) + len(row.key) for row in rows]),
        drops_records=drops,
        drops_plan=drops and not part.keeps_plan,
        session_state="" if part.session_end is None else encode_state(part.session_end.state),
    )


def is_whole(row: PartRow, *, largest: int) -> bool:
    """Return whether a log that is as the part expects accepts it; the statement checks whether the log is."""
    part = row.part
    expected = Head(
        version=part.version,
        fence=part.fence,
        last_sequence=row.first_sequence,
        size=0,
        state=ExecutionState.RUNNING,
    )
    head = expected if part.creation is None else None
    return find_refusal(part, row.events, head, size=row.size, largest=largest) is None


def read_head(row: Sequence[Any]) -> StoredHead:
    """Return the head from the columns of `HEAD_COLUMNS`, without the execution's names."""
    version, fence, last_sequence, size, state, body = row
    head = Head(
        version=version,
        fence=fence,
        last_sequence=last_sequence,
        size=size,
        state=ExecutionState(state),
    )
    return StoredHead(head=head, body=body)


HEAD_COLUMNS = "version, fence, last_sequence, size, state, body"


def execution_columns(execution: Execution) -> dict[str, object]:
    """Return the columns of an execution that queries search."""
    return {
        "tenant": execution.tenant,
        "execution_id": execution.execution_id,
        "state": execution.state.value,
        "strategy": execution.strategy,
        "finish_reason": execution.finish_reason.value if execution.finish_reason else "",
        "create_time": execution.create_time.timestamp(),
        "expire_time": execution.expire_time.timestamp() if execution.expire_time else None,
        "last_sequence": execution.last_sequence,
        "kind": execution.kind,
        "wake_time": execution.wake_time.timestamp() if execution.wake_time else None,
        "session_id": execution.session_id,
    }


def decode_kept(body: str, expire_time: float | None) -> Execution:
    """Return the execution that `body` holds, with the `expire_time` of its row: its session may have prolonged it."""
    execution = decode_execution(body)
    if not execution.session_id or expire_time is None:
        return execution
    return replace(execution, expire_time=datetime.fromtimestamp(expire_time, tz=UTC))


def creation_columns(row: PartRow) -> dict[str, object]:
    """Return the row, without its lease, of an execution that is created together with its first entries."""
    part, plan = row.part, choose_plan(row)
    return execution_columns(part.execution) | {
        "body": row.body,
        "version": len(part.entries),
        "size": row.size + len(plan),
        "plan": plan,
    }


def notice_columns(notices: Iterable[Notice], *, now: float) -> Sequence[dict[str, object]]:
    """Return the parameters of the statements that add `notices` at the time `now` (seconds since 1970)."""
    return [asdict(notice) | {"now": now} for notice in notices]


def choose_plan(row: PartRow) -> str:
    """Return the plan to store with a log that is created with `row`."""
    creation = row.part.creation
    return "" if row.drops_plan or creation is None else creation.plan


def find_owner(row: PartRow) -> str:
    """Return the owner of the lease of a log that is created with `row`; empty if it is suspended at once."""
    creation = row.part.creation
    is_suspended = row.part.execution.state is ExecutionState.SUSPENDED
    return "" if creation is None or is_suspended else creation.lease.owner


@value
class TakeoverRow:
    """The stored form of a log that was taken over; rows of `log` are (key, sequence, body)."""

    tenant: str
    execution_id: str
    body: str
    plan: str
    version: int
    fence: int
    is_cancel_requested: bool
    is_keep_requested: bool
    kind: str
    strategy: str
    create_time: float
    last_sequence: int
    was_suspended: bool
    is_due: bool
    has_waking_event: bool
    log: Sequence[Sequence[Any]]


TAKEOVER_COLUMNS = (
    "body, plan, version, fence, is_cancel_requested, is_keep_requested, kind, strategy, create_time, last_sequence"
)

VERSION_COLUMN = 2
"""The index of the version in `TAKEOVER_COLUMNS`."""


@value
class LogTakeover:
    """The execution that a process takes over: whether it was suspended until now, and whether its time has come.

    `waking_sequence` is the sequence of the event that wakes it; None if no event does.
    """

    tenant: str
    execution_id: str
    was_suspended: bool
    is_due: bool = False
    waking_sequence: int | None = None


def build_takeover_row(takeover: LogTakeover, head: Sequence[Any], log: Sequence[Sequence[Any]]) -> TakeoverRow:
    """Return the row with the columns of `TAKEOVER_COLUMNS`."""
    columns = dict(zip(TAKEOVER_COLUMNS.split(", "), head, strict=True))
    return TakeoverRow(
        tenant=takeover.tenant,
        execution_id=takeover.execution_id,
        was_suspended=takeover.was_suspended,
        is_due=takeover.is_due,
        has_waking_event=takeover.waking_sequence is not None,
        log=log,
        **columns,
    )


def waking_columns(event: LoggedEvent, *, largest: int) -> dict[str, object]:
    """Return the parameters of the statements that wake an execution with an event.

    Raises:
        InternalError: the event cannot be stored.
    """
    text = encode_event(event)
    if not is_storable(text):
        raise InternalError(f"event {event.sequence} holds NUL or is no Unicode")
    return {"sequence": event.sequence, "event": text, "added": len(text), "largest": largest}


def write_woken_body(body: str, sequence: int | None) -> str:
    """Return the text of a suspended execution once it runs again, with the `sequence` of the event that woke it.

    A text that cannot be read stays unchanged.
    """
    try:
        execution = _set_running(decode_execution(body))
    except InternalError:
        return body
    return encode_execution(execution if sequence is None else replace(execution, last_sequence=sequence))


def build_recovery(row: TakeoverRow) -> Recovery | None:
    """Return what is needed to resume a log, or to end it if it is damaged.

    Return None, and log a warning, if a later release wrote it. Each later attempt to recover it comes after all other
    logs; the hundredth attempt gives it up as damaged.
    """
    facts = {"execution_id": row.execution_id}
    damage: InternalError
    try:
        return _read_whole(row)
    except LaterVersionError as error:
        damage = error
        if row.fence < _MOST_LOOKS:
            _log.warning("a log is left to a later release: %s", error.message, extra=facts)
            return None
    except InternalError as error:
        damage = error
    _log.error("a log cannot be read and is given up: %s", damage.message, extra=facts)
    return Recovery(
        execution=_read_damaged_head(row),
        plan="",
        events=_read_until_damage(row),
        records=(),
        version=row.version,
        fence=row.fence,
        is_cancel_requested=bool(row.is_cancel_requested),
        was_suspended=row.was_suspended,
        is_due=bool(row.is_due),
        has_waking_event=row.has_waking_event,
        damage=damage.message,
    )


def _read_whole(row: TakeoverRow) -> Recovery:
    events = [decode_event(sequence, text) for _, sequence, text in row.log if sequence is not None]
    if [event.sequence for event in events] != [*range(1, row.last_sequence + 1)] or len(row.log) != row.version:
        raise InternalError(f"of {row.version} entries with {row.last_sequence} events some are gone")
    return Recovery(
        execution=_set_running(decode_execution(row.body)),
        plan=row.plan,
        events=events,
        records=[Record(key=key, body=text) for key, sequence, text in row.log if sequence is None],
        version=row.version,
        fence=row.fence,
        is_cancel_requested=bool(row.is_cancel_requested),
        is_keep_requested=bool(row.is_keep_requested),
        was_suspended=row.was_suspended,
        is_due=bool(row.is_due),
        has_waking_event=row.has_waking_event,
    )


def _set_running(execution: Execution) -> Execution:
    """Return the execution as running; a text that a later release wrote may still say that it is suspended."""
    if execution.state is not ExecutionState.SUSPENDED:
        return execution
    return replace(execution, state=ExecutionState.RUNNING, wake_time=None)


def _read_until_damage(row: TakeoverRow) -> Sequence[LoggedEvent]:
    """Return the events before the first that is damaged or missing."""
    events: list[LoggedEvent] = []
    for _, sequence, text in row.log:
        if sequence is None:
            continue
        try:
            event = decode_event(sequence, text)
        except InternalError:
            break
        if sequence != len(events) + 1:
            break
        events.append(event)
    return events


def _read_damaged_head(row: TakeoverRow) -> Execution:
    """Return the execution; if its text cannot be read, only what its columns hold."""
    try:
        return replace(_set_running(decode_execution(row.body)), last_sequence=row.last_sequence)
    except InternalError:
        return Execution(
            execution_id=row.execution_id,
            tenant=row.tenant,
            state=ExecutionState.RUNNING,
            strategy=row.strategy,
            strategy_source=StrategySource.REQUEST,
            model="",
            create_time=datetime.fromtimestamp(row.create_time, tz=UTC),
            last_sequence=row.last_sequence,
            kind=row.kind,
        )


def is_storable(*texts: str) -> bool:
    """Return whether a database can store `texts`: PostgreSQL refuses NUL, and both refuse lone surrogates."""
    text = "".join(texts)
    try:
        return "\x00" not in text and (text.isascii() or text.encode() is not None)
    except UnicodeEncodeError:
        return False


def require_storable(execution: Execution) -> None:
    """Refuse names that a database cannot store.

    Raises:
        InternalError: tenant, id, request id or strategy contain NUL or are not valid Unicode.
    """
    names = (execution.tenant, execution.execution_id, execution.request_id, execution.strategy)
    if not is_storable(*names):
        raise InternalError(f"an execution has names that cannot be stored: {show(names)}")
