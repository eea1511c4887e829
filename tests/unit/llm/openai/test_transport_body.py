from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.errors.model import ModelProtocolError
from reasond_server.llm.openai.backend_options import BackendOptions
from reasond_server.llm.openai.faults import UpstreamFaultError
from reasond_server.llm.openai.transport import encode_body

OPTIONS = BackendOptions(name="main", model="m-1", base_url="https://host.example/v1", api_key="k")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
def test_what_is_sent_is_the_body_as_json(body: dict[str, Any]) -> None:
    assert json.loads(encode_body(OPTIONS, body)) == body


def test_halves_of_characters_are_sent_as_question_marks() -> None:
    assert json.loads(encode_body(OPTIONS, {"a": "x\ud83dy", "b": "NaN"})) == {"a": "x?y", "b": "NaN"}


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_none_are_refused_before_anything_is_sent(number: float) -> None:
    with pytest.raises(UpstreamFaultError, match="cannot be written as JSON") as caught:
        encode_body(OPTIONS, {"schema": {"maximum": number}})
    assert isinstance(caught.value.error, ModelProtocolError)
    assert caught.value.retries == 0
    assert not caught.value.is_unhealthy


def test_what_is_nested_too_deeply_is_refused() -> None:
    body: dict[str, Any] = {}
    for _ in range(100_000):
        body = {"a": body}
    with pytest.raises(UpstreamFaultError, match="cannot be written as JSON"):
        encode_body(OPTIONS, body)
