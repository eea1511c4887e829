"""Fill the tables of docs/performance.md and docs/guides/cost.md from benchmarks/results, and draw the windows.

The text of the pages is written by hand; a table stands between `<!-- table: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.drawing import stacked_bars
from scripts.pages import ROOT, cell, fill_tables, table, write_or_check

PERFORMANCE: Final = Path("docs") / "performance.md"
COST: Final = Path("docs") / "guides" / "cost.md"
RESULTS: Final = ROOT / "benchmarks" / "results"
SAVINGS: Final = {"chunk_size": 8192, "carryover_size": 1024, "mode": "tail"}
PATHS: Final = {
    "unary": "unary call",
    "jsonrpc": "JSON-RPC call",
    "stream": "event of a stream",
    "token": "piece of text",
    "upstream": "call on a slow model",
}
FEW: Final = 10
LEAST_SHARE: Final = 0.005
MOST_NAMED: Final = 4
Report = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of the results of a benchmark.

    Attributes:
      report: the name of the file of results.
      columns: for each column its head, and the cell of a row: a format of the row's fields, or a function of the row.
      rows: the field of the report that has the rows, or a function of the report that returns them.
      is_first: whether it is the first table of its report, so that machine and goals belong to it.
    """

    report: str
    columns: Mapping[str, str | Callable[[Report], str]]
    rows: str | Callable[[Report], Sequence[Report]] = "rows"
    is_first: bool = True

    def lines(self, report: Report) -> list[str]:
        """Return the lines of the table, with the machine above and the goals below if it is the first."""
        rows = report[self.rows] if isinstance(self.rows, str) else self.rows(report)
        formats = self.columns.values()
        cells = [[cell(one.format(**row) if isinstance(one, str) else one(row)) for one in formats] for row in rows]
        lines = table([*self.columns], cells)
        if not self.is_first:
            return lines
        return [circumstances(report), "", *lines, *goal_lines(report.get("goals", ()))]


def circumstances(report: Report) -> str:
    """Return the sentences that name the machine, its load and the versions of a report."""
    where = report["circumstances"]
    packages = ", ".join(f"{name} {version}" for name, version in where["packages"].items())
    machine = f"{where['processors']} processors, {where['system']} {where['machine']}, {where['python']}"
    told = f"Measured on {where['date']}: {machine}, {where['event_loop']}; {packages}."
    if "load_before" in report:
        told += f" The load of the machine went from {report['load_before']:.1f} to {report['load_after']:.1f}."
    return told


def goal_lines(goals: Sequence[Report]) -> list[str]:
    """Return the goals and whether each is met, below an empty line; nothing without goals."""
    rows = [
        [
            cell(goal["what"].replace("_", " ")),
            f"{goal['bound']} {goal['goal']:g}" if "bound" in goal else cell(goal["goal"]),
            f"{goal['measured']:.3f}" if "bound" in goal else f"{goal['measured']:g}",
            "met" if goal["is_met"] else "missed",
        ]
        for goal in goals
    ]
    if not rows:
        return []
    head = ["goal", "", "measured", ""] if "bound" in goals[0] else ["", "goal", "measured", ""]
    return ["", *table(head, rows)]


def share(name: str) -> Callable[[Report], str]:
    """Return a function that shows the field `name` of a row as a share; nothing if it is None."""
    return lambda row: "" if row[name] is None else f"{row[name]:.2f}"


def some(name: str) -> Callable[[Report], str]:
    """Return a function that shows the field `name` of a row as a whole number; nothing if it is 0."""
    return lambda row: f"{row[name]:,.0f}" if row[name] else ""


def held_rows(report: Report) -> Sequence[Report]:
    """Return what the processes held after a third of the mix of `scale`, and at its end."""
    return [{"after": after, **report["soak"][when]} for after, when in (("a third", "early"), ("the end", "late"))]


def window_rows(report: Report) -> Sequence[Report]:
    """Return what the windows of each run hold on the average, their largest, and the tokens in all."""
    rows = []
    for run in report["runs"]:
        windows = run["windows"]
        sums = {part: sum(window[part] for window in windows) for part in windows[0]}
        means = {part: round(total / len(windows)) for part, total in sums.items()}
        largest = max(sum(window.values()) for window in windows)
        rows.append({**run, **means, "count": len(windows), "largest": largest, "total": sum(sums.values())})
    return rows


def saving_rows(report: Report) -> Sequence[Report]:
    """Return the savings of one configuration, by the length of the reasoning."""
    return [row for row in report["rows"] if SAVINGS.items() <= row.items()]


