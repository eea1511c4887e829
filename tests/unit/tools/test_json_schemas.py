"""JSON Schemas of strangers: which can be used, that checking a value by them ends, and what is said of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from reasond_server.tools.json_schemas import build_validator
from reasond_server.tools.schema_steps import SchemaUnusableError


def find(schema: dict[str, Any], value: object) -> list[str]:
    return [f"{one.field}: {one.description}" for one in build_validator(schema)(value)]


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": 7}, "is no JSON Schema: type must satisfy"),
        (
            {"properties": {"a": {"minLength": -1}}},
            "is no JSON Schema: properties.a.minLength must satisfy minimum, got -1",
        ),
        ({"$ref": "#/$defs/missing"}, "refers to '#/$defs/missing', which it does not hold"),
        ({"items": [{"type": "string"}]}, "is no JSON Schema: items"),
        ({"$ref": "http://127.0.0.1:9/x"}, "refers to 'http://127.0.0.1:9/x', which it does not hold"),
        ({"prefixItems": [{"$ref": "file:///etc/passwd"}]}, "refers to 'file:///etc/passwd'"),
        ({"$ref": "#nowhere"}, "refers to '#nowhere'"),
        ({"$dynamicRef": "#node"}, "uses $dynamicRef '#node', which is not supported: use $ref"),
        ({"items": {"$id": "http://a/b"}}, "uses $id 'http://a/b', which is not supported: one document is allowed"),
        ({"allOf": [{"$anchor": "a"}, {"$anchor": "a"}]}, "has the anchor 'a' twice"),
        ({"prefixItems": [{}], "$ref": "#/prefixItems/00"}, "refers to '#/prefixItems/00'"),
        ({"$defs": {"a/b": {}}, "$ref": "#/$defs/a%2Fb"}, "refers to '#/$defs/a%2Fb'"),
        (
            {"allOf": [{"$ref": "#/$defs/a"}] * 1001, "$defs": {"a": {}}},
            "has 1001 references, at most 1000 are allowed",
        ),
        ({"allOf": [{"pattern": "a"}] * 51}, "has 51 regular expressions, at most 50 are allowed"),
        ({"description": "x" * 65_536}, "has more than 65536 characters"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_with_the_place(schema: dict[str, Any], problem: str) -> None:
    with pytest.raises(SchemaUnusableError) as refused:
        build_validator(schema)
    assert problem in str(refused.value)


@pytest.mark.parametrize("pattern", ["^(?!a)b", "(?<=a)b", r"^(a)\1$", "((a{900}){900}){900}", "(", "a" * 60_000 + "("])
def test_a_regular_expression_that_takes_more_than_linear_time_is_refused_by_name(pattern: str) -> None:
    with pytest.raises(SchemaUnusableError) as refused:
        build_validator({"properties": {"mail": {"pattern": pattern}}})
    assert "regular expression that is not supported at properties.mail.pattern" in str(refused.value)
    assert "write it without look-around and back references" in str(refused.value)


HOSTILE = "^(a+)+$"


@pytest.mark.parametrize(
    "schema",
    [
        {"patternProperties": {HOSTILE: {}}, "additionalProperties": False},
        {"patternProperties": {HOSTILE: {}}, "unevaluatedProperties": False},
        {"allOf": [{"patternProperties": {HOSTILE: {}}}], "unevaluatedProperties": False},
        {"propertyNames": {"pattern": HOSTILE}},
        {"additionalProperties": {"pattern": HOSTILE}},
        {"not": {"patternProperties": {HOSTILE: {}}}},
        {"if": {"propertyNames": {"pattern": HOSTILE}}, "else": False},
    ],
)
def test_hostile_regular_expressions_are_evaluated_in_linear_time(schema: dict[str, Any]) -> None:
    name = "a" * 2_000
    assert find(schema, {f"{name}!": name + "!"})
    assert not find(schema, {name: name}) or "not" in schema


def test_a_regular_expression_is_not_run_over_a_text_of_any_length() -> None:
    check = build_validator({"pattern": "[ab]*a[ab]{200}c"})
    with pytest.raises(SchemaUnusableError, match="needs more than 20000 steps to check one value"):
        check("ab" * 10_000)


def test_references_within_the_schema_are_followed() -> None:
    check = build_validator({"$defs": {"n": {"type": "integer"}}, "items": {"$ref": "#/$defs/n"}})
    assert check([1, 2]) == ()
    assert [(one.field, one.description) for one in check([1, "a"])] == [("1", "must satisfy type 'integer', got 'a'")]


@pytest.mark.parametrize(
    ("schema", "wrong"),
    [
        ({"$defs": {"n": {"$anchor": "n", "type": "integer"}}, "items": {"$ref": "#n"}}, ["a"]),
        ({"$defs": {"n": {"$dynamicAnchor": "n", "type": "integer"}}, "items": {"$ref": "#n"}}, ["a"]),
        ({"$defs": {"a/b~c d": {"type": "integer"}}, "items": {"$ref": "#/$defs/a~1b~0c%20d"}}, ["a"]),
        ({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"$ref": "#/prefixItems/0"}}, [1, "a"]),
        ({"$schema": "http://127.0.0.1:9/x", "$id": "http://127.0.0.1:9/y", "type": "integer"}, "a"),
    ],
)
def test_every_way_to_refer_to_a_part_of_the_schema_leads_there(schema: dict[str, Any], wrong: object) -> None:
    assert len(find(schema, wrong)) == 1


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"not": {"$ref": "#"}},
        {"$anchor": "a", "anyOf": [{"$ref": "#a"}]},
        {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"if": {"$ref": "#/$defs/b"}}, "b": {"then": {"$ref": "#/$defs/a"}, "if": {}}},
        },
        {"dependentSchemas": {"a": {"$ref": "#"}}},
    ],
)
def test_a_schema_that_refers_to_itself_ends(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaUnusableError, match="without end"):
        build_validator(schema)(None)


def write_nested(beside: str, count: int, **extra: Any) -> dict[str, Any]:
    """Return a schema that asks for 2^count checks of one value."""
    parts = {f"d{n}": {beside: [{"$ref": f"#/$defs/d{n + 1}"}] * 2, **extra} for n in range(count)}
    return {"$defs": {**parts, f"d{count}": {"type": "object"}}, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (write_nested("allOf", 40), {}),
        (write_nested("anyOf", 40), 1),
        (write_nested("oneOf", 40), {}),
        (write_nested("allOf", 11, unevaluatedProperties=False), {"a": 1}),
        ({"items": {"enum": [f"v{n}" for n in range(5_000)]}}, ["no"] * 5_000),
        ({"items": {"anyOf": [{"minLength": n} for n in range(1_000)]}}, ["no"] * 1_000),
        ({"allOf": [{"uniqueItems": True}] * 1_000}, list(range(1_000))),
        ({"allOf": [{"multipleOf": 3}] * 1_000}, 10**4000),
        ({"items": {"multipleOf": 1e-300}}, [1e300] * 1_000),
        ({"contains": {"contains": {"const": 0}}}, [[1] * 1_000] * 100),
    ],
)
def test_a_check_that_could_take_too_long_is_refused_with_the_bound(schema: dict[str, Any], value: object) -> None:
    with pytest.raises(SchemaUnusableError, match="needs more than 20000 steps to check one value; give it fewer"):
        build_validator(schema)(value)


def test_alternatives_that_multiply_with_the_depth_of_a_value_are_refused() -> None:
    choice = [{"properties": {"a": {"$ref": "#/$defs/n"}}, "required": [name]} for name in ("x", "y")]
    check = build_validator({"$defs": {"n": {"anyOf": choice}}, "$ref": "#/$defs/n"})
    value: dict[str, Any] = {}
    for _ in range(24):
        value = {"a": value}
    with pytest.raises(SchemaUnusableError, match="needs more than 20000 steps"):
        check(value)


def test_values_that_are_too_deep_or_too_large_are_refused() -> None:
    check = build_validator({"items": {"$ref": "#"}})
    with pytest.raises(SchemaUnusableError, match="nested more than 200 levels deep"):
        check(json.loads("[" * 300 + "]" * 300))
    with pytest.raises(SchemaUnusableError, match="values of more than 4000000 characters"):
        check(["x" * 4_000_000])


def test_a_tree_of_forty_levels_is_checked() -> None:
    check = build_validator(
        {"properties": {"n": {"type": "integer"}, "below": {"items": {"$ref": "#"}}}, "required": ["n"]}
    )
    tree: dict[str, Any] = {"n": "no"}
    for _ in range(40):
        tree = {"n": 1, "below": [tree]}
    (violation,) = check(tree)
    assert violation.field == "below.0." * 40 + "n"


def test_every_check_has_the_same_number_of_steps() -> None:
    check = build_validator({"items": {"type": "integer"}})
    for _ in range(3):
        assert check([1] * 5_000) == ()


def test_a_violation_among_many_values_is_named() -> None:
    rows = [{"n": n} for n in range(1_500)]
    check = build_validator({"items": {"properties": {"n": {"type": "integer"}}}})
    assert check(rows) == ()
    assert [one.field for one in check([*rows, {"n": "a"}, {"n": "b"}])] == ["1500.n"]


def test_an_answer_that_fails_many_alternatives_is_refused_without_describing_all_of_them() -> None:
    (violation,) = build_validator(write_nested("anyOf", 10))(1)
    assert violation.description.startswith("must satisfy the schema; where it does not")


def test_equal_items_are_found_in_long_lists_of_mixed_items() -> None:
    check = build_validator({"uniqueItems": True})
    items: list[Any] = [{"n": n} if n % 2 else n for n in range(9_000)]
    assert check(items) == ()
    assert len(check([*items, {"n": 1}])) == 1


@pytest.mark.parametrize(
    ("wanted", "value", "is_right"), [(0.01, 0.07, True), (0.01, 19.99, True), (0.01, 0.075, False), (0.1, 3, True)]
)
def test_multiples_are_those_of_decimal_numbers(wanted: float, value: float, *, is_right: bool) -> None:
    assert (not find({"multipleOf": wanted}, value)) is is_right


@pytest.mark.parametrize(
    ("schema", "value", "said"),
    [
        ({"required": ["a", "b"]}, {"b": 1}, [": must have 'a'"]),
        ({"properties": {"a": False}}, {"a": 1}, ["a: must not be there, got 1"]),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"b": 1}, [": must not have 'b'; known are 'a'"]),
        ({"unevaluatedProperties": False}, {"b": 1}, [": must not have 'b'"]),
        ({"anyOf": [{"type": "string"}]}, 1, [": must satisfy anyOf [{'type': 'string'}], got 1"]),
        ({"if": {"type": "integer"}, "then": {"minimum": 5}}, 1, [": must satisfy minimum 5, got 1"]),
        ({"contains": {"const": 1}}, [2], [": must satisfy contains {'const': 1}, got [2]"]),
        ({"minContains": 2, "contains": {}}, [1], [": must satisfy contains 2, got [1]"]),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, [": must have 'b'"]),
        ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, [": must not have 'ab'; names must satisfy maxLength 1"]),
        ({"unevaluatedItems": False}, [1], [": must satisfy unevaluatedItems False, got [1]"]),
        ({"oneOf": [True, True]}, 1, [": must satisfy oneOf [True, True], got 1"]),
    ],
)
def test_what_is_wrong_is_said_in_our_words(schema: dict[str, Any], value: object, said: list[str]) -> None:
    assert find(schema, value) == said


@pytest.mark.parametrize(
    ("schema", "value", "said"),
    [
        ({"properties": {"0": {"type": "string"}}}, {"0": 1}, ["0: must satisfy type 'string', got 1"]),
        ({"additionalProperties": {"type": "string"}}, {"7": 1}, ["7: must satisfy type 'string', got 1"]),
        ({"properties": {"01": {"type": "string"}}}, {"01": 1}, ["1: must satisfy type, got 1"]),
        ({"properties": {"": {"type": "string"}}}, {"": 1}, [": must satisfy type, got 1"]),
        ({"patternProperties": {"": {"type": "string"}}}, {"a": 1}, ["a: must satisfy type, got 1"]),
        (
            {"properties": {"": {"properties": {"b": {}}, "additionalProperties": False}}},
            {"": {"a": 1}},
            [": must not have 'a'"],
        ),
        ({"$ref": "#/$defs/2026", "$defs": {"2026": {"enum": [5]}}}, 1, [": must satisfy enum [5], got 1"]),
        ({"properties": {"0": {"items": {"minimum": 5}}}}, {"0": [9, 1]}, ["0.1: must satisfy minimum 5, got 1"]),
    ],
)
def test_names_of_digits_and_empty_names_are_told_like_others(
    schema: dict[str, Any], value: object, said: list[str]
) -> None:
    assert find(schema, value) == said


def test_formats_are_not_checked() -> None:
    assert find({"format": "email"}, "no address") == []
