"""How long an execution has been worked on, when a process takes it that has not worked on it so far."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Final

from reasond_server.logs.store import Record
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable

    from reasond_server.logs.store import Recovery
    from reasond_server.types import Event

_TAKEN: Final = "taken"
"""The beginning of the key of a record: the execution was taken over after a process had left it."""


@value
class _Taking:
    """When the execution was taken over, and the seconds until then in which no process had it."""

    time: datetime
    idle_s: float


def measure_work(
    recovery: Recovery, is_pause: Callable[[Event], bool], now: datetime, *, lease_s: float | None
) -> tuple[float, Record | None]:
    """Return the seconds that count against the time limit until `now`, and a record to append if there is one.

    The times after an event that `is_pause`, until the next event, do not count. With `lease_s` the times in which no
    process had the execution do not count either. The store does not know when a process ended: after the last entry
    that it wrote, its lease of `lease_s` seconds counts at most. So of a silent work that took longer, and was lost,
    the rest is not counted; it can be repeated only as often as the limit has leases.
    """
    elapsed_s = (now - recovery.execution.create_time).total_seconds() - _sum_sleep(recovery, is_pause, now)
    if lease_s is None:
        return max(0.0, elapsed_s), None
    last = _find_last_taking(recovery)
    idle_s = 0.0 if last is None else last.idle_s
    if recovery.was_suspended or not recovery.events or is_pause(recovery.events[-1].event):
        return max(0.0, elapsed_s - idle_s), None
    written = recovery.events[-1].create_time
    seen = written if last is None else max(written, last.time)
    idle_s += max(0.0, (now - seen).total_seconds() - lease_s)
    body = json.dumps({"at": now.isoformat(), "idle_s": idle_s})
    return max(0.0, elapsed_s - idle_s), Record(key=f"{_TAKEN}::{recovery.fence}", body=body)


def _sum_sleep(recovery: Recovery, is_pause: Callable[[Event], bool], now: datetime) -> float:
    """Return the seconds from each event that suspended the execution until the next event, or until now."""
    ends = [*(logged.create_time for logged in recovery.events[1:]), now]
    return sum(
        max(0.0, (end - logged.create_time).total_seconds())
        for logged, end in zip(recovery.events, ends, strict=False)
        if is_pause(logged.event)
    )


def _find_last_taking(recovery: Recovery) -> _Taking | None:
    """Return the last taking of this execution; records from one that it replaces are older than it."""
    bodies = [json.loads(record.body) for record in recovery.records if record.key.partition("::")[0] == _TAKEN]
    takings = [_Taking(time=datetime.fromisoformat(one["at"]), idle_s=one["idle_s"]) for one in bodies]
    return next((one for one in reversed(takings) if one.time >= recovery.execution.create_time), None)
