"""JSON Schemas as clients send them."""

from __future__ import annotations

from reasond_server.dialects.native_calls import drop_nulls


def test_keywords_that_are_null_are_left_out_and_values_that_may_be_null_stay() -> None:
    schema = {
        "type": "object",
        "required": None,
        "properties": {"at": {"enum": [None, 1], "default": None, "items": None}, "properties": None, "any": True},
        "anyOf": [{"title": None, "const": None}],
    }
    assert drop_nulls(schema) == {
        "type": "object",
        "properties": {"at": {"enum": [None, 1], "default": None}, "properties": {}, "any": True},
        "anyOf": [{"const": None}],
    }
    assert drop_nulls({"properties": None}) == {}
    assert drop_nulls(None) is None
