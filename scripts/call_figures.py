"""The sections of docs/performance.md about what a call costs the server: unary, JSON-RPC, behind a slow model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scripts.pages import cell, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Report = dict[str, Any]


def unary_lines(report: Report, circumstances: str) -> list[str]:
    """Return what a unary call costs beside a bare echo."""
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


def profile_lines(report: Report, circumstances: str) -> list[str]:
    """Return what is called in a unary call, by layer, before and after what was removed."""
    before = {one["layer"]: one for one in report.get("before", [])}
    after = {one["layer"]: one for one in report["after"]}
    rows = [
        [
            cell(layer),
            f"{before[layer]['calls']:.0f}" if layer in before else "",
            f"{after[layer]['calls']:.0f}" if layer in after else "",
            f"{after[layer]['share']:.1%}" if layer in after else "",
        ]
        for layer in sorted({*before, *after}, key=lambda name: (-after.get(name, {"share": 0.0})["share"], name))
    ]
    totals = [f"{sum(one['calls'] for one in side.values()):,.0f}" for side in (before, after)]
    rows.append(["all", *totals, ""])
    return [
        "## Where a unary call spends its time",
        "",
        "`python -m benchmarks.unary_profile`: function calls of one request in the server, those of C functions",
        "included, and the share of the profiled time, by room of the server or by package. The first column is what",
        "was found before this was looked at, with logs of the standard library.",
        circumstances,
        "",
        *table(["layer", "calls before", "calls now", "share of time now"], rows),
        "",
        "What was removed:",
        "",
        "- the memory store looked at every log whenever it was asked anything; it now keeps a heap of what expires.",
        "- a unary run had a task and a transaction that created it; it is created by its first append, and what is",
        "  begun within 20 ms shares the transaction.",
        "- the interceptors put their handlers together for every call; now once for each method.",
        "- prompts that no budget bounds were counted, and types asked at run time what counters can do.",
        "- limits in memory made a task for each request; they are counted without waiting for anything.",
        "- protobuf messages were built apart and copied; they are written in place.",
        "- every run left 39 objects to the garbage collector; now none, and what stands after the start is frozen.",
        "- executions, requests and entries of a log were copied by `dataclasses.replace` six times; now once.",
        "- sizes of entries were taken when they were appended, stored and forgotten; now once.",
        "- counters that learn put their prices together for every call; the run's end was a log line of its own.",
        "- JSON-RPC watched for a client's departure from the beginning; now only in calls that take more than 30 ms.",
    ]


def jsonrpc_lines(report: Report, circumstances: str) -> list[str]:
    """Return what JSON-RPC costs beside gRPC."""
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
    """Return what many callers of a slow model get."""
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
        f"{load['calls']:,} calls a round, {load['rounds']} rounds. {circumstances}",
        "",
        *table(head, rows),
        "",
        *goal_lines(report["goals"]),
    ]


def goal_lines(goals: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the goals and how they are met."""
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
