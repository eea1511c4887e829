"""Fill the table of docs/strategies/overview.md from the strategies in the code, so that neither can drift.

The page's text is written by hand; the table, each strategy's own statement of its model calls, stands between
`<!-- table: costs -->` and `<!-- end -->`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from reasond_server.reasoning.registry import STRATEGIES
from scripts.pages import ROOT, cell, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reasond_server.strategies.strategy import ReasoningStrategy

PATH = Path("docs") / "strategies" / "overview.md"
OWN_PACKAGE = "reasond_server."


def list_built_in() -> Sequence[ReasoningStrategy[Any]]:
    """Return the strategies that this package registers, by name."""
    points = [point for point in STRATEGIES.find_installed() if point.value.startswith(OWN_PACKAGE)]
    return tuple(STRATEGIES.load(sorted(point.name for point in points), installed=points))


def build_cost_rows(strategies: Sequence[ReasoningStrategy[Any]]) -> Iterator[list[str]]:
    """Yield strategy, cost class, formula and whether a run can be replayed from its recorded replies."""
    for strategy in strategies:
        kind = str(strategy.cost_class or "not stated")
        again = "yes" if strategy.is_replayable else "no"
        page = f"{strategy.name}.md"
        name = f"[{strategy.name}]({page})" if (ROOT / PATH).with_name(page).exists() else strategy.name
        yield [name, kind, cell(f"`{strategy.cost_formula}`"), again]


def make_tables(strategies: Sequence[ReasoningStrategy[Any]]) -> dict[str, list[str]]:
    """Return the lines of the page's table."""
    return {
        "costs": table(("strategy", "cost", "model calls", "replayable"), list(build_cost_rows(strategies))),
    }
