"""The section of docs/performance.md about the cost of metrics, logs and traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scripts.pages import cell, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Report = dict[str, Any]


def telemetry_cost_lines(report: Report, where: str) -> list[str]:
    """Return the section about the cost of each kind of telemetry, per unary call and per model event."""
    return [
        "## Metrics, logs and traces",
        "",
        "`python -m benchmarks.telemetry_cost`: each kind by itself on a server that has no other, then all, with a",
        "model that answers at once in the process of the server: processor time of a unary call by 16 callers. Lines",
        "go to /dev/null, spans to a receiver in another process. Below, the same for an event of a model that writes",
        f"as fast as it is read. {report['rounds']} rounds, alternating; medians of differences and of ratios.",
        where,
        "",
        *_table("unary call", report["calls"]),
        "",
        *_table("event of a model", report["events"]),
    ]


def _table(what: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    cells = [
        [cell(row["side"]), f"{row['cpu_us']:,.2f}", f"{row['more_us']:+,.2f}", f"{row['ratio']:.2f}"] for row in rows
    ]
    return table([what, "CPU, microseconds", "more than without", "share"], cells)
