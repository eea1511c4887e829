"""Fill the tables of benchmarks/README.md and docs/measured.md from benchmarks/results.

The text of the pages is written by hand; a table stands between `<!-- table: NAME -->` and `<!-- end -->`. What the
tables show is declared in figures.toml.
"""

from __future__ import annotations

import json
import tomllib
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
DECLARED: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


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
      rows: the field of the report that has the rows, or the name of the function in ROWS that returns them.
      is_first: whether it is the first table of its report, so that machine and goals belong to it.
    """

    report: str
    head: str
    cells: str
    rows: str = "rows"
    is_first: bool = True

    def lines(self, report: Report) -> list[str]:
        """Return the lines of the table, with the machine above and the goals below if it is the first."""
        rows = ROWS[self.rows](report) if self.rows in ROWS else report[self.rows]
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


ROWS: Final[Mapping[str, Callable[[Report], Sequence[Report]]]] = {
    each.__name__: each for each in (delta_rows, upstream_rows, path_rows, held_rows, saving_rows, search_rows)
}
TABLES: Final = {
    Path(page): {name: Table(**facts) for name, facts in tables.items()} for page, tables in DECLARED["tables"].items()
}


def read(name: str) -> Report:
    """Return what the benchmark `name` wrote."""
    report: Report = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return report


def server_lines() -> list[str]:
    """Return what the server costs: one row of each report that tells it, with the program that measured it."""
    rows = []
    for each in DECLARED["server"]:
        listed = read(each["report"])[each.get("rows", "rows")]
        found = next(row for row in listed if each["chosen"].items() <= row.items())
        rows.append([cell(each["what"]), each["told"].format_map(found), f"`{each['report']}`"])
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
