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
    from collections.abc import Callable, Sequence

    from reasond_server.eventlog.store import Recovery
    from reasond_server.types import Event


def measure_work(
    recovery: Recovery, is_pause: Callable[[Event], bool], now: datetime, *, lease_s: float | None
) -> tuple[float, Record | None]:
    """Return the seconds that count against the time limit until `now`, and the record of the takeover if it is one.

    The times after an event that `is_pause`, until the next event, do not count. With `lease_s` the times in which no
    process had the execution do not count either. The store does not know when a process ended: after the last entry
    that it wrote, its lease of `lease_s` seconds counts at most. So of a silent work that took longer, and was lost,
    the rest is not counted; it can be repeated only as often as the limit has leases.
    """
    elapsed_s = (now - recovery.execution.create_time).total_seconds() - _sum_sleep(recovery, is_pause, now)
    takeovers = read_takeovers(recovery)
    idle_s = takeovers[-1].idle_s if takeovers and lease_s is not None else 0.0
    if recovery.was_suspended:
        return max(0.0, elapsed_s - idle_s), None
    if lease_s is not None and recovery.events and not is_pause(recovery.events[-1].event):
        seen = max([recovery.events[-1].create_time, *(one.time for one in takeovers[-1:])])
        idle_s += max(0.0, (now - seen).total_seconds() - lease_s)
    return max(0.0, elapsed_s - idle_s), write_takeover(recovery, time=now, idle_s=idle_s)


def _sum_sleep(recovery: Recovery, is_pause: Callable[[Event], bool], now: datetime) -> float:
    """Return the seconds from each event that suspended the execution until the next event, or until now."""
    ends = [*(logged.create_time for logged in recovery.events[1:]), now]
    return sum(
        max(0.0, (end - logged.create_time).total_seconds())
        for logged, end in zip(recovery.events, ends, strict=False)
        if is_pause(logged.event)
    )


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
    """Return the takeovers of this execution, oldest first; those of an execution that it replaced are left out."""
    bodies = [json.loads(record.body) for record in recovery.records if record.key.partition("::")[0] == _KEY]
    takeovers = [
        Takeover(time=datetime.fromisoformat(one["at"]), idle_s=one["idle_s"], entries=one["entries"]) for one in bodies
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
