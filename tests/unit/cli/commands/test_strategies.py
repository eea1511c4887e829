from __future__ import annotations

import json

import pytest

from reasond import ListStrategiesResponse, Strategy
from reasond.v1.reasoning_service_pb2 import CostClass
from reasond_server.cli.commands.strategies import describe_range, format_strategies, to_plain

SCHEMA = {
    "properties": {
        "max_tokens": {"type": "integer", "minimum": 100, "maximum": 32768, "default": 4096},
        "mode": {"$ref": "#/$defs/Mode", "default": "tail"},
        "seed": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
    },
    "$defs": {"Mode": {"enum": ["hybrid", "tail"]}},
}
RESPONSE = ListStrategiesResponse(
    model="demo",
    warnings=["rules"],
    strategies=[
        Strategy(
            name="one",
            description="Does it\x1b.",
            is_default=True,
            config_schema_json=json.dumps(SCHEMA),
            default_config_json='{"max_tokens": 512}',
            capabilities=["reasoning.strategy.one"],
            ceilings_json='{"max_tokens": 32768}',
            cost_class=CostClass.COST_CLASS_SAMPLED,
            cost_formula="samples calls",
        ),
        Strategy(name="two", description="Plain."),
    ],
)


def test_each_strategy_has_a_table_of_parameters_with_the_defaults_that_apply() -> None:
    assert list(format_strategies(RESPONSE)) == [
        "model: demo",
        "",
        "one (default)",
        "  Does it\N{REPLACEMENT CHARACTER}.",
        "  cost: sampled; samples calls",
        "    parameter   default  range",
        "    max_tokens  512      100 to 32768 (ceiling of this server)",
        "    mode        tail     hybrid, tail",
        "    seed        -        integer",
        "",
        "two",
        "  Plain.",
    ]


def test_a_server_without_strategies_says_where_to_enable_them() -> None:
    assert "enabled_strategies" in list(format_strategies(ListStrategiesResponse(model="m")))[1]


def test_json_holds_everything_with_schemas_parsed() -> None:
    plain = to_plain(RESPONSE)
    assert plain["model"] == "demo"
    assert plain["strategies"][0]["config_schema"] == SCHEMA
    assert plain["strategies"][0]["default_config"] == {"max_tokens": 512}
    assert plain["strategies"][1]["config_schema"] == {}
    shown = [(one["ceilings"], one["cost_class"], one["cost_formula"]) for one in plain["strategies"]]
    assert shown == [({"max_tokens": 32768}, "sampled", "samples calls"), ({}, None, "")]
    json.dumps(plain)


@pytest.mark.parametrize(
    ("parameter", "words"),
    [
        ({"minimum": 1, "maximum": 2}, "1 to 2"),
        ({"minimum": 1}, "1 to -"),
        ({"anyOf": [{"minimum": 0, "maximum": 1.5}, {"type": "null"}]}, "0 to 1.5"),
        ({"enum": [1, "a"]}, "1, a"),
        ({"allOf": [{"const": "only"}]}, "only"),
        ({"type": "boolean"}, "true, false"),
        ({"type": ["string", "null"]}, "['string', 'null']"),
        ({}, ""),
    ],
)
def test_ranges_are_read_from_json_schema(parameter: dict[str, object], words: str) -> None:
    assert describe_range(parameter, {}) == words
