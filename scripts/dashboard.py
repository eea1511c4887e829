"""The Grafana dashboard: rows of panels, each with Prometheus queries; `scripts.docs` writes it.

Import it into Grafana 11 (Dashboards, New, Import); Grafana then asks for the data source. The panels stand in
dashboard.toml. They have only four forms, so that a reader who understands one row understands all.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

JOB = 'job="$job"'
WINDOW = "$__rate_interval"
WIDTH, HEIGHT = 8, 7
COLUMNS = 24 // WIDTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One graph: `queries` are pairs of PromQL and legend; `unit` is the unit's name in Grafana."""

    title: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    is_stat: bool = False


def rate(metric: str, by: str) -> str:
    """Return the query for the increase of a counter per second, summed by the labels in `by`."""
    return f"sum by ({by}) (rate({metric}{{{JOB}}}[{WINDOW}]))"


def total(metric: str, by: str = "") -> str:
    """Return the query for a gauge, summed up over all instances."""
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} ({metric}{{{JOB}}})"


def quantile(share: float, metric: str, by: str = "") -> str:
    """Return the query for a quantile of a histogram."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, {rate(f'{metric}_bucket', labels)})"


def percentiles(title: str, metric: str, by: str = "", *, unit: str = "s") -> Panel:
    """Return a panel with the median and the 99th percentile of a histogram."""
    label = f" {{{{{by}}}}}" if by else ""
    queries = [(quantile(0.5, metric, by), f"p50{label}"), (quantile(0.99, metric, by), f"p99{label}")]
    return Panel(title=title, queries=queries, unit=unit)


def rates(title: str, metric: str, by: str, *, unit: str = "short") -> Panel:
    """Return a panel with the increase of a counter per second by the labels in `by`, which form the legend."""
    return Panel(title=title, queries=[(rate(metric, by), legend(by))], unit=unit)


def totals(title: str, metric: str, by: str, *, unit: str = "short") -> Panel:
    """Return a panel with a gauge by the labels in `by`, which form the legend."""
    return Panel(title=title, queries=[(total(metric, by), legend(by))], unit=unit)


def gauges(title: str, metrics: Mapping[str, str], *, is_stat: bool = False) -> Panel:
    """Return a panel with gauges, each by its legend."""
    return Panel(title=title, queries=[(total(name), shown) for shown, name in metrics.items()], is_stat=is_stat)


def legend(by: str) -> str:
    """Return the legend that shows the labels in `by`."""
    return " ".join(f"{{{{{label}}}}}" for label in by.split(", "))


FORMS: Mapping[str, Callable[..., Panel]] = {each.__name__: each for each in (rates, percentiles, totals, gauges)}


def read_panel(told: dict[str, Any]) -> Panel:
    """Return the panel that is declared as `told`."""
    facts = {name: each for name, each in told.items() if name != "form"}
    return FORMS[told["form"]](**facts) if "form" in told else Panel(**facts)


ROWS: Mapping[str, Sequence[Panel]] = {
    row["title"]: [read_panel(each) for each in row["panels"]]
    for row in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["rows"]
}


def expressions() -> Sequence[str]:
    """Return the PromQL of every panel."""
    return [query for row in ROWS.values() for panel in row for query, _ in panel.queries]


def _panel(panel: Panel, *, number: int, x: int, y: int) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + place), "expr": query, "legendFormat": legend or "__auto", "range": True}
        for place, (query, legend) in enumerate(panel.queries)
    ]
    return {
        "id": number,
        "type": "stat" if panel.is_stat else "timeseries",
        "title": panel.title,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": targets,
    }


def panels() -> Sequence[dict[str, Any]]:
    """Return the rows and panels with their positions."""
    made: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        place = {"x": 0, "y": y, "w": 24, "h": 1}
        made.append(
            {"id": len(made) + 1, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        )
        for place_in_row, panel in enumerate(row):
            below, beside = divmod(place_in_row, COLUMNS)
            made.append(_panel(panel, number=len(made) + 1, x=beside * WIDTH, y=y + 1 + below * HEIGHT))
        y += 1 + -(-len(row) // COLUMNS) * HEIGHT
    return made


def dashboard() -> str:
    """Return the dashboard as JSON that Grafana imports."""
    variables = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {
            "name": "job",
            "label": "Job",
            "type": "query",
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "query": {"query": "label_values(reasond_build_info, job)", "refId": "job"},
            "refresh": 2,
        },
    ]
    whole = {
        "title": "reasond",
        "uid": "reasond",
        "description": "Made by `make docs` from scripts/dashboard.py.",
        "tags": ["reasond"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "annotations": {"list": []},
        "panels": panels(),
    }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"
