"""The page of metrics lists every metric, and Grafana can load the dashboard."""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import Any, Final

from jsonschema_rs import Draft202012Validator

from reasond_server.telemetry.catalogue import CATALOGUE, GROUPS
from scripts.dashboard import dashboard, expressions
from scripts.docs import METRICS
from scripts.pages import ROOT


def _object(required: str, optional: str = "", **properties: Any) -> dict[str, Any]:
    """Return the schema of an object with exactly these fields."""
    known: dict[str, Any] = {name: {} for name in [*required.split(), *optional.split()]}
    return {
        "type": "object",
        "required": required.split(),
        "properties": known | properties,
        "additionalProperties": False,
    }


TEXT: Final = {"type": "string", "minLength": 1}
WHOLE: Final = {"type": "integer", "minimum": 0}
SOURCE: Final = _object("type uid", type={"const": "prometheus"}, uid={"const": "${datasource}"})
# The Grafana units that we use. Grafana appends any other name to the number as a suffix.
UNITS: Final = ["short", "s", "bytes", "ops", "reqps", "percentunit"]
TARGET: Final = _object(
    "refId expr legendFormat range",
    refId={"pattern": "^[A-Z]$"},
    expr=TEXT,
    legendFormat=TEXT,
    range={"const": True},
)
PLACE: Final = _object(
    "x y w h", x={**WHOLE, "maximum": 23}, y=WHOLE, w={"minimum": 1, "maximum": 24}, h={"minimum": 1}
)
GRAPH: Final = _object(
    "id type title datasource gridPos fieldConfig targets",
    id={"type": "integer", "minimum": 1},
    type={"enum": ["timeseries", "stat"]},
    title=TEXT,
    datasource=SOURCE,
    gridPos=PLACE,
    fieldConfig=_object("defaults overrides", defaults=_object("unit", unit={"enum": UNITS})),
    targets={"type": "array", "minItems": 1, "items": TARGET},
)
ROW: Final = _object(
    "id type title collapsed gridPos panels",
    type={"const": "row"},
    title=TEXT,
    collapsed={"type": "boolean"},
    gridPos=PLACE,
    panels={"type": "array", "maxItems": 0},
)
VARIABLE: Final = _object(
    "name type query",
    "label",
    name=TEXT,
    type={"enum": ["query", "datasource"]},
    datasource=SOURCE,
    refresh={"enum": [0, 1, 2]},
)
# The part that we use of Grafana's dashboard schema (kinds/dashboard, schema version 39).
DASHBOARD: Final = _object(
    "title uid schemaVersion templating panels time",
    "description tags version editable",
    uid={"pattern": "^[a-zA-Z0-9_-]{1,40}$"},
    schemaVersion={"const": 39},
    refresh={"pattern": "^[0-9]+[smhd]$"},
    time=_object("from to"),
    templating=_object("list", list={"type": "array", "items": VARIABLE}),
    annotations=_object("list", list={"type": "array", "maxItems": 0}),
    panels={"type": "array", "items": {"oneOf": [GRAPH, ROW]}},
)


def test_the_dashboard_has_the_fields_that_grafana_knows_and_no_other() -> None:
    Draft202012Validator(DASHBOARD).validate(json.loads(dashboard()))


def test_panels_end_at_the_edge_of_the_grid_and_lie_below_their_row() -> None:
    rows = -1
    for panel in json.loads(dashboard())["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert place["y"] > rows
        rows = place["y"] if panel["type"] == "row" else rows


def test_queries_use_variables_that_are_there_and_legends_labels_that_are_left() -> None:
    made = json.loads(dashboard())
    variables = {variable["name"] for variable in made["templating"]["list"]} | {"__rate_interval"}
    for panel in made["panels"]:
        targets = panel.get("targets", ())
        assert len({target["refId"] for target in targets}) == len(targets)
        for target in targets:
            assert set(re.findall(r"\$\{?(\w+)", target["expr"])) <= variables
            left = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", target["expr"])))) or {"instance"}
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= left - {"le"}


def test_the_page_has_a_row_for_every_metric_and_for_no_other() -> None:
    text = (ROOT / METRICS).read_text("utf-8")
    rows = [line.split("`")[1] for line in text.splitlines() if line.startswith(("| `reasond_", "| `process_"))]
    assert sorted(rows) == sorted(metric.exposed_name for metric in CATALOGUE.values())


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
