"""Fill the tables of benchmarks/README.md and docs/measured.md from benchmarks/results.

The text of the pages is written by hand; a table stands between `<!-- table: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any, Final

from scripts.pages import ROOT, cell, fill_tables, table

PERFORMANCE: Final = Path("benchmarks") / "README.md"
MEASURED: Final = Path("docs") / "measured.md"
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
SHOWN_BUDGET: Final = 25
SEARCHES: Final = ("greedy", "best of n", "refine_beam", "lats")
Report = Mapping[str, Any]
# What stands on the page, the report, its list, the row that is meant, and the words for it.
SERVER: Final[Sequence[tuple[str, str, str, Report, str]]] = (
    (
        "a unary call over gRPC, 16 callers",
        "unary",
        "rows",
        {"side": "memory", "callers": 16},
        "{cpu_us:,.0f} µs of processor time, {per_second:,.0f} calls a second",
    ),
    (
        "the same over JSON-RPC",
        "wire_cost",
        "rows",
        {"side": "JSON-RPC"},
        "{cpu_us:,.0f} µs, {per_second:,.0f} calls a second",
    ),
    *(
        (
            f"an event of a stream, executions in {store}",
            "streams",
            "rows",
            {"store": store},
            "{events_per_core_s:,.0f} a second and core; read after {latency_p50_ms:.1f} ms, p99 {latency_p99_ms:.1f}",
        )
        for store in ("memory", "SQLite", "PostgreSQL")
    ),
    (
        "a piece of text, joined for 30 ms",
        "deltas",
        "rows",
        {"name": "delta_flush_ms = 30"},
        "{cpu_us_per_token:.0f} µs a token, first text after {first_text_ms:.0f} ms",
    ),
    (
        "100 callers of a model that takes 200 ms",
        "upstream_wait",
        "rows",
        {"side": "reasond"},
        "{throughput_share:.0%} of the ideal rate; p50 {p50_ms:.0f} ms, p99 {p99_ms:.0f} ms",
    ),
    (
        "two workers over one, a PostgreSQL beside them",
        "scale",
        "rows",
        {"workers": 2},
        "{rate_ratio:.2f} times the calls",
    ),
    ("an idle stream, of 5,000", "held_streams", "rows", {"kind": "idle"}, "{kib_per_stream:.0f} KiB"),
    (
        "a turn over ReAct for the same calls, SQLite, 16 at once",
        "turn_cost",
        "rows",
        {"store": "SQLite", "at_once": 16},
        "{over_react:.2f} times the processor time",
    ),
    (
        "10,000 suspended turns in SQLite",
        "suspended",
        "holding",
        {"what": "turns", "store": "SQLite"},
        "{mb:.1f} MB of memory",
    ),
    (
        "a turn of 201 events goes on elsewhere, PostgreSQL",
        "suspended",
        "resuming",
        {"store": "PostgreSQL"},
        "p50 {p50_ms:.0f} ms, p99 {p99_ms:.0f} ms",
    ),
    (
        "`reasond serve --dev` is ready",
        "startup",
        "measures",
        {"name": "`reasond serve --dev`, from process start to ready"},
        "after {median:g} {unit}",
    ),
    ("memory when ready", "startup", "measures", {"name": "resident memory when ready"}, "{median:.0f} {unit}"),
    (
        "growth over the second 10,000 calls, with SQLite",
        "startup",
        "measures",
        {"name": "growth over the next 10,000 calls, with SQLite"},
        "{median:.1f} {unit}",
    ),
)


class _Cells(Formatter):
    """Formats the cells of a row; a value that is None gives an empty text."""

    def format_field(self, value: object, format_spec: str) -> str:
        """Return the text of one value."""
        return "" if value is None else cell(format(value, format_spec))


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the results of a benchmark.

    Attributes:
      report: the name of the file of results.
      head: the heads of the columns.
      cells: the formats of the cells of a row, with the row's fields.
      rows: the field of the report that has the rows, or a function of the report that returns them.
      is_first: whether it is the first table of its report, so that machine and goals belong to it.
    """

    report: str
    head: str
    cells: str
    rows: str | Callable[[Report], Sequence[Report]] = "rows"
    is_first: bool = True

    def lines(self, report: Report) -> list[str]:
        """Return the lines of the table, with the machine above and the goals below if it is the first."""
        rows = report[self.rows] if isinstance(self.rows, str) else self.rows(report)
        cells = [_Cells().vformat(self.cells, (), row).split(" | ") for row in rows]
        lines = table(self.head.split(" | "), cells)
        return [circumstances(report), "", *lines, *goal_lines(report.get("goals", ()))] if self.is_first else lines


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


