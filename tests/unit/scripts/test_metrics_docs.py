"""The page of metrics has every metric, and the dashboard is one that Grafana can place."""

from __future__ import annotations

import json
from itertools import combinations

import pytest

from reasond_server.telemetry.catalogue import CATALOGUE, GROUPS
from scripts.dashboard import dashboard, expressions
from scripts.metrics_docs import PATH, filled
from scripts.pages import ROOT


def test_the_page_has_a_row_for_every_metric_and_for_no_other() -> None:
    text = (ROOT / PATH).read_text("utf-8")
    rows = [line.split("`")[1] for line in text.splitlines() if line.startswith(("| `reasond_", "| `process_"))]
    assert sorted(rows) == sorted(metric.exposed_name for metric in CATALOGUE.values())
    assert filled(text) == text


@pytest.mark.parametrize("text", ["# nothing", "<!-- metrics: Calls -->\n<!-- end -->"])
def test_a_group_without_exactly_one_place_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="has tables for"):
        filled(text)


def test_groups_hold_every_metric_once() -> None:
    assert sum(map(len, GROUPS.values())) == len(CATALOGUE)


def test_panels_have_their_own_ids_and_places_and_ask_the_chosen_source() -> None:
    made = json.loads(dashboard())
    panels = made["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        is_beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert is_beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    asked = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    assert asked == list(expressions())
    assert {panel["datasource"]["uid"] for panel in panels if panel["type"] != "row"} == {"${datasource}"}
    assert [variable["name"] for variable in made["templating"]["list"]] == ["datasource", "job"]
