"""JSON Schemas of strangers: which can be used, and that checking a value by them ends."""

from __future__ import annotations

from typing import Any

import pytest

from reasond_server.tools.json_schemas import SchemaUnusableError, build_validator


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": 7}, "is no JSON Schema: type must satisfy"),
        ({"$ref": "#/$defs/missing"}, "refers to '#/$defs/missing', which it does not hold"),
        ({"items": [{"$ref": "http://127.0.0.1:9/x"}]}, "is no JSON Schema: items"),
        ({"prefixItems": [{"$ref": "file:///etc/passwd"}]}, "refers to 'file:///etc/passwd'"),
        ({"$dynamicRef": "#nowhere"}, "refers to '#nowhere'"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_with_the_place(schema: dict[str, Any], problem: str) -> None:
    with pytest.raises(SchemaUnusableError) as refused:
        build_validator(schema)
    assert problem in str(refused.value)


def test_references_within_the_schema_are_followed() -> None:
    check = build_validator({"$defs": {"n": {"type": "integer"}}, "items": {"$ref": "#/$defs/n"}})
    assert check([1, 2]) == []
    assert [(one.field, one.description) for one in check([1, "a"])] == [("1", "must satisfy type 'integer', got 'a'")]


def test_a_schema_that_refers_to_itself_ends() -> None:
    with pytest.raises(SchemaUnusableError, match="without end"):
        build_validator({"$ref": "#"})(None)


def test_a_schema_that_asks_for_an_exponential_number_of_checks_ends() -> None:
    twice = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    check = build_validator({"$defs": {**twice, "d40": {"type": "object"}}, "$ref": "#/$defs/d0"})
    with pytest.raises(SchemaUnusableError, match="needs more than 20000 steps"):
        check({})


def test_every_check_has_the_same_number_of_steps() -> None:
    check = build_validator({"items": {"type": "integer"}})
    for _ in range(3):
        assert check([1] * 10_000) == []


@pytest.mark.parametrize(
    "schema",
    [{"pattern": "^(a+)+$"}, {"patternProperties": {"^(a+)+$": False}}, {"propertyNames": {"pattern": "^(a+)+$"}}],
)
def test_regular_expressions_are_not_evaluated(schema: dict[str, Any]) -> None:
    assert build_validator(schema)("a" * 40 + "!") == []
    assert build_validator(schema)({"a" * 40 + "!": 1}) == []


def test_equal_items_are_found_in_long_lists_of_mixed_items() -> None:
    check = build_validator({"uniqueItems": True})
    items: list[Any] = [{"n": n} if n % 2 else n for n in range(9_000)]
    assert check(items) == []
    assert len(check([*items, {"n": 1}])) == 1
