"""The parents of spans, and the cost of a trace that is not sampled."""

from __future__ import annotations

from opentelemetry import trace

from reasond_server.telemetry.propagation import parse_traceparent
from reasond_server.telemetry.span_export import TracingOptions
from tests.spans import Spans, ids

CALLER = parse_traceparent(f"00-{'a' * 32}-{'b' * 16}-01", "vendor=1")


def test_a_part_is_below_its_parent_and_the_state_of_vendors_goes_with_it() -> None:
    spans = Spans()
    tracing = spans.sink.tracing
    served = tracing.serve("serve", {}, caller=CALLER)
    part = tracing.part("part", {}, parent=served)
    assert part.context.trace_id == "a" * 32
    assert part.context.state == "vendor=1"
    tracing.call("call", {}, parent=part).end()
    part.end()
    served.end()
    assert spans.tree() == ["serve", ["part", ["call"]]]


def test_what_is_not_sampled_makes_no_spans_below_it() -> None:
    tracing = Spans(options=TracingOptions(sample_ratio=0.0)).sink.tracing
    served = tracing.serve("serve", {}, caller=None)
    assert tracing.part("part", {}, parent=served) is served
    assert tracing.call("call", {}, parent=served) is served
    assert served.open() is served


def test_no_span_is_in_opentelemetrys_own_context_that_libraries_pass_on() -> None:
    served = Spans().sink.tracing.serve("serve", {}, caller=None)
    assert not trace.get_current_span().get_span_context().is_valid
    served.end()


def test_a_run_may_have_a_parent_in_another_process_and_links() -> None:
    spans = Spans()
    assert CALLER is not None
    spans.sink.tracing.run("run", {}, parent=CALLER, links=[CALLER]).end()
    run = spans.one("run")
    assert ids(run)[0] == int("a" * 32, 16)
    assert [link.context.trace_id for link in run.links] == [int("a" * 32, 16)]
