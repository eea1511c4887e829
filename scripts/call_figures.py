"""The sections of docs/performance.md about what a call costs the server: unary, JSON-RPC, behind a slow model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scripts.pages import cell, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Report = dict[str, Any]


def unary_lines(report: Report, circumstances: str) -> list[str]:
    """Return the section that compares a unary call with a bare echo."""
    rows = [
        [
            cell(row["side"]),
            str(row["callers"]),
            f"{row['cpu_us']:,.0f}",
            f"{row['per_second']:,.0f}",
            f"{row['p50_ms']:.2f}",
            f"{row['p99_ms']:.2f}",
            _share(row["cpu_ratio"]),
            _share(row["rate_ratio"]),
            cell(row["base"]),
        ]
        for row in report["rows"]
    ]
    head = ("", "callers", "CPU, microseconds", "calls per second", "p50, ms", "p99", "CPU, share", "rate, share", "of")
    return [
        "## A unary call beside a bare one",
        "",
        "`python -m benchmarks.unary`: `Reason` with `chain_of_thought` and a model that answers at once in the",
        f"server's process, {report['load']['question_bytes']:,} bytes asked. Token, permission, limit by caller,",
        "validation, metrics, event log, access log and audit log are on. The echo is a grpc.aio server with the same",
        "messages that does nothing else; `create()` is the `openai` package alone with a model in another process,",
        f"as in `one model call`. {report['load']['rounds']} rounds, alternating; shares are medians of ratios.",
        circumstances,
        "",
        *table(head, rows),
        "",
        *goal_lines(report["goals"]),
    ]


def jsonrpc_lines(report: Report, circumstances: str) -> list[str]:
    """Return the section that compares a JSON-RPC call with a gRPC call."""
    rows = [
        [
            cell(row["side"]),
            f"{row['cpu_us']:,.0f} ({row['cpu_ratio']:.2f})",
            f"{row['per_second']:,.0f} ({row['rate_ratio']:.2f})",
            f"{row['p50_ms']:.2f}",
            f"{row['p99_ms']:.2f}",
        ]
        for row in report["rows"]
    ]
    head = ("", "CPU, microseconds (share of gRPC)", "calls per second (share of gRPC)", "p50, ms", "p99")
    return [
        "## JSON-RPC beside gRPC",
        "",
        "`python -m benchmarks.jsonrpc_cost`: one server, the same question over both wires,",
        f"{report['load']['callers']} callers. {report['load']['rounds']} rounds, alternating. {circumstances}",
        "",
        *table(head, rows),
        "",
        *goal_lines(report["goals"]),
    ]


def upstream_wait_lines(report: Report, circumstances: str) -> list[str]:
    """Return the section about many callers of a slow model."""
    load = report["load"]
    rows = [
        [
            cell(row["side"]),
            f"{row['per_second']:.0f} ({row['throughput_share']:.3f})",
            f"{row['p50_ms']:.0f}",
            f"{row['p99_ms']:.0f}",
            f"{row['cpu_us']:,.0f}" if row["cpu_us"] else "",
            f"{row['resident_mib']:.0f}" if row["resident_mib"] else "",
        ]
        for row in report["rows"]
    ]
    head = (
        "",
        "calls per second (share of the ideal)",
        "p50, ms",
        "p99",
        "CPU of a call, microseconds",
        "MiB resident",
    )
    return [
        "## Many callers of a slow model",
        "",
        f"`python -m benchmarks.upstream_wait`: {load['callers']} callers, a model that takes {load['latency_ms']} ms;",
        f"{load['calls']:,} calls a round, {load['rounds']} rounds. The server has `max_concurrent_requests` and",
        f"`[llm] max_concurrency` of 200: with the 64 calls at once of the default others would wait. {circumstances}",
        "",
        *table(head, rows),
        "",
        *goal_lines(report["goals"]),
    ]


def goal_lines(goals: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the goals and whether each is met."""
    rows = [
        [
            cell(goal["what"].replace("_", " ")),
            f"{goal['bound']} {goal['goal']:g}",
            f"{goal['measured']:.3f}",
            "met" if goal["is_met"] else "missed",
        ]
        for goal in goals
    ]
    return table(["goal", "", "measured", ""], rows)


def _share(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"
