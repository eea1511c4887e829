from __future__ import annotations

import json
import re

import pytest

from scripts.docs import STRATEGY_OVERVIEW, build_cost_rows, list_built_in, make_cost_table
from scripts.pages import ROOT, fill_tables

PLACES = "# Page\n\n<!-- table: costs -->\nold\n<!-- end -->\n\nProse.\n"
GUIDE = (ROOT / STRATEGY_OVERVIEW).read_text(encoding="utf-8")
TABLES = make_cost_table(list_built_in())
NAMES = [strategy.name for strategy in list_built_in()]


def test_tables_replace_what_stood_in_their_places_and_nothing_else() -> None:
    page = fill_tables(PLACES, TABLES)
    assert "old" not in page
    assert "\nProse.\n" in page
    assert "| [chain_of_thought](chain_of_thought.md) | constant |" in page
    assert fill_tables(page, TABLES) == page


@pytest.mark.parametrize("page", ["# Page\n", PLACES + PLACES])
def test_a_table_without_exactly_one_place_is_an_error(page: str) -> None:
    with pytest.raises(ValueError, match="has markers for the tables"):
        fill_tables(page, TABLES)


def test_every_built_in_strategy_states_its_cost() -> None:
    assert len(list(build_cost_rows(list_built_in()))) == len(NAMES) >= 5
    assert not [row for row in build_cost_rows(list_built_in()) if row[1] == "not stated" or row[2] == "``"]


@pytest.mark.parametrize("name", NAMES)
def test_a_formula_names_only_parameters_that_its_strategy_has(name: str) -> None:
    (strategy,) = (each for each in list_built_in() if each.name == name)
    known = set(strategy.config_type.model_fields)
    assert set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", strategy.cost_formula)) - {"best_first"} <= known


@pytest.mark.parametrize("name", NAMES)
def test_the_comparison_has_a_row_for_every_strategy_in_every_table(name: str) -> None:
    """NFR-10: when to use, cost, latency and failure modes. A new strategy must be in each of these tables."""
    for heading in ("When to use each", "Cost", "Memory and latency"):
        section = GUIDE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
        assert re.search(rf"^\| \[?`?{name}\b", section, re.MULTILINE), (heading, name)


@pytest.mark.parametrize("name", NAMES)
def test_the_page_of_a_strategy_has_a_row_with_the_default_of_every_parameter(name: str) -> None:
    (strategy,) = (each for each in list_built_in() if each.name == name)
    page = (ROOT / STRATEGY_OVERVIEW.parent / f"{name}.md").read_text(encoding="utf-8")
    table = page.partition("| parameter | default |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| `?(.*?)`? \| .+ \|$", table, re.MULTILINE)
    shown = {parameter: json.loads(default) if is_json(default) else default for parameter, default in rows}
    defaults = strategy.config_type().model_dump(mode="json")
    assert {parameter: shown.get(parameter) for parameter in defaults} == {
        parameter: "none" if value in (None, "") else value for parameter, value in defaults.items()
    }


def is_json(text: str) -> bool:
    return bool(re.fullmatch(r"-?\d+(\.\d+)?|true|false", text))
