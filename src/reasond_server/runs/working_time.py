"""How long an execution has been worked on, when a process takes it that has not worked on it so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.runs.takeovers import read_takeovers, write_takeover

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from reasond_server.eventlog.store import Record, Recovery
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
