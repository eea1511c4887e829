from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.errors import ModelProtocolError
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


@pytest.mark.parametrize("data", [b"[]", b"1", b"null", b'"x"'])
def test_what_is_no_object_is_a_breach_of_protocol(data: bytes) -> None:
    with pytest.raises(ModelProtocolError):
        parse_object(data)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_a_breach_of_protocol(data: bytes) -> None:
    try:
        value = parse_json(data)
    except ModelProtocolError:
        return
    json.dumps(value).encode()
