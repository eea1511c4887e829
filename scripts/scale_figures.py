"""The sections of docs/performance.md about several workers and about open streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scripts.pages import cell, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Report = dict[str, Any]


def scale_lines(report: Report, where: str) -> list[str]:
    """Return the section that compares two workers with one, and shows both under a mix of callers."""
    load, soak = report["load"], report["soak"]
    rows = [
        [
            str(row["workers"]),
            f"{row['per_cpu_s']:,.0f}",
            f"{row['ratio']:.2f}",
            f"{row['database_cpu_us']:,.0f}",
            f"{row['per_second']:,.0f}",
            f"{row['rate_ratio']:.2f}",
        ]
        for row in report["rows"]
    ]
    head = (
        "workers",
        "calls per second of CPU",
        "over one worker",
        "PostgreSQL's CPU per call, microseconds",
        "calls per second",
        "over one worker",
    )
    done = ", ".join(f"{kind} {times:,}" for kind, times in soak["done"].items())
    held = (
        [name, *(f"{soak[when][what]:g}" for what in ("resident_mb", "files", "threads"))]
        for name, when in (("a third", "early"), ("the end", "late"))
    )
    return [
        "## Several workers",
        "",
        f"`python -m benchmarks.scale`: `Reason` with `chain_of_thought` from {load['callers']} callers, a model in",
        "another process that answers at once, and one PostgreSQL for all. Nothing is pinned: where the client, the",
        "model and the database share two processors with the servers, calls per second tell about the machine, and",
        "calls per second of the servers' processor time (supervisor included) about reasond.",
        f"{load['rounds']} rounds, alternating, medians; ratios within a round. {where}",
        "",
        *table(head, rows),
        "",
        f"Then {soak['callers']} callers used two workers for {soak['seconds']:g} s, with new connections all the",
        f"time. Done: {done}; {soak['errors']} errors. What all processes of the server held:",
        "",
        *table(("after", "resident MB", "open files", "threads"), list(held)),
        "",
        *_goals(report["goals"]),
    ]


def held_streams_lines(report: Report, where: str) -> list[str]:
    """Return the section about the memory of a waiting stream."""
    rows = [
        [
            cell(row["kind"]),
            f"{row['streams']:,}",
            f"{row['kib_per_stream']:.1f}",
            f"{row['after_kib_per_stream']:.1f}",
            f"{row['lost']}",
        ]
        for row in report["rows"]
    ]
    head = ("", "streams", "KiB per stream", "KiB per stream after their end", "streams that lost anything")
    rounds = "1 round" if report["rounds"] == 1 else f"{report['rounds']} rounds"
    return [
        "## Streams held open",
        "",
        "`python -m benchmarks.held_streams`: resident memory of one server process, beyond what it has after its",
        "first 200 streams. Idle: each stream its own run, whose model waits in the server's process; over HTTP: the",
        "model is another process, so that each run holds a connection to it; followers: all resume one run; active:",
        "text every 100 ms. After their end the executions are still kept in memory, and the allocator keeps what it",
        "has. More than half of an idle stream is Python objects (call, run, log and context), the rest is gRPC's own.",
        f"{rounds}, medians. {where}",
        "",
        *table(head, rows),
        "",
        *_goals(report["goals"]),
    ]


def _goals(goals: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        [cell(goal["what"]), cell(goal["goal"]), f"{goal['measured']:g}", "met" if goal["is_met"] else "missed"]
        for goal in goals
    ]
    return table(["", "goal", "measured", ""], rows)
