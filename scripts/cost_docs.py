"""Make the pictures and tables of docs/guides/cost.md from benchmarks/results, so that no figure is typed.

The page's text is written by hand; a table stands between `<!-- table: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.drawing import line_chart, stacked_bars
from scripts.pages import ROOT, fill_tables, table, write_or_check

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FOLDER = Path("docs") / "guides"
PAGE = FOLDER / "cost.md"
RESULTS = ROOT / "benchmarks" / "results"
PREVIEW_FORM = "ISS-100123"
METHODS = ("best of n", "beam, value", "best first, value", "vote")
SAVINGS_SIZES = (8192, 1024)
Report = dict[str, Any]


def read(name: str) -> Report:
    """Return what the benchmark `name` wrote."""
    report: Report = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return report


def draw_windows(run: Mapping[str, Any]) -> str:
    """Return the picture of the windows of a run."""
    size = run["chunk_size"]
    words = {
        "reading": f"A book is read in windows of {size:,} tokens (carryover at most {run['carryover_size']:,})",
        "reasoning": f"Reasoning in windows of {size:,} tokens (carryover at most {run['carryover_size']:,})",
    }
    return stacked_bars(
        run["windows"],
        title=words[run["run"]],
        x_title=f"window ({run['model']}, mode {run['mode']}); tokens",
        limit=(f"limit {size:,}", size),
        y_step=size // 4,
    )


def draw_previews(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the picture of what previews hold, by their size; dashed is the text cut off at the same size."""
    series: dict[str, list[tuple[float, float]]] = {}
    parts = {"failures": "failures", "asked": "rows asked for", "identifiers": "identifiers"}
    for way in ("preview of ", "first "):
        for part, words in parts.items():
            chosen = [row for row in rows if row["form"] == PREVIEW_FORM and row["way"].startswith(way)]
            name = words if way == "preview of " else f"{words}, cut off"
            series[name] = [(size_of(row["way"]), 100 * row[part]) for row in chosen]
    return line_chart(
        series,
        title="What a preview of 1,000 rows still holds, in per cent",
        x_title="largest size of the preview in tokens (about 500 bytes a row, identifiers like ISS-100123)",
        dashed=lambda name: name.endswith("cut off"),
        ticks=(256, 512, 1024, 2048, 4096, 8192, 16384),
    )


def size_of(way: str) -> int:
    """Return the tokens that the name of a way states; 0 if it states none."""
    found = re.fullmatch(r"(?:preview of|first) (\d+)(?: tokens)?", way)
    return int(found[1]) if found else 0


def draw_budgets(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the picture of success by budget; dashed is the weaker judge."""
    insights = sorted({row["insight"] for row in rows}, reverse=True)
    series = {
        f"{method}, {insight:g}": [
            (row["budget"], 100 * row["solved"]) for row in rows if (row["method"], row["insight"]) == (method, insight)
        ]
        for insight in insights
        for method in METHODS
        if method != "vote" or insight == insights[0]  # it asks no judge
    }
    return line_chart(
        series,
        title=f"The game of 24, solved in per cent, by how often a judge is right ({insights[0]:g} or {insights[1]:g})",
        x_title="tokens that a run may spend (scripted model of known accuracy)",
        dashed=lambda name: name.endswith(f"{insights[1]:g}"),
        ticks=sorted({row["budget"] for row in rows}),
    )


def window_rows(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of what the windows of each run hold on the average."""
    rows = []
    for run in runs:
        windows = run["windows"]
        sums = {part: sum(window[part] for window in windows) for part in windows[0]}
        largest = max(sum(window.values()) for window in windows)
        cells = [f"{round(total / len(windows)):,}" for total in sums.values()]
        sizes = f"{run['chunk_size']:,} / {run['carryover_size']:,}"
        total = sum(sums.values())
        rows.append([run["run"], run["model"], sizes, str(len(windows)), *cells, f"{largest:,}", f"{total:,}"])
    head = ["run", "model", "C / m", "windows", *runs[0]["windows"][0], "largest window", "tokens in all"]
    return table(head, rows)


def savings_rows(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of savings of one configuration by the length of the reasoning."""
    shown = [
        row for row in rows if (row["chunk_size"], row["carryover_size"]) == SAVINGS_SIZES and row["mode"] == "tail"
    ]
    figures = ("attention_pct", "kv_read_pct", "peak_context_pct", "tokens_pct")
    cells = [
        [f"{row['written']:,}", str(row["windows"]), *(f"{row[figure]:+.0f} %" for figure in figures)] for row in shown
    ]
    head = ["tokens of reasoning", "windows", "attention", "KV reads", "largest context", "tokens in and out"]
    return table(head, cells)


def preview_rows(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of the smallest preview that holds all of each part."""
    names = {"failures": "the rows with a failure", "asked": "the rows asked for", "identifiers": "every identifier"}
    cells = []
    for part, words in names.items():
        whole = [
            size_of(row["way"])
            for row in rows
            if row["form"] == PREVIEW_FORM and row["way"].startswith("preview of") and row[part] >= 1
        ]
        cut = [
            size_of(row["way"])
            for row in rows
            if row["form"] == PREVIEW_FORM and row["way"].startswith("first") and row[part] >= 1
        ]
        cells.append([words, *(f"{min(sizes):,}" if sizes else "none measured" for sizes in (whole, cut))])
    return table(["holds all of", "smallest preview, tokens", "smallest text cut off, tokens"], cells)


def budget_rows(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of success by budget, with the standard error."""
    budgets = sorted({row["budget"] for row in rows})
    found = {(row["method"], row["insight"], row["budget"]): row for row in rows}
    cells = [
        [method, f"{insight:g}", *(share_of(found[method, insight, budget]) for budget in budgets)]
        for insight in sorted({row["insight"] for row in rows}, reverse=True)
        for method in METHODS
    ]
    return table(["method", "judge right", *(f"{budget:,}" for budget in budgets)], cells)


def share_of(row: Mapping[str, Any]) -> str:
    """Return the share that was solved, with its standard error, in per cent."""
    return f"{100 * row['solved']:.0f} ± {100 * row['error']:.0f} %"


def main() -> int:
    """Write or check the page and its pictures."""
    runs, previews = read("window_bars")["runs"], read("turn_previews")["recall"]
    savings, games = read("bounded_vs_plain")["rows"], read("search_budget")["games"]["rows"]
    tables = {
        "windows": window_rows(runs),
        "savings": savings_rows(savings),
        "previews": preview_rows(previews),
        "budgets": budget_rows(games),
    }
    pages = {
        PAGE: fill_tables((ROOT / PAGE).read_text(encoding="utf-8"), tables),
        **{FOLDER / f"cost_windows_{run['run']}.svg": draw_windows(run) for run in runs},
        FOLDER / "cost_previews.svg": draw_previews(previews),
        FOLDER / "cost_budgets.svg": draw_budgets(games),
    }
    return write_or_check(pages, description=(__doc__ or "").partition("\n")[0])


if __name__ == "__main__":
    sys.exit(main())
