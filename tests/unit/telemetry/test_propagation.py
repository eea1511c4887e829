"""The trace context of a caller is read if it is well formed; any other value does no harm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.telemetry.propagation import (
    OutgoingTrace,
    TraceContext,
    build_outgoing_headers,
    parse_traceparent,
    read_trace,
    read_trace_bytes,
)

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
HEX = st.text("0123456789abcdef")
CONTEXTS = st.builds(
    TraceContext,
    trace_id=st.integers(1, 2**128 - 1).map("{:032x}".format),
    span_id=st.integers(1, 2**64 - 1).map("{:016x}".format),
    is_sampled=st.booleans(),
    state=st.sampled_from(["", "a=1", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", "t@v=x y"]),
)


@given(CONTEXTS)
def test_what_is_written_is_read_again(context: TraceContext) -> None:
    assert TraceContext.of_text(context.text) == context
    assert read_trace(context.headers.items()) == context
    assert read_trace_bytes([(key.encode(), value.encode()) for key, value in context.headers.items()]) == context


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        PARENT.upper(),
        f" {PARENT}",
        f"{PARENT} ",
        f"{PARENT}\n",
        f"{PARENT}-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-\u0660\u0661",
        f"01-{TRACE}-{SPAN}-01-{'x' * 600}",
        "0" * 1_000_000,
    ],
)
def test_what_is_not_well_formed_is_passed_over(text: str) -> None:
    assert parse_traceparent(text) is None
    assert read_trace([("traceparent", text)]) is None


@given(st.lists(st.tuples(st.sampled_from(["traceparent", "tracestate", "x"]), st.text() | st.binary() | HEX)))
def test_no_header_is_an_error(metadata: list[tuple[str, str | bytes]]) -> None:
    found = read_trace(metadata)
    assert found is None or found == TraceContext.of_text(found.text)


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    assert parse_traceparent(f"cc-{TRACE}-{SPAN}-01-what-the-future-brings") == parse_traceparent(PARENT)


def test_two_parents_are_none() -> None:
    assert read_trace([("traceparent", PARENT), ("traceparent", PARENT)]) is None


@pytest.mark.parametrize(
    "state", ["no-equals", "A=1", "a=1,a=2", "a=\x07", "a=" + "x" * 300, ",".join(f"k{i}=v" for i in range(33)), ","]
)
def test_a_bad_state_is_dropped_and_the_parent_stays(state: str) -> None:
    found = read_trace([("traceparent", PARENT), ("tracestate", state)])
    assert found is not None
    assert found.state == ""


def test_states_in_two_headers_are_one() -> None:
    found = read_trace([("traceparent", PARENT), ("tracestate", "a=1"), ("tracestate", b"b=2")])
    assert found is not None
    assert found.headers == {"traceparent": PARENT, "tracestate": "a=1,b=2"}


def test_what_is_called_is_told_while_it_lasts_and_no_longer() -> None:
    assert build_outgoing_headers() == {}
    with OutgoingTrace(parse_traceparent(PARENT)):
        assert build_outgoing_headers() == {"traceparent": PARENT}
        with OutgoingTrace(None):
            assert build_outgoing_headers() == {}
    assert build_outgoing_headers() == {}
