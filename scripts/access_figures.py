"""The section of docs/performance.md about what tokens, limits and budgets cost a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scripts.pages import cell, table

if TYPE_CHECKING:
    from collections.abc import Mapping

Report = dict[str, Any]


def access_cost_lines(report: Report, where: str) -> list[str]:
    """Return the section about the cost of access control on both wires; `where` describes the machine and versions."""
    wires = list(dict.fromkeys(row["wire"] for row in report["rows"]))
    found = {(row["server"], row["wire"]): row for row in report["rows"]}
    names = list(dict.fromkeys(row["server"] for row in report["rows"]))
    trips = report["round_trips"]
    rows = [
        [cell(name), *(_cost(found[name, wire]) for wire in wires), f"{trips[name]:g}" if name in trips else ""]
        for name in names
    ]
    goals = [
        [cell(goal["what"]), f"{goal['goal']:g}", f"{goal['measured']:g}", "met" if goal["is_met"] else "missed"]
        for goal in report["goals"]
    ]
    load = report["load"]
    return [
        "## Tokens, limits and budgets",
        "",
        "`python -m benchmarks.access_cost`: processor time of the server for a call on a model that answers at once,",
        "in microseconds, and as a share of the same call on a server that looks at no token and limits nothing",
        "(least and most of the rounds). Every row does what those above it do; in memory where Redis is not named. A",
        "round trip is what one call asks Redis, with the one at its end for which nobody waits.",
        f"{report['rounds']} rounds of {load.get('turns', 1)} turns of {load['calls']} calls by {load['callers']}",
        f"callers: a round has new servers, each turn compared with the same turn of the open server. {where}",
        "",
        *table(["", *map(cell, wires), "round trips"], rows),
        "",
        *table(["goal", "at most", "measured", ""], goals),
    ]


def _cost(row: Mapping[str, Any]) -> str:
    return f"{row['cpu_us']:,.0f}, {row['ratio']:.2f} ({row['least']:.2f}-{row['most']:.2f})"
