from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.tools.json_parser import measure_json, read_json, read_strict_json

if TYPE_CHECKING:
    from collections.abc import Callable

COMMAS = "," * 100_001
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(st.text(max_size=5), inner, max_size=5)),
    max_leaves=30,
)


def lengthen(text: str) -> str:
    """Return a list that ends with `text`, and that is read in pieces because it may have very many elements."""
    return f' [ "{COMMAS}" , {text} ] '


@given(ANYTHING, st.sampled_from([None, 1]))
def test_a_long_text_is_read_as_a_short_one_is(value: Any, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    assert read_json(text) == value
    assert read_json(lengthen(text)) == [COMMAS, value]


@pytest.mark.parametrize(
    "text", ["", "[", "[1", "[1,", "[1,]", "[,1]", "{", '{"a"', '{"a":', '{"a":1', '{"a":1,}', "{1:2}", "[1]]", "nope"]
)
def test_what_is_no_json_is_refused_whatever_its_length(text: str) -> None:
    for each in (text, lengthen(text), lengthen(text.replace("1", "NaN"))):
        with pytest.raises(ValueError):
            read_json(each)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(ValueError):
        read_json("[" * 200_000)


@given(ANYTHING, st.booleans())
def test_the_strict_reader_reads_what_json_writes(value: Any, ascii_only: object) -> None:
    try:
        text = json.dumps(value, ensure_ascii=bool(ascii_only))
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return
    assert read_strict_json(text) == value
    assert read_strict_json(lengthen(text)) == [COMMAS, value]


@pytest.mark.parametrize("make", [str, lengthen])
@pytest.mark.parametrize(
    "text",
    ["", "nope", "[1]]", "NaN", "-Infinity", "[1e999]", '"\ud800"', '["\\ud800"]', '{"\\uDC00": 1}', "[" * 200_000],
)
def test_the_strict_reader_refuses_what_some_transport_cannot_carry(text: str, make: Callable[[str], str]) -> None:
    with pytest.raises(ValueError):
        read_strict_json(make(text))


def test_the_measure_of_a_value_is_near_its_length() -> None:
    value = [{"name": "word " * 20, "count": 12, "flags": [True, None]} for _ in range(50)]
    assert 0.7 < measure_json(value) / len(json.dumps(value)) < 1.3
