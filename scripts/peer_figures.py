"""The sections of docs/performance.md that compare reasond with other programs, or its strategies with each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scripts.pages import cell, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Report = dict[str, Any]


def peers_lines(report: Report, where: str) -> list[str]:
    """Return the section about the cost of a call on its way to a model; `where` describes the machine and versions."""
    rows = [
        [
            cell(row["side"]),
            f"{row['p50_ms']:.2f}",
            "" if row["side"] == "direct" else f"{row['added_p50_ms']:.2f} ({row['added_p99_ms']:.2f})",
            f"{row['per_second']:,.0f}",
            *(("", "") if row["side"] == "direct" else (f"{row['cpu_ms']:.2f}", _memory(row))),
        ]
        for row in report["rows"]
    ]
    head = (
        "",
        "p50, ms, one caller",
        "added p50 (p99), ms",
        f"calls per second, {report['callers']} callers",
        "ms of CPU per call",
        "resident MB, ready and after",
    )
    installed = [f"- {name}: {_list_versions(made)}." for name, made in report["installed"].items()]
    quoted = [
        f"- {name}, not taken in this run: {_describe_figures(figures)}." for name, figures in report["quoted"].items()
    ]
    return [
        "## Beside proxies to models",
        "",
        "`python -m benchmarks.peers`: every side in front of the same upstream, which answers at once and is another",
        "process; the same question of 2 KB and its answer of 2 KB. reasond works with `chain_of_thought`, checks",
        "the token, writes its access log, keeps executions in memory and asks the upstream for a stream; others",
        "ask for a whole answer. Added is what the side takes more than the same call straight to the upstream.",
        f"{report['rounds']} rounds, alternating, medians; goals are medians of ratios within a round. {where}",
        "",
        *table(head, rows),
        "",
        *installed,
        *quoted,
        "",
        *_goals(
            [{**goal, "what": goal["what"] + (" (quoted)" if goal["is_quoted"] else "")} for goal in report["goals"]]
        ),
        "",
        "What reasond holds when it is ready is what it imports: before all the `openai` package, gRPC, cryptography",
        "(for PyJWT) and aiohttp ([why each is there](decisions/0010-dependencies.md)).",
    ]


def _memory(row: Mapping[str, Any]) -> str:
    return f"{row['idle_mb']:.0f}, {row['loaded_mb']:.0f}"


def _list_versions(made: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    return f"{versions}; {made['megabytes']:,.0f} MB installed, {made['distributions']} distributions"


def _describe_figures(figures: Mapping[str, float]) -> str:
    return (
        f"{figures['p50_ms']:g} ms at one caller, {figures['per_second']:g} calls per second, "
        f"{figures['idle_mb']:,.0f} MB when ready, {figures['installed_mb']:,.0f} MB installed"
    )


def _goals(goals: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of goals, each with its bound."""
    rows = [
        [
            cell(goal["what"]),
            f"{'at least' if goal.get('is_at_least', True) else 'at most'} {goal['goal']:g}",
            f"{goal['ratio']:.2f}",
            "met" if goal["is_met"] else "missed",
        ]
        for goal in goals
    ]
    return table(["ratio", "goal", "measured", ""], rows)


def agent_loops_lines(report: Report, where: str) -> list[str]:
    """Return the section about the cost of a ReAct run in reasond and in other frameworks."""
    rows = [
        [
            cell(row["side"]),
            f"{row['at_once']}",
            f"{row['cpu_ms']:.2f}",
            f"{row['runs_per_core_s']:,.0f}",
            f"{row['over_grpc']:.2f}",
            f"{row['over_in_process']:.2f}",
        ]
        for row in report["rows"]
    ]
    versions = ", ".join(f"{name} {version}" for name, version in report["peers"].items())
    head = (
        "",
        "runs at once",
        "ms of CPU per run",
        "runs per second and core",
        "CPU over reasond, gRPC",
        "CPU over reasond in process",
    )
    return [
        "## Beside frameworks for agents",
        "",
        "`python -m benchmarks.agent_loops`: a ReAct run of two model calls and one tool call, on an upstream that",
        "answers at once in another process. Frameworks run in a process of their own; reasond so too, without a",
        "listener, and as `reasond serve` that is called over gRPC, its client on the other processor and not counted.",
        "The two model calls alone, streamed, by the client under reasond's adapter and by bare aiohttp, tell how much",
        "of a run is theirs ([decision 0015](decisions/0015-transport-under-create.md) says why the first is kept).",
        f"{report['rounds']} rounds, alternating, medians. {where} Peers: {versions}.",
        "",
        *table(head, rows),
        "",
        *_goals([{**goal, "what": f"CPU of {goal['what']}, over reasond's through gRPC"} for goal in report["goals"]]),
    ]


def mixed_load_lines(report: Report, where: str) -> list[str]:
    """Return the section about strategies that run at the same time."""
    rows = [
        [
            f"`{row['strategy']}`",
            f"{row['runs_per_s']:.2f}",
            f"{row['model_calls_per_run']:.1f}",
            f"{row['p50_ms']:,.0f}",
            f"{row['p99_ms']:,.0f}",
            f"{row['alone_p50_ms']:,.0f}",
            f"{row['slowdown']:.2f}",
            f"{row['least_share']:.2f}",
            f"{row['errors']}",
        ]
        for row in report["rows"]
    ]
    head = (
        "",
        "runs per second",
        "model calls per run",
        "p50, ms",
        "p99, ms",
        "p50 alone, ms",
        "slowdown",
        "least share",
        "errors",
    )
    goals = [
        [cell(goal["what"]), goal["goal"], f"{goal['value']:g}", "met" if goal["is_met"] else "missed"]
        for goal in report["goals"]
    ]
    return [
        "## All strategies at once",
        "",
        f"`python -m benchmarks.mixed_load`: {report['callers']} callers share a server for {report['seconds']:g} s,",
        "an equal part of them for each strategy, one run after the other, with a model in another process that takes",
        "20 ms per call and executions in a SQLite file. Slowdown: the median time of a run over that of the same",
        "callers when they have the server to themselves. Least share: runs of the caller who got fewest over the",
        f"median of the strategy's callers. {where}",
        "",
        *table(head, rows),
        "",
        *table(["", "goal", "measured", ""], goals),
    ]


def history_lines(report: Report) -> list[str]:
    """Return the lines about the cost of a long history; nothing if the report is older than that measurement."""
    goal = report.get("history_goal")
    if goal is None:
        return []
    rows = [[cell(one["client"]), f"{one['ratio']:.2f}", f"{one['unsent_ratio']:.2f}"] for one in report["history"]]
    verdict = "met" if goal["ratio"] <= goal["goal"] else "missed"
    return [
        "",
        "The processor time of a call with 100 messages over one with 2. The goal for reasond is a conversation that",
        f"goes on, as agents have them: at most {goal['goal']:g}, measured {goal['ratio']:.2f}, {verdict}.",
        "",
        *table(["", "98 sent before, 2 new", "none sent before"], rows),
    ]
