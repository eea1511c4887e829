"""Places in the log of an execution, as the ids of server-sent events name them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from reasond_server.errors import InvalidRequestError, Violation, shown

# Eighteen digits stay below the largest sequence number that the protos can hold.
_CURSOR: Final = re.compile(r"([A-Za-z0-9_-]{1,128}):(0|[1-9][0-9]{0,17})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A place in the log of an execution: the last event that the client has seen."""

    execution_id: str
    after_sequence: int


def read_cursor(last_event_id: str) -> Cursor:
    """Return the place that the header Last-Event-ID names.

    Raises:
        InvalidRequestError: it is not the id of an event.
    """
    match = _CURSOR.fullmatch(last_event_id)
    if match is None:
        description = f"must be <execution_id>:<sequence>, got {shown(last_event_id)}"
        raise InvalidRequestError.of(Violation(field="Last-Event-ID", description=description))
    return Cursor(execution_id=match[1], after_sequence=int(match[2]))
