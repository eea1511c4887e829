"""Steps of a check by a schema: what counts, and how often."""

from __future__ import annotations

from typing import Any

import pytest

from reasond_server.tools.schema_steps import SchemaUnusableError, StepCounter

TYPED = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "value", "steps"),
    [
        (TYPED, 1, 2),
        ({"enum": ["a", "b", "c"]}, 1, 5),
        ({"anyOf": [TYPED, TYPED]}, 1, 5),
        ({"$defs": {"t": TYPED}, "$ref": "#/$defs/t"}, 1, 4),
        ({"properties": {"a": TYPED, "b": TYPED}}, {"a": 1}, 3),
        ({"properties": {"a": TYPED}, "additionalProperties": TYPED}, {"a": 1, "b": 1, "c": 1}, 7),
        ({"prefixItems": [TYPED], "items": TYPED}, [1, 1], 7),
        ({"items": TYPED, "contains": TYPED}, [1, 1, 1], 13),
        ({"propertyNames": TYPED}, {"a": 1, "b": 1}, 5),
        ({"anyOf": [True, False], "unevaluatedProperties": False}, {"a": 1}, 10),
        ({"uniqueItems": True}, [[1], [2]], 7),
        ({"pattern": "a"}, "aaaa", 10),
        ({"description": "x" * 5_000, "default": [1] * 100, "type": "string"}, 1, 2),
        (TYPED, "x" * 3_500, 8),
    ],
)
def test_every_keyword_that_could_be_evaluated_counts(schema: dict[str, Any], value: object, steps: int) -> None:
    assert StepCounter(schema).count(value) == steps


def test_a_count_stops_at_its_bound() -> None:
    counter = StepCounter({"items": TYPED}, max_steps=10)
    assert counter.count([1] * 4) == 9
    with pytest.raises(SchemaUnusableError, match="needs more than 10 steps"):
        counter.count([1] * 5)
    assert counter.count([1] * 4) == 9
