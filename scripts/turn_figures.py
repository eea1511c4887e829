"""The sections of docs/performance.md about turns."""

from __future__ import annotations

from typing import Any

from scripts.pages import cell, table

Report = dict[str, Any]


def turn_cost_lines(report: Report, where: str) -> list[str]:
    """Return the section about the processor time of a turn; `where` describes the machine and versions."""
    rows = [
        [
            f"{row['store']}, {row['at_once']} at once",
            *(f"{row[name]:.2f}" for name in ("react_ms", "kept_ms", "turn_ms", "over_react", "over_kept")),
        ]
        for row in report["rows"]
    ]
    ledger = [[str(row["logs"]), f"{row['us_per_call']:.0f}"] for row in report["ledger"]]
    return [
        "## A turn beside ReAct",
        "",
        "`python -m benchmarks.turn_cost`: milliseconds of processor time of six model calls and five calls of the",
        "calculator, in one process without a listener. ReAct alone waits for no commit. Resumable ReAct is streamed",
        "with `keep_running`, so that another process could go on with it, as with a turn. Goal: a turn takes at most",
        f"{report['most_ratio']:g} times as much. {report['rounds']} rounds, alternating, medians of ratios; the load",
        f"of the machine went from {report['load_before']:.1f} to {report['load_after']:.1f}. {where}",
        "",
        *table(["", "ReAct", "resumable ReAct", "turn", "turn over ReAct", "turn over resumable"], rows),
        "",
        "A turn commits twelve times: before each model call, before each tool, and at its end. In memory that costs",
        "little. With SQLite each commit of a turn that runs alone is a transaction of its own; ReAct waits for none,",
        "and turns that run at once share them.",
        "",
        "The ledger: what the two events of a tool call and their commit add, in microseconds of processor time for",
        f"each call on SQLite, by the logs that are written at once; goal: at most {report['most_ledger_us']:g}.",
        "",
        *table(["logs at once", "microseconds"], ledger),
    ]


def turn_races_lines(report: Report, where: str) -> list[str]:
    """Return the section about two resumptions at once."""
    versions = ", ".join(f"{name} {version}" for name, version in report["peers"].items())
    rows = [
        [cell(row["side"]), ", ".join(map(str, row["effects"])), f"{row['answers']} of {row['workers']}"]
        for row in report["rows"]
    ]
    return [
        "## One answer that comes twice",
        "",
        "`python -m benchmarks.turn_races`: an agent waits for the answer to a tool call; two processes on one store",
        "get it at the same time and go on. How often the tool after it ran; goal: once. pydantic-ai and",
        f"openai-agents leave the state to the caller, here a file. {where} {versions}.",
        "",
        *table(["", "runs of the next tool, by race", "workers with the answer"], rows),
    ]


def turn_stalls_lines(report: Report, where: str) -> list[str]:
    """Return the section about results of 2 MB."""
    rows = [[cell(row["step"]), f"{row['wall_ms']:.1f}", f"{row['cpu_ms']:.1f}"] for row in report["rows"]]
    return [
        "## Tool results of 2 MB",
        "",
        "`python -m benchmarks.turn_stalls`: the longest time for which the event loop stood still, in milliseconds,",
        "and how much of it at most was the process's own work: others used the machine, whose load went from",
        f"{report['load_before']:.1f} to {report['load_after']:.1f}. Goal: own work of at most",
        f"{report['most_stall_ms']:g} ms. {report['rounds']} rounds, medians; SQLite. {where}",
        "",
        "The clients of the wires are processes of their own. A message over gRPC holds one such result, one over HTTP",
        "three; five are refused over both, and the hand-off is as it was.",
        "",
        *table(["", "stall", "own work in it"], rows),
    ]


def suspended_lines(report: Report, where: str) -> list[str]:
    """Return the section about turns that wait."""
    holding = [[f"{row['count']:,} {row['what']}", row["store"], f"{row['mb']:.1f}"] for row in report["holding"]]
    resuming = [[row["store"], f"{row['p50_ms']:.0f}", f"{row['p99_ms']:.0f}"] for row in report["resuming"]]
    return [
        "## What waits",
        "",
        "`python -m benchmarks.suspended`: what suspended executions and turns add to a server's memory; the store in",
        "memory is the only one that has their logs, which for such a turn are 2.5 KB as JSON already.",
        f"Goal with SQLite: less than {report['most_mb']:g} MB for 10,000. The load of",
        f"the machine went from {report['load_before']:.1f} to {report['load_after']:.1f}. {where}",
        "",
        *table(["", "store", "MB added"], holding),
        "",
        f"The whole re-entry of a turn whose log has {report['resuming'][0]['events']:.0f} events, by a server that",
        f"has not seen it before, {report['resumed']} turns; goal: p99 below {report['most_resume_s']:g} s.",
        "",
        *table(["store", "p50, ms", "p99, ms"], resuming),
    ]
