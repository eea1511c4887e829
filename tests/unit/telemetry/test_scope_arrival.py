"""Which callers are trusted to name the trace of a request."""

from __future__ import annotations

import contextvars

from reasond_server.telemetry.propagation import parse_traceparent
from reasond_server.telemetry.scope import Arrival, Scope, enter, note_caller
from reasond_server.telemetry.span_export import TracingOptions
from tests.spans import Spans, ids

CALLER = parse_traceparent(f"00-{'a' * 32}-{'b' * 16}-01", "vendor=1")


def arrive(spans: Spans, scope: Scope) -> Arrival:
    return Arrival(tracing=spans.sink.tracing, scope=scope, name="serve", attributes={"one": 1})


def test_the_span_begins_when_the_request_came_and_not_when_its_caller_was_known() -> None:
    spans, scope = Spans(), Scope(trace=CALLER)
    arrival = arrive(spans, scope)
    between = spans.sink.tracing.now_ns()
    arrival.admit()
    arrival.finish().end()
    span = spans.one("serve")
    assert span.start_time is not None
    assert span.start_time <= between


def test_a_known_caller_has_its_trace_continued_and_the_work_is_below_that_span() -> None:
    spans, scope = Spans(), Scope(trace=CALLER)
    arrival = arrive(spans, scope)
    arrival.admit()
    assert scope.span is not None
    assert scope.trace == scope.span.open().context
    assert (scope.trace.trace_id, scope.trace.state) == ("a" * 32, "vendor=1")
    arrival.admit()
    assert arrival.finish() is scope.span


def test_a_stranger_gets_a_trace_of_the_servers_own_that_points_at_what_it_named() -> None:
    spans, scope = Spans(), Scope(trace=CALLER)
    arrive(spans, scope).finish().end()
    span = spans.one("serve")
    assert span.parent is None
    assert ids(span)[0] != int("a" * 32, 16)
    assert [link.context.trace_id for link in span.links] == [int("a" * 32, 16)]


def test_a_stranger_that_named_nothing_is_pointed_at_nothing() -> None:
    spans = Spans()
    arrive(spans, Scope()).finish().end()
    assert not spans.one("serve").links


def test_the_flag_of_a_stranger_keeps_no_trace_that_the_ratio_does_not() -> None:
    spans = Spans(options=TracingOptions(sample_ratio=0.0))
    arrive(spans, Scope(trace=CALLER)).finish().end()
    assert not spans.all


def test_the_room_that_knows_the_caller_need_not_know_whether_anything_is_traced() -> None:
    def note(scope: Scope | None) -> None:
        if scope is not None:
            enter(scope)
        note_caller()

    spans, scope = Spans(), Scope(trace=CALLER)
    arrive(spans, scope)
    for each in (None, Scope(), scope):
        contextvars.Context().run(note, each)
    assert scope.trace is not None
    assert (scope.trace.trace_id, scope.span is not None) == ("a" * 32, True)
