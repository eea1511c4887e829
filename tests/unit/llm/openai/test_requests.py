from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.errors import ModelProtocolError
from reasond_server.llm.openai.faults import UpstreamFaultError
from reasond_server.llm.openai.options import BackendOptions
from reasond_server.llm.openai.requests import RequestWriter, encoded
from reasond_server.telemetry.propagation import OutgoingTrace, TraceContext

OPTIONS = BackendOptions(name="main", model="m-1", base_url="https://host.example/v1", api_key="k")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
def test_what_is_sent_is_the_body_as_json(body: dict[str, Any]) -> None:
    assert json.loads(encoded(OPTIONS, body)) == body


def test_halves_of_characters_are_sent_as_question_marks() -> None:
    assert json.loads(encoded(OPTIONS, {"a": "x\ud83dy", "b": "NaN"})) == {"a": "x?y", "b": "NaN"}


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_none_are_refused_before_anything_is_sent(number: float) -> None:
    with pytest.raises(UpstreamFaultError, match="cannot be written as JSON") as caught:
        encoded(OPTIONS, {"schema": {"maximum": number}})
    assert isinstance(caught.value.error, ModelProtocolError)
    assert caught.value.retries == 0
    assert not caught.value.is_unhealthy


def test_what_is_nested_too_deeply_is_refused() -> None:
    body: dict[str, Any] = {}
    for _ in range(100_000):
        body = {"a": body}
    with pytest.raises(UpstreamFaultError, match="cannot be written as JSON"):
        encoded(OPTIONS, body)


async def test_credentials_in_the_address_become_a_header_and_leave_the_address() -> None:
    options = BackendOptions(name="main", model="m-1", base_url="https://me:secret@host.example/v1")
    writer = RequestWriter(options=options)
    made = await writer.written("chat/completions", {"model": "m-1"})
    assert made.url == "https://host.example/v1/chat/completions"
    assert made.headers["authorization"].startswith("Basic ")
    assert "secret" not in str(made)
    await writer.aclose()


async def test_each_address_is_written_once_and_each_call_adds_its_own_headers() -> None:
    writer = RequestWriter(options=OPTIONS)
    one = await writer.written("chat/completions", {"model": "m-1"})
    assert await writer.written("chat/completions", {"model": "m-1"}) is one
    assert (await writer.written("/tokenize", {"content": "x"})).url == "https://host.example/tokenize"
    with OutgoingTrace(TraceContext(trace_id="1" * 32, span_id="2" * 16, is_sampled=True)):
        now = one.headers_now(keeps=False)
    assert now["connection"] == "close"
    assert now["traceparent"].startswith("00-1111")
    assert one.headers_now(keeps=True) == {**one.headers, "connection": "keep-alive"}
    await writer.aclose()


async def test_an_address_that_no_request_can_be_made_for_is_a_fault_that_is_not_tried_again() -> None:
    writer = RequestWriter(options=OPTIONS)
    with pytest.raises(UpstreamFaultError, match="no address") as caught:
        await writer.written("x" * 70_000, {"model": "m-1"})
    assert caught.value.retries == 0
    await writer.aclose()
