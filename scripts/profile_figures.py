"""The sections of docs/performance.md about the time spent on the hot paths, and about the work removed from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scripts.pages import cell, table

if TYPE_CHECKING:
    from collections.abc import Mapping

Report = dict[str, Any]
Layers = dict[str, dict[str, Any]]
NAMES = {
    "unary": "unary call",
    "jsonrpc": "JSON-RPC call",
    "stream": "event of a stream",
    "token": "piece of text",
    "upstream": "call on a slow model",
}
FEW = 10
LEAST_SHARE = 0.005
LEAST_CHANGE = 0.025
MOST_NAMED = 4


def call_profile_lines(report: Report, where: str) -> list[str]:
    """Return the section with the function calls of each path, before and now, and the time in each layer."""
    names = [name for name in NAMES if name in report["paths"]]
    sides = {name: _sides(report["paths"][name]) for name in names}
    weights: dict[str, float] = {}
    for _, after in sides.values():
        for layer, one in after.items():
            weights[layer] = max(weights.get(layer, 0.0), one["share"])
    shown = sorted(
        (layer for layer, share in weights.items() if share >= LEAST_SHARE), key=lambda one: (-weights[one], one)
    )
    gone = sorted({layer for before, _ in sides.values() for layer in before} - set(shown))
    rows = [[cell(layer), *(_cell(*sides[name], layer) for name in names)] for layer in [*shown, *gone]]
    rows.append(["all", *(_sums(*sides[name]) for name in names)])
    return [
        "## Where calls spend their time",
        "",
        "`python -m benchmarks.call_profile`: function calls of the server, those of C functions included, by room of",
        "the server or by package: before the paths were looked at → now, and the share of the profiled time now.",
        "Before is the state of 23eb5ce, which had neither metrics nor traces. A call on a slow model is one of 100",
        f"callers' on a model that takes 200 ms; an event is one of streams of 400 steps. {where}",
        "",
        *table(["layer", *(NAMES[name] for name in names)], rows),
        "",
        "What the time is spent on that remains:",
        "",
        *(f"- {NAMES[name]}: {_remains(sides[name][1])}." for name in names),
    ]


def before_after_lines(report: Report, where: str) -> list[str]:
    """Return the section that compares each path's processor time with that of the server before the optimisation."""
    rows = [
        [NAMES[row["path"]], f"{row['before_us']:,.0f}", f"{row['after_us']:,.0f}", f"{row['share']:.2f}"]
        for row in report["rows"]
    ]
    return [
        "### What it gave",
        "",
        "`python -m benchmarks.before_after`: processor time of the server in microseconds, of the state of",
        f"{report['before']} and of today's: two processes that the same load visits in turn; the share is the median",
        f"of the ratios within a round, {report['rounds']} rounds. Today's has metrics, the earlier one had not.",
        where,
        "",
        *table(["path", "before", "now", "share"], rows),
    ]


def removed_lines(report: Report, where: str) -> list[str]:
    """Return the section that lists the work removed from the paths and the effect of each change."""
    totals = report["totals"]
    names = [name for name in NAMES if any(name in one for one in totals.values())]
    rows = [
        [cell(change["what"]), *(_gave(totals, change, name) for name in names)]
        for change in report["changes"]
        if change["before"] in totals and change["commit"] in totals
    ]
    return [
        "### What was removed",
        "",
        "`python -m benchmarks.removed`: function calls of each path that a change added or took away, the commit",
        "beside the one before it, in the order in which they were made. A run differs from the next by up to a",
        "fortieth, with how much of the work in the background falls into it: what came to less is left empty.",
        where,
        "",
        *table(["change", *(NAMES[name] for name in names)], rows),
    ]


def _sides(path: Mapping[str, Any]) -> tuple[Layers, Layers]:
    return (
        {one["layer"]: one for one in path.get("before", [])},
        {one["layer"]: one for one in path.get("after", [])},
    )


def _cell(before: Layers, after: Layers, layer: str) -> str:
    if layer not in before and layer not in after:
        return ""
    text = f"{_calls(before, layer)} → {_calls(after, layer)}"
    return f"{text}, {after[layer]['share']:.0%}" if layer in after else text


def _calls(side: Layers, layer: str) -> str:
    return _count(side[layer]["calls"]) if layer in side else "0"


def _sums(before: Layers, after: Layers) -> str:
    return " → ".join(_count(sum(one["calls"] for one in side.values())) for side in (before, after))


def _count(calls: float) -> str:
    return f"{calls:.1f}" if calls < FEW else f"{calls:,.0f}"


def _remains(after: Layers) -> str:
    largest = sorted(after.values(), key=lambda one: -one["share"])[:MOST_NAMED]
    return ", ".join(f"{cell(one['layer'])} {one['share']:.0%}" for one in largest)


def _gave(totals: Mapping[str, Mapping[str, float]], change: Mapping[str, str], name: str) -> str:
    before, after = totals[change["before"]].get(name), totals[change["commit"]].get(name)
    if before is None or after is None or abs(after - before) < before * LEAST_CHANGE:
        return ""
    return f"{after - before:+,.0f}"
