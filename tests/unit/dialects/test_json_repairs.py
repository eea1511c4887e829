"""JSON as models write it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.dialects.json_repairs import read_object, scan_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": [1, 2,],}', {"a": [1, 2]}),
        ('{"a": "x,}"}', {"a": "x,}"}),
        ("{'a': None}", {"a": None}),
        ('{a: "b: c"}', {"a": "b: c"}),
        ('"{\\"a\\": 1}"', {"a": 1}),
        ('~~~json\n{"a": 1}\n~~~', {"a": 1}),
        ('\ufeff{"a": 1}', {"a": 1}),
        ('{"a": "one\ntwo"}', {"a": "one\ntwo"}),
        ("[1]", None),
        ("{", None),
        ("", None),
        ("x" * 200_001, None),
    ],
)
def test_an_object_is_read_as_it_is_meant(text: str, value: object) -> None:
    assert read_object(text) == value


def test_a_value_ends_where_its_bracket_closes() -> None:
    text = 'so {"a": "}", "b": [1]} and more'
    assert scan_value(text, 3) == ({"a": "}", "b": [1]}, 23)
    assert scan_value('{"a": [1', 0) is None


@given(st.text(alphabet="{}[]\"':,\\ab1 \n", max_size=40))
def test_no_text_breaks_the_reading(text: str) -> None:
    found = read_object(text)
    assert found is None or isinstance(found, dict)
    assert scan_value(f"{{{text}", 0) is None or text
