"""Make docs/performance.md from the figures that `make bench` wrote into benchmarks/results/."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.access_figures import access_cost_lines
from scripts.call_figures import goal_lines, jsonrpc_lines, unary_lines, upstream_wait_lines
from scripts.pages import ROOT, cell, page, table, write_or_check
from scripts.peer_figures import agent_loops_lines, history_lines, mixed_load_lines, peers_lines
from scripts.profile_figures import before_after_lines, call_profile_lines, removed_lines
from scripts.scale_figures import held_streams_lines, scale_lines
from scripts.telemetry_figures import telemetry_cost_lines
from scripts.turn_figures import suspended_lines, turn_cost_lines, turn_races_lines, turn_stalls_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_WORST = 5
PATH = Path("docs") / "performance.md"
RESULTS = Path("benchmarks") / "results"
Report = dict[str, Any]
COMPARED = {
    "unary": unary_lines,
    "jsonrpc_cost": jsonrpc_lines,
    "upstream_wait": upstream_wait_lines,
    "call_profile": call_profile_lines,
    "before_after": before_after_lines,
    "removed": removed_lines,
    "access_cost": access_cost_lines,
    "telemetry_cost": telemetry_cost_lines,
    "peers": peers_lines,
    "agent_loops": agent_loops_lines,
    "mixed_load": mixed_load_lines,
    "scale": scale_lines,
    "held_streams": held_streams_lines,
    "turn_cost": turn_cost_lines,
    "suspended": suspended_lines,
    "turn_stalls": turn_stalls_lines,
    "turn_races": turn_races_lines,
}
"""Sections that are on the page only if they were measured: they need other programs, minutes or a quiet machine."""


def circumstances(report: Report) -> str:
    """Return the sentence that names the machine and the versions of a report."""
    where = report["circumstances"]
    packages = ", ".join(f"{name} {version}" for name, version in where["packages"].items())
    machine = f"{where['processors']} processors, {where['system']} {where['machine']}, {where['python']}"
    return f"Measured on {where['date']}: {machine}, {where['event_loop']}; {packages}."


def adapter_lines(report: Report) -> list[str]:
    """Return the section about the cost of model calls."""
    lines = [
        "## Calls to a model",
        "",
        "`python -m benchmarks.adapter`: processor time of the client in microseconds, and as a share of what",
        "`create()` of the `openai` package takes in the same round; medians. The upstream is another process.",
        f"{report['rounds']} rounds, alternating. {circumstances(report)}",
        "",
    ]
    clients = list(dict.fromkeys(row["client"] for row in report["rows"]))
    rows = [[cell(what), *cells_of(report["rows"], what, clients)] for what in report["meanings"]]
    lines += [*table(["", *map(cell, clients)], rows), ""]
    lines += [f"- {what}: {meaning}." for what, meaning in report["meanings"].items()]
    goals = [
        [cell(goal["what"]), f"{goal['goal']:g}", f"{goal['ratio']:.3f}", verdict(goal)] for goal in report["goals"]
    ]
    lines += ["", *table(["goal: share of `create()`", "at most", "measured", ""], goals)]
    return [*lines, *history_lines(report)]


def cells_of(rows: Sequence[Mapping[str, Any]], what: str, clients: Sequence[str]) -> list[str]:
    """Return the cells of one row, one for each client."""
    found = {row["client"]: row for row in rows if row["what"] == what}
    return [f"{micros(found[client]['microseconds'])} ({found[client]['ratio']:.3f})" for client in clients]


def micros(value: float) -> str:
    """Return microseconds as text: one decimal place below 100, none above."""
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"  # noqa: PLR2004 - a tenth does not matter above this value


def verdict(goal: Mapping[str, Any]) -> str:
    """Return whether a goal is met."""
    return "met" if goal["ratio"] <= goal["goal"] else "missed"


def deltas_lines(report: Report) -> list[str]:
    """Return the section about the cost of streaming text to clients."""
    load = report["load"]
    pace = f"{load['streams']} streams of {load['tokens']} tokens, one every {load['gap_ms']:g} ms"
    rows = [
        [
            f"`{row['name']}`" if " = " in row["name"] else row["name"],
            f"{row['cpu_us_per_token']:.0f}",
            f"{row['ratio']:.2f}",
            f"{row['messages_per_s']:,.0f}",
            f"{row['first_text_ms']:.0f}",
        ]
        for row in report["rows"]
    ]
    head = ("", "microseconds of CPU per token", "share", "messages per second", "first text after ms")
    return [
        "## Text as it is written",
        "",
        f"`python -m benchmarks.deltas`: {pace}, over gRPC; the processor time",
        "of the whole server, with `chain_of_thought` and the model that keeps the pace. `[server] delta_flush_ms` is",
        "how long text waits to be joined: a message costs the same whatever its length. Without deltas the first text",
        "is the step itself, at the end. Alone: a grpc.aio server that passes on what the same model writes and does",
        "nothing else; that much of every figure is the model's and grpc's.",
        f"{load['rounds']} rounds, alternating. {circumstances(report)}",
        "",
        *table(head, rows),
        *_goals(report),
    ]


def log_cost_lines(report: Report) -> list[str]:
    """Return the section about the cost of storing events."""
    load = report["load"]
    batches = list(report["rows"][0]["batches"])
    rows = [
        [
            row["name"],
            *(f"{one['cpu_us_per_event']:.0f} ({one['append_ms']:.2f})" for one in row["batches"].values()),
            f"{row['both_won']} of {row['races']:,}",
        ]
        for row in report["rows"]
    ]
    return [
        "## Keeping events",
        "",
        f"`python -m benchmarks.log_cost`: steps of {load['characters']:,} characters, each to its log; the processor",
        "time of the server process per event in microseconds, its threads included, and in brackets the milliseconds",
        "until an append is committed, by events per append. The runner appends beside the runs, and what all of them",
        "have to write meanwhile goes into the next append. The last column: how often two writers both won the same",
        f"place of a log. {load['rounds']} rounds, alternating. {circumstances(report)}",
        "",
        *table(["", *(f"{batch} per append" for batch in batches), "both writers won"], rows),
    ]


def streams_lines(report: Report) -> list[str]:
    """Return the section about the cost of streams and unary calls on each store."""
    load = report["load"]
    rows = [
        [
            row["store"],
            f"{row['events_per_core_s']:,.0f}",
            f"{row['latency_p50_ms']:.1f}",
            f"{row['latency_p99_ms']:.1f}",
            f"{row['unary_cpu_us']:,.0f} ({row['unary_ratio']:.2f})",
            f"{row['unary_p50_ms']:.2f} ({row['unary_wall_ratio']:.2f})",
        ]
        for row in report["rows"]
    ]
    has_bare = "bare_ratio" in report["rows"][0]
    if has_bare:
        for cells, row in zip(rows, report["rows"], strict=True):
            cells.insert(2, f"{row['bare_ratio']:.2f}")
    head = (
        "store",
        "events per second and core",
        *(["CPU of an event, share of a bare grpc.aio message"] if has_bare else []),
        "step to client, ms, p50",
        "p99",
        "unary call, microseconds of CPU (share of memory)",
        "unary call, ms (share of memory)",
    )
    return [
        "## Streams and unary calls by store",
        "",
        f"`python -m benchmarks.streams`: over gRPC, strategies without a model. {load['flood_streams']} streams of",
        f"{load['flood_steps']} steps as fast as they come give the events per second of the server's processor time;",
        f"{load['paced_streams']} streams with a step every {load['paced_gap_ms']:g} ms give the time from the end",
        f"of a step until the client has it, its commit included; {load['unary_calls']} calls of `Reason` without",
        "request id, one after the other, wait for no commit. A PostgreSQL shares the machine.",
        f"{load['rounds']} rounds, alternating, medians. {circumstances(report)}",
        "",
        *table(head, rows),
        *_goals(report),
    ]


def slow_readers_lines(report: Report) -> list[str]:
    """Return the section about the cost of clients that do not read."""
    rows = [
        [
            one["name"],
            one["store"],
            f"{one['stalled_mib']:.2f}",
            f"{one['read_before_ms']:.0f}",
            f"{one['read_meanwhile_ms']:.0f}",
        ]
        for one in report["measures"]
    ]
    return [
        "## Clients that do not read",
        "",
        f"`python -m benchmarks.slow_readers`: {report['measures'][0]['streams']} streams of a log of 15 MiB, in",
        "events of 128 KiB, whose client is stopped by SIGSTOP after the first event. The server's resident memory per",
        "stream (goal: at most 1 MiB; what the kernel keeps for a socket is not in it), and how long another client",
        f"takes to read the whole log before and meanwhile. {circumstances(report)}",
        "",
        *table(["", "store", "MiB per stalled stream", "another's read, ms, before", "meanwhile"], rows),
    ]


def pathological_lines(report: Report) -> list[str]:
    """Return the section about health checks beside texts that are hard to read."""
    measures = [one for one in report["measures"] if one["sent_as"]]
    worst = sorted(measures, key=lambda one: -one["longest_ms"])[:_WORST]
    missed = sum(one["longest_ms"] > report["bound_ms"] for one in measures)
    rows = [
        [
            cell(one["text"]),
            one["sent_as"],
            *(f"{one[name]:.0f}" for name in ("median_ms", "longest_ms", "idle_longest_ms")),
        ]
        for one in worst
    ]
    return [
        "## Health checks beside hard texts",
        "",
        "`python -m benchmarks.pathological`: one request with each of 41 texts that are hard to read, as 2 MB of",
        "material and as a query of 100,000 characters, while another process asks `/healthz` ten times a second. The",
        "last column is an idle server that the same process asks meanwhile: it waits only for a processor. The load",
        f"of the machine went from {report['load_before']:.1f} to {report['load_after']:.1f}. {circumstances(report)}",
        f"{missed} of {len(measures)} requests missed the bound of {report['bound_ms']:g} ms; the slowest:",
        "",
        *table(["text", "sent as", "checks, ms, p50", "longest", "longest of the idle server"], rows),
    ]


def _goals(report: Report) -> list[str]:
    """Return the goals below a table; nothing if the results are older than the goals."""
    return ["", *goal_lines(report["goals"])] if "goals" in report else []


def startup_lines(report: Report) -> list[str]:
    """Return the section about start times."""
    rows = [
        [cell(one["name"]), f"{one['median']:g} {one['unit']}", f"{one['goal']:g} {one['unit']}"]
        for one in report["measures"]
    ]
    return [
        "## Starting",
        "",
        f"`python -m benchmarks.startup`, medians. {circumstances(report)}",
        "",
        *table(["", "measured", "goal: less than"], rows),
        "",
        "The growth comes with the first calls and then stops: it is what the allocator keeps of the most that runs",
        "and their logs held at once, between two looks of the collector and while the store was behind. Of the first",
        "8 MB, 3 are cyclic garbage of grpcio, 0.8 KB for each call, which the collector frees after 6,000 calls, 1 is",
        "code that is mapped when it first runs; our own values that stay are 0.3 (tracemalloc, after 160 calls).",
    ]


def elsewhere_lines() -> list[str]:
    """Return the list of pages that have the figures of the strategies."""
    context, savings = "strategies/bounded_context.md", "strategies/bounded_savings.md"
    return [
        "## Strategies",
        "",
        f"- `python -m benchmarks.bounded_vs_plain`: [bounded context against one pass]({savings}#measured).",
        f"- `python -m benchmarks.savings_table`: [where half and nine tenths are saved]({savings}).",
        f"- `python -m benchmarks.retention`: [what its carryovers keep]({context}#carryover).",
        f"- `python -m benchmarks.long_input`: [texts longer than a window, and memory]({context}#cost).",
    ]


def make_page(reports: Mapping[str, Report]) -> str:
    """Return the page; `reports` maps a report's name to the report."""
    intro = [
        "Figures of one machine, to be compared with each other and not with other machines. `make bench` measures",
        "everything again in about half an hour and writes `benchmarks/results/`; what other programs are part of is",
        "measured by `make bench-peers`, which first makes environments for them. `make docs` makes this page.",
        "[Decision 0015](decisions/0015-transport-under-create.md) says what follows from the first table.",
        "",
    ]
    parts = [
        adapter_lines(reports["adapter"]),
        deltas_lines(reports["deltas"]),
        log_cost_lines(reports["log_cost"]),
        streams_lines(reports["streams"]),
        slow_readers_lines(reports["slow_readers"]),
        *(lines(reports[name], circumstances(reports[name])) for name, lines in COMPARED.items() if name in reports),
        *([pathological_lines(reports["pathological"])] if "pathological" in reports else []),
        startup_lines(reports["startup"]),
        elsewhere_lines(),
    ]
    lines = [line for part in parts for line in (*part, "")]
    return page("Performance", "benchmarks/results/", [*intro, *lines[:-1]])


def main() -> int:
    """Write the page, or with --check compare it."""
    names = ["adapter", "deltas", "log_cost", "streams", "slow_readers", "startup"]
    names += [name for name in ("pathological", *COMPARED) if (ROOT / RESULTS / f"{name}.json").exists()]
    reports = {name: json.loads((ROOT / RESULTS / f"{name}.json").read_text(encoding="utf-8")) for name in names}
    return write_or_check({PATH: make_page(reports)}, description=__doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
