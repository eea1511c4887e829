"""Fill the tables of docs/operations/metrics.md from the catalogue of metrics, and write the Grafana dashboard.

The page's text is written by hand; a table stands between `<!-- table: GROUP -->` and `<!-- end -->`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from reasond_server.telemetry.catalogue import GROUPS
from scripts.dashboard import dashboard
from scripts.pages import cell, fill_page, table

if TYPE_CHECKING:
    from reasond_server.telemetry.catalogue import Metric

PATH = Path("docs") / "operations" / "metrics.md"
DASHBOARD = Path("docs") / "operations" / "grafana-dashboard.json"
HEAD = ("metric", "kind", "labels", "what it tells")


def row(metric: Metric) -> list[str]:
    """Return the row of a metric."""
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return [f"`{metric.exposed_name}`", metric.kind, labels, cell(metric.meaning)]


def make_pages() -> dict[Path, str]:
    """Return the page, and the dashboard."""
    tables = {name: table(HEAD, [row(metric) for metric in group]) for name, group in GROUPS.items()}
    return {**fill_page(PATH, tables), DASHBOARD: dashboard()}