TABLES: Final[Mapping[Path, Mapping[str, Table]]] = {
    PERFORMANCE: {
        "deltas": Table(
            report="deltas",
            columns={
                "": lambda row: f"`{row['name']}`" if " = " in row["name"] else row["name"],
                "microseconds of CPU per token": "{cpu_us_per_token:.0f}",
                "share": "{ratio:.2f}",
                "messages per second": "{messages_per_s:,.0f}",
                "first text after ms": "{first_text_ms:.0f}",
            },
        ),
        "streams": Table(
            report="streams",
            columns={
                "store": "{store}",
                "events per second and core": "{events_per_core_s:,.0f}",
                "CPU of an event, share of a bare grpc.aio message": "{bare_ratio:.2f}",
                "step to client, ms, p50": "{latency_p50_ms:.1f}",
                "p99": "{latency_p99_ms:.1f}",
                "unary call, microseconds of CPU (share of memory)": "{unary_cpu_us:,.0f} ({unary_ratio:.2f})",
                "unary call, ms (share of memory)": "{unary_p50_ms:.2f} ({unary_wall_ratio:.2f})",
            },
        ),
        "unary": Table(
            report="unary",
            columns={
                "": "{side}",
                "callers": "{callers}",
                "CPU, microseconds": "{cpu_us:,.0f}",
                "calls per second": "{per_second:,.0f}",
                "p50, ms": "{p50_ms:.2f}",
                "p99": "{p99_ms:.2f}",
                "CPU, share": share("cpu_ratio"),
                "rate, share": share("rate_ratio"),
                "of": "{base}",
            },
        ),
        "jsonrpc": Table(
            report="jsonrpc_cost",
            columns={
                "": "{side}",
                "CPU, microseconds (share of gRPC)": "{cpu_us:,.0f} ({cpu_ratio:.2f})",
                "calls per second (share of gRPC)": "{per_second:,.0f} ({rate_ratio:.2f})",
                "p50, ms": "{p50_ms:.2f}",
                "p99": "{p99_ms:.2f}",
            },
        ),
        "upstream": Table(
            report="upstream_wait",
            columns={
                "": "{side}",
                "calls per second (share of the ideal)": "{per_second:.0f} ({throughput_share:.3f})",
                "p50, ms": "{p50_ms:.0f}",
                "p99": "{p99_ms:.0f}",
                "CPU of a call, microseconds": some("cpu_us"),
                "MiB resident": some("resident_mib"),
            },
        ),
        "before": Table(
            report="before_after",
            columns={
                "path": lambda row: PATHS[row["path"]],
                "before": "{before_us:,.0f}",
                "now": "{after_us:,.0f}",
                "share": "{share:.2f}",
            },
        ),
        "scale": Table(
            report="scale",
            columns={
                "workers": "{workers}",
                "calls per second of CPU": "{per_cpu_s:,.0f}",
                "over one worker": "{ratio:.2f}",
                "PostgreSQL's CPU per call, microseconds": "{database_cpu_us:,.0f}",
                "calls per second": "{per_second:,.0f}",
                "over one worker's": "{rate_ratio:.2f}",
            },
        ),
        "soak": Table(
            report="scale",
            rows=held_rows,
            is_first=False,
            columns={
                "after": "{after}",
                "resident MB": "{resident_mb:g}",
                "open files": "{files:g}",
                "threads": "{threads:g}",
            },
        ),
        "held": Table(
            report="held_streams",
            columns={
                "": "{kind}",
                "streams": "{streams:,}",
                "KiB per stream": "{kib_per_stream:.1f}",
                "KiB per stream after their end": "{after_kib_per_stream:.1f}",
                "streams that lost anything": "{lost}",
            },
        ),
        "turns": Table(
            report="turn_cost",
            columns={
                "": "{store}, {at_once} at once",
                "ReAct": "{react_ms:.2f}",
                "resumable ReAct": "{kept_ms:.2f}",
                "turn": "{turn_ms:.2f}",
                "turn over ReAct": "{over_react:.2f}",
                "turn over resumable": "{over_kept:.2f}",
            },
        ),
        "ledger": Table(
            report="turn_cost",
            rows="ledger",
            is_first=False,
            columns={"logs at once": "{logs}", "microseconds": "{us_per_call:.0f}"},
        ),
        "suspended": Table(
            report="suspended",
            rows="holding",
            columns={"": "{count:,} {what}", "store": "{store}", "MB added": "{mb:.1f}"},
        ),
        "resuming": Table(
            report="suspended",
            rows="resuming",
            is_first=False,
            columns={"store": "{store}", "p50, ms": "{p50_ms:.0f}", "p99, ms": "{p99_ms:.0f}"},
        ),
        "startup": Table(
            report="startup",
            rows="measures",
            columns={"": "{name}", "measured": "{median:g} {unit}", "goal: less than": "{goal:g} {unit}"},
        ),
    },
    COST: {
        "windows": Table(
            report="window_bars",
            rows=window_rows,
            is_first=False,
            columns={
                "run": "{run}",
                "model": "{model}",
                "C / m": "{chunk_size:,} / {carryover_size:,}",
                "windows": "{count}",
                **{part: f"{{{part}:,}}" for part in ("frame", "carryover", "material", "reply")},
                "largest window": "{largest:,}",
                "tokens in all": "{total:,}",
            },
        ),
        "savings": Table(
            report="bounded_vs_plain",
            rows=saving_rows,
            is_first=False,
            columns={
                "tokens of reasoning": "{written:,}",
                "windows": "{windows}",
                "attention": "{attention_pct:+.0f} %",
                "KV reads": "{kv_read_pct:+.0f} %",
                "largest context": "{peak_context_pct:+.0f} %",
                "tokens in and out": "{tokens_pct:+.0f} %",
            },
        ),
    },
}