def delta_rows(report: Report) -> Sequence[Report]:
    """Return the rows of `deltas`; a setting is code."""
    return [{**row, "name": f"`{row['name']}`" if " = " in row["name"] else row["name"]} for row in report["rows"]]


def upstream_rows(report: Report) -> Sequence[Report]:
    """Return the rows of `upstream_wait`; what was not measured, and stands there as 0, is None."""
    return [{name: value or None for name, value in row.items()} for row in report["rows"]]


def path_rows(report: Report) -> Sequence[Report]:
    """Return the rows of `before_after` with their paths in words."""
    return [{**row, "path": PATHS[row["path"]]} for row in report["rows"]]


def held_rows(report: Report) -> Sequence[Report]:
    """Return what the processes held after a third of the mix of `scale`, and at its end."""
    return [{"after": after, **report["soak"][when]} for after, when in (("a third", "early"), ("the end", "late"))]


def saving_rows(report: Report) -> Sequence[Report]:
    """Return the savings of one configuration, by the length of the reasoning."""
    return [row for row in report["rows"] if SAVINGS.items() <= row.items()]


def search_rows(report: Report) -> Sequence[Report]:
    """Return the share of cases that each search of repairs solved with 25 candidates, by faults and accuracy."""
    shares: dict[str, dict[str, Any]] = {}
    for row in report["rows"]:
        if row["budget"] == SHOWN_BUDGET and row["method"] in SEARCHES:
            name = row["method"].upper().replace(" ", "_")
            shares.setdefault(name, {"search": name})[f"of_{row['faults']}_{row['accuracy'] * 100:.0f}"] = row["solved"]
    return list(shares.values())


TABLES: Final[Mapping[Path, Mapping[str, Table]]] = {
    PERFORMANCE: {
        "deltas": Table(
            "deltas",
            " | microseconds of CPU per token | share | messages per second | first text after ms",
            "{name} | {cpu_us_per_token:.0f} | {ratio:.2f} | {messages_per_s:,.0f} | {first_text_ms:.0f}",
            delta_rows,
        ),
        "streams": Table(
            "streams",
            "store | events per second and core | CPU of an event, share of a bare grpc.aio message"
            " | step to client, ms, p50 | p99"
            " | unary call, microseconds of CPU (share of memory) | unary call, ms (share of memory)",
            "{store} | {events_per_core_s:,.0f} | {bare_ratio:.2f} | {latency_p50_ms:.1f} | {latency_p99_ms:.1f}"
            " | {unary_cpu_us:,.0f} ({unary_ratio:.2f}) | {unary_p50_ms:.2f} ({unary_wall_ratio:.2f})",
        ),
        "unary": Table(
            "unary",
            " | callers | CPU, microseconds | calls per second | p50, ms | p99 | CPU, share | rate, share | of",
            "{side} | {callers} | {cpu_us:,.0f} | {per_second:,.0f} | {p50_ms:.2f} | {p99_ms:.2f}"
            " | {cpu_ratio:.2f} | {rate_ratio:.2f} | {base}",
        ),
        "jsonrpc": Table(
            "wire_cost",
            " | CPU, microseconds (share of gRPC) | calls per second (share of gRPC) | p50, ms | p99",
            "{side} | {cpu_us:,.0f} ({cpu_ratio:.2f}) | {per_second:,.0f} ({rate_ratio:.2f}) | {p50_ms:.2f}"
            " | {p99_ms:.2f}",
        ),
        "upstream": Table(
            "upstream_wait",
            " | calls per second (share of the ideal) | p50, ms | p99 | CPU of a call, microseconds | MiB resident",
            "{side} | {per_second:.0f} ({throughput_share:.3f}) | {p50_ms:.0f} | {p99_ms:.0f}"
            " | {cpu_us:,.0f} | {resident_mib:,.0f}",
            upstream_rows,
        ),
        "balancing": Table(
            "balancing",
            " | at the busy server | failed | p50, ms | p99 | p99, share of the ideal",
            "{policy} | {busy_share:.1%} | {failed} | {p50_ms:.0f} | {p99_ms:.0f} | {of_ideal:.2f}",
        ),
        "before": Table(
            "before_after",
            "path | before | now | share",
            "{path} | {before_us:,.0f} | {after_us:,.0f} | {share:.2f}",
            path_rows,
        ),
        "scale": Table(
            "scale",
            "workers | calls per second of CPU | over one worker | PostgreSQL's CPU per call, microseconds"
            " | calls per second | over one worker",
            "{workers} | {per_cpu_s:,.0f} | {ratio:.2f} | {database_cpu_us:,.0f} | {per_second:,.0f}"
            " | {rate_ratio:.2f}",
        ),
        "soak": Table(
            "scale",
            "after | resident MB | open files | threads",
            "{after} | {resident_mb:g} | {files:g} | {threads:g}",
            held_rows,
            is_first=False,
        ),
        "held": Table(
            "held_streams",
            " | streams | KiB per stream | KiB per stream after their end | streams that lost anything",
            "{kind} | {streams:,} | {kib_per_stream:.1f} | {after_kib_per_stream:.1f} | {lost}",
        ),
        "turns": Table(
            "turn_cost",
            " | ReAct | resumable ReAct | turn | turn over ReAct | turn over resumable",
            "{store}, {at_once} at once | {react_ms:.2f} | {kept_ms:.2f} | {turn_ms:.2f} | {over_react:.2f}"
            " | {over_kept:.2f}",
        ),
        "ledger": Table(
            "turn_cost", "logs at once | microseconds", "{logs} | {us_per_call:.0f}", "ledger", is_first=False
        ),
        "suspended": Table("suspended", " | store | MB added", "{count:,} {what} | {store} | {mb:.1f}", "holding"),
        "resuming": Table(
            "suspended",
            "store | p50, ms | p99, ms",
            "{store} | {p50_ms:.0f} | {p99_ms:.0f}",
            "resuming",
            is_first=False,
        ),
        "startup": Table(
            "startup",
            " | measured | goal: less than",
            "{name} | {median:g} {unit} | {goal:g} {unit}",
            "measures",
        ),
    },
    MEASURED: {
        "savings": Table(
            "bounded_vs_plain",
            "tokens of reasoning | windows | attention | KV reads | largest context | tokens in and out",
            "{written:,} | {windows} | {attention_pct:+.0f} % | {kv_read_pct:+.0f} % | {peak_context_pct:+.0f} %"
            " | {tokens_pct:+.0f} %",
            saving_rows,
            is_first=False,
        ),
        "repairs": Table(
            "repair_search",
            "search | one fault, 0.05 | 0.2 | two faults, 0.05 | 0.2",
            "`{search}` | {of_1_5:.1%} | {of_1_20:.1%} | {of_2_5:.1%} | {of_2_20:.1%}",
            search_rows,
            is_first=False,
        ),
    },
}


