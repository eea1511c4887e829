"""The records that processes append when they go on with an execution whose process has ended.

A run can end its process, again after each takeover. So a takeover counts until the run writes something after it: a
call, a step, or that it is handed over in order.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Final

from reasond_server.eventlog.store import Record
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.eventlog.store import Recovery

MAX_FRUITLESS_TAKEOVERS: Final = 2
"""After so many takeovers without anything written since, an execution is given up."""

_KEY: Final = "taken"
"""The beginning of the key of the record."""


@value
class Takeover:
    """When an execution was taken over, the seconds until then in which no process had it, and the entries before."""

    time: datetime
    idle_s: float
    entries: int


def write_takeover(recovery: Recovery, *, time: datetime, idle_s: float) -> Record:
    """Return the record to append when the execution of `recovery` is gone on with."""
    # A log without events gets its first one before.
    entries = recovery.version + (not recovery.events)
    body = {"at": time.isoformat(), "idle_s": idle_s, "entries": entries}
    return Record(key=f"{_KEY}::{recovery.fence}", body=json.dumps(body))


def read_takeovers(recovery: Recovery) -> Sequence[Takeover]:
    """Return the takeovers of this execution in their order; records from one that it replaces are older than it."""
    bodies = [json.loads(record.body) for record in recovery.records if record.key.partition("::")[0] == _KEY]
    takeovers = [
        # Earlier code wrote no number of entries.
        Takeover(time=datetime.fromisoformat(one["at"]), idle_s=one["idle_s"], entries=one.get("entries", -1))
        for one in bodies
    ]
    return [one for one in takeovers if one.time >= recovery.execution.create_time]


def count_fruitless_takeovers(recovery: Recovery) -> int:
    """Return how many takeovers at the end of a log have nothing but takeovers after them."""
    entries, count = recovery.version - 1, 0
    for takeover in reversed(read_takeovers(recovery)):
        if takeover.entries != entries:
            break
        entries, count = entries - 1, count + 1
    return count
