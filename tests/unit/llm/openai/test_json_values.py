from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.errors.model import ModelProtocolError
from reasond_server.llm.openai.json_values import parse_json, parse_object


def test_halves_of_characters_become_replacement_characters() -> None:
    value = {"a": ["\ud83d", "x\ude00", "\ud83d\ude00", 1, None], "\ud83d": True}
    assert parse_json(json.dumps(value).encode()) == {"a": ["\ufffd", "x\ufffd", "\U0001f600", 1, None], "\ufffd": True}


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"a": "\\ud83d"', b'"\xff"', b"[" * 5000, b'["\\ud83d",' + b"[" * 100_000, b"NaN]"]
)
def test_what_is_no_json_is_a_breach_of_protocol(data: bytes) -> None:
    with pytest.raises(ModelProtocolError, match="not JSON in UTF-8"):
        parse_json(data)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"[]", "an array"),
        (b"1", "a number"),
        (b"1.5", "a number"),
        (b"true", "true or false"),
        (b"null", "null"),
        (b'"x"', "a string"),
    ],
)
def test_valid_json_that_is_no_object_is_called_what_it_is(data: bytes, kind: str) -> None:
    with pytest.raises(ModelProtocolError, match=f"that is {kind} where an object belongs"):
        parse_object(data)


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"1" * 5000, "more than 4,300 digits"), (b"[" * 100_000 + b"]" * 100_000, "nests values too deep")],
)
def test_valid_json_that_cannot_be_read_is_not_called_something_else(data: bytes, said: str) -> None:
    with pytest.raises(ModelProtocolError, match=said):
        parse_json(data)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_a_breach_of_protocol(data: bytes) -> None:
    try:
        value = parse_json(data)
    except ModelProtocolError:
        return
    json.dumps(value).encode()