def read(name: str) -> Report:
    """Return what the benchmark `name` wrote."""
    report: Report = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return report


def server_lines() -> list[str]:
    """Return what the server costs: one row of each report that tells it, with the program that measured it."""
    rows = []
    for what, name, part, chosen, told in SERVER:
        found = next(row for row in read(name)[part] if chosen.items() <= row.items())
        rows.append([cell(what), told.format_map(found), f"`{name}`"])
    return table(["", "measured", "`python -m benchmarks.…`"], rows)


def profile_lines(report: Report) -> list[str]:
    """Return the function calls of each path by layer with its share of the time, the layers that take most first."""
    paths = {name: {one["layer"]: one for one in path["layers"]} for name, path in report["paths"].items()}
    most = {
        layer: max(side[layer]["share"] for side in paths.values() if layer in side)
        for side in paths.values()
        for layer in side
    }
    shown = sorted((layer for layer in most if most[layer] >= LEAST_SHARE), key=lambda layer: (-most[layer], layer))
    rows = [
        [
            cell(layer),
            *(
                f"{count(side[layer]['calls'])}, {side[layer]['share']:.0%}" if layer in side else ""
                for side in paths.values()
            ),
        ]
        for layer in shown
    ]
    rows.append(["all", *(count(sum(one["calls"] for one in side.values())) for side in paths.values())])
    return [circumstances(report), "", *table(["layer", *(PATHS[name] for name in paths)], rows)]


def count(calls: float) -> str:
    """Return a number of calls as text: one decimal place below 10, none above."""
    return f"{calls:.1f}" if calls < FEW else f"{calls:,.0f}"


def make_pages() -> dict[Path, str]:
    """Return the pages."""
    pages = {}
    for path, tables in TABLES.items():
        made = {name: each.lines(read(each.report)) for name, each in tables.items()}
        if path == PERFORMANCE:
            made["profile"] = profile_lines(read("call_profile"))
        if path == MEASURED:
            made["server"] = server_lines()
        pages[path] = fill_tables((ROOT / path).read_text(encoding="utf-8"), made)
    return pages
