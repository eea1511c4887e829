"""Executions and entries as rows of a database, and back."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reasond_server.errors import InternalError
from reasond_server.executions.appending import Head, ends, events_of
from reasond_server.executions.store import Record, Recovery
from reasond_server.executions.stored.codec import decode_event, decode_execution, encode_event, encode_execution
from reasond_server.types import ExecutionState, LoggedEvent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from reasond_server.executions.store import Append
    from reasond_server.types import Execution

_log = logging.getLogger("reasond.executions")


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRow:
    """An entry as it is stored: a record has a key, an event a sequence."""

    position: int
    sequence: int | None
    key: str
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRow:
    """A part of a batch, encoded; `entries` are those that are to be kept, `size` (bytes) is that of all."""

    part: Append
    body: str
    entries: Sequence[EntryRow]
    size: int
    drops_records: bool

    @property
    def first_sequence(self) -> int:
        """The last sequence that the log must have before."""
        return self.part.execution.last_sequence - len(events_of(self.part))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredHead:
    """The head of a log with the text of its execution, by which a repeated append is known."""

    head: Head
    body: str


def encoded(part: Append) -> PartRow:
    """Return `part` as rows.

    Raises:
        InternalError: something in it cannot be kept.
    """
    rows = [
        EntryRow(position=position, sequence=entry.sequence, key="", body=encode_event(entry))
        if isinstance(entry, LoggedEvent)
        else EntryRow(position=position, sequence=None, key=entry.key, body=entry.body)
        for position, entry in enumerate(part.entries, part.version + 1)
    ]
    if not is_storable(*(text for row in rows for text in (row.key, row.body))):
        raise InternalError(f"an entry of {part.execution.execution_id} holds NUL or is no Unicode")
    drops = ends(part) and not part.keeps_records
    return PartRow(
        part=part,
        body=encode_execution(part.execution),
        entries=[row for row in rows if row.sequence is not None] if drops else rows,
        size=sum(len(row.body) + len(row.key) for row in rows),
        drops_records=drops,
    )


def head_of(row: Sequence[Any]) -> StoredHead:
    """Return the head from the columns of `HEAD_COLUMNS`, without the execution's names."""
    version, fence, last_sequence, size, state, body = row
    head = Head(
        version=version,
        fence=fence,
        last_sequence=last_sequence,
        size=size,
        has_ended=state != ExecutionState.RUNNING.value,
    )
    return StoredHead(head=head, body=body)


HEAD_COLUMNS = "version, fence, last_sequence, size, state, body"


def execution_columns(execution: Execution) -> dict[str, object]:
    """Return what of an execution stands in columns of its own, to be searched for."""
    return {
        "tenant": execution.tenant,
        "execution_id": execution.execution_id,
        "state": execution.state.value,
        "strategy": execution.strategy,
        "finish_reason": execution.finish_reason.value if execution.finish_reason else "",
        "create_time": execution.create_time.timestamp(),
        "expire_time": execution.expire_time.timestamp() if execution.expire_time else None,
        "last_sequence": execution.last_sequence,
    }


def recovery(head: Sequence[Any], log: Iterable[Sequence[Any]]) -> Recovery:
    """Return what is needed to go on, from (body, plan, version, fence, is_keep_requested) and the log.

    Rows of the log are (key, sequence, body).
    """
    body, plan, version, fence, is_keep_requested = head
    entries = list(log)
    return Recovery(
        execution=decode_execution(body),
        plan=plan,
        events=[decode_event(sequence, text) for _, sequence, text in entries if sequence is not None],
        records=[Record(key=key, body=text) for key, sequence, text in entries if sequence is None],
        version=version,
        fence=fence,
        is_keep_requested=bool(is_keep_requested),
    )


def readable_recovery(execution_id: str, head: Sequence[Any], log: Iterable[Sequence[Any]]) -> Recovery | None:
    """Return what `recovery` does; None, which is logged, for a log that cannot be read.

    The transaction that took its lease goes on: the log comes last at the next look, and keeps no other from its turn.
    """
    try:
        return recovery(head, log)
    except InternalError as error:
        _log.error(
            "a log cannot be read and is not taken over: %s", error.full_message, extra={"execution_id": execution_id}
        )
        return None


def is_storable(*texts: str) -> bool:
    """Return whether a database can hold `texts`: PostgreSQL takes no NUL, and none takes a lone surrogate."""
    try:
        return all("\x00" not in text and text.encode() is not None for text in texts)
    except UnicodeEncodeError:
        return False
