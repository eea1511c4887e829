"""Fill the tables of docs/operations/metrics.md from the catalogue of metrics, and write the Grafana dashboard.

The page's text is written by hand; a table stands between `<!-- metrics: GROUP -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from reasond_server.telemetry.catalogue import GROUPS
from scripts.dashboard import dashboard
from scripts.pages import ROOT, cell, table, write_or_check

if TYPE_CHECKING:
    from reasond_server.telemetry.catalogue import Metric

PATH = Path("docs") / "operations" / "metrics.md"
DASHBOARD = Path("docs") / "operations" / "grafana-dashboard.json"
MARKED = re.compile(r"(?P<start><!-- metrics: (?P<group>[A-Za-z ]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)
HEAD = ("metric", "kind", "labels", "what it tells")


def row(metric: Metric) -> list[str]:
    """Return the row of a metric."""
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return [f"`{metric.exposed_name}`", metric.kind, labels, cell(metric.meaning)]


def fill_tables(text: str) -> str:
    """Return `text` with its tables generated again.

    Raises:
      ValueError: a group has no marker in the page, or a marker names no group.
    """
    places = [match["group"] for match in MARKED.finditer(text)]
    if sorted(places) != sorted(GROUPS):
        raise ValueError(f"{PATH} has tables for {places}, the catalogue has {[*GROUPS]}")

    def make_table(match: re.Match[str]) -> str:
        lines = table(HEAD, [row(metric) for metric in GROUPS[match["group"]]])
        return match["start"] + "\n".join(["", *lines, "", match["end"]])

    return MARKED.sub(make_table, text)


def main() -> int:
    """Fill the page and write the dashboard, or with --check compare them."""
    text = (ROOT / PATH).read_text(encoding="utf-8")
    return write_or_check({PATH: fill_tables(text), DASHBOARD: dashboard()}, description=__doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