def read(name: str) -> Report:
    """Return what the benchmark `name` wrote."""
    report: Report = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return report


def profile_lines(report: Report) -> list[str]:
    """Return the function calls of each path by layer, before and now, and the layers that take most of the time."""
    names = [name for name in PATHS if name in report["paths"]]
    paths = [report["paths"][name] for name in names]
    before = [{one["layer"]: one for one in path.get("before", ())} for path in paths]
    after = [{one["layer"]: one for one in path.get("after", ())} for path in paths]
    most = {layer: max(side[layer]["share"] for side in after if layer in side) for side in after for layer in side}
    shown = sorted((layer for layer in most if most[layer] >= LEAST_SHARE), key=lambda layer: (-most[layer], layer))
    gone = sorted({layer for side in before for layer in side} - set(shown))

    def changed(old: Report, new: Report, layer: str) -> str:
        if layer not in old and layer not in new:
            return ""
        calls = " → ".join(count(side[layer]["calls"]) if layer in side else "0" for side in (old, new))
        return f"{calls}, {new[layer]['share']:.0%}" if layer in new else calls

    sides = list(zip(before, after, strict=True))
    rows = [[cell(layer), *(changed(old, new, layer) for old, new in sides)] for layer in [*shown, *gone]]
    rows.append(["all", *(" → ".join(count(sum(one["calls"] for one in s.values())) for s in both) for both in sides)])
    lines = [circumstances(report), "", *table(["layer", *(PATHS[name] for name in names)], rows)]
    lines += ["", "What the time is spent on that remains:", ""]
    for name, side in zip(names, after, strict=True):
        largest = sorted(side.values(), key=lambda one: -one["share"])[:MOST_NAMED]
        told = ", ".join(f"{cell(one['layer'])} {one['share']:.0%}" for one in largest)
        lines.append(f"- {PATHS[name]}: {told}.")
    return lines


def count(calls: float) -> str:
    """Return a number of calls as text: one decimal place below 10, none above."""
    return f"{calls:.1f}" if calls < FEW else f"{calls:,.0f}"


def draw_windows(run: Report) -> str:
    """Return the picture of the windows of a run."""
    size = run["chunk_size"]
    begin = "A book is read" if run["run"] == "reading" else "Reasoning"
    return stacked_bars(
        run["windows"],
        title=f"{begin} in windows of {size:,} tokens (carryover at most {run['carryover_size']:,})",
        x_title=f"window ({run['model']}, mode {run['mode']}); tokens",
        limit=(f"limit {size:,}", size),
        y_step=size // 4,
    )


def make_pages() -> dict[Path, str]:
    """Return the pages and pictures."""
    pages = {COST.parent / f"cost_windows_{run['run']}.svg": draw_windows(run) for run in read("window_bars")["runs"]}
    for path, tables in TABLES.items():
        made = {name: each.lines(read(each.report)) for name, each in tables.items()}
        if path == PERFORMANCE:
            made["profile"] = profile_lines(read("call_profile"))
        pages[path] = fill_tables((ROOT / path).read_text(encoding="utf-8"), made)
    return pages


if __name__ == "__main__":
    sys.exit(write_or_check(make_pages(), description=(__doc__ or "").partition("\n")[0]))
