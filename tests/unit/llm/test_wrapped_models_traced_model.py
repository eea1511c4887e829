import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import replace

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from reasond_server.demo import DemoModel
from reasond_server.errors.model import ModelUnavailableError
from reasond_server.llm.model import ChatModel, ChatRequest, Finished, Message, ModelEvent, Role
from reasond_server.llm.wrapped_models import TracedModel, trace_model
from reasond_server.telemetry.propagation import build_outgoing_headers, parse_traceparent
from reasond_server.telemetry.scope import Scope, enter
from reasond_server.telemetry.span_export import TracingOptions
from reasond_server.testing import Reply, ScriptedModel
from tests.spans import Spans, attributes_of, ids

ASK = ChatRequest(messages=[Message(role=Role.USER, content="a secret question")], max_tokens=50, stop=["</answer>"])


async def span_of(model: ChatModel, *, has_content: bool = False) -> ReadableSpan:
    """Play one call and return its span."""
    spans = Spans(options=TracingOptions(has_content=has_content))
    one = TracedModel(model=model, tracing=spans.sink.tracing)
    async with aclosing(one.stream(ASK)) as events:
        with suppress(ModelUnavailableError):
            async for _ in events:
                pass
    return spans.one("chat")


class Dropping(ScriptedModel):
    """A model that leaves a parameter out and reports it."""

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        async with aclosing(super().stream(request)) as events:
            async for event in events:
                yield replace(event, warnings=("stop was left out",)) if isinstance(event, Finished) else event


async def test_a_call_has_a_span_with_what_was_asked_spent_and_left_out_but_no_content() -> None:
    span = await span_of(Dropping(["forty-two"]))
    attributes = dict(span.attributes or {})
    assert span.name == "chat scripted"
    assert attributes["gen_ai.request.max_tokens"] == 50
    assert attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert attributes["reasond.call.warnings"] == ("stop was left out",)
    assert attributes["gen_ai.usage.output_tokens"] == 3
    assert "secret" not in str(attributes)
    assert "forty" not in str(attributes)


async def test_a_call_that_fails_says_why_in_its_span() -> None:
    span = await span_of(ScriptedModel([Reply(error=ModelUnavailableError("gone"))]))
    assert (span.attributes or {})["error.type"] == "MODEL_UNAVAILABLE"
    assert span.status.status_code is StatusCode.ERROR
    assert not span.events, "the text of errors is no content of spans"


async def test_the_error_of_a_call_reaches_its_caller() -> None:
    one = TracedModel(model=ScriptedModel([Reply(error=ModelUnavailableError("gone"))]), tracing=Spans().sink.tracing)
    with pytest.raises(ModelUnavailableError):
        await anext(one.stream(ASK))


async def test_a_call_that_is_broken_off_ends_its_span_without_usage() -> None:
    spans = Spans()
    stream = TracedModel(model=ScriptedModel(["one two three"]), tracing=spans.sink.tracing).stream(ASK)
    await anext(stream)
    await stream.aclose()
    assert "gen_ai.usage.output_tokens" not in attributes_of(spans.one("chat"))


async def test_content_is_kept_where_it_is_asked_for() -> None:
    attributes = attributes_of(await span_of(ScriptedModel(["forty-two"]), has_content=True))
    assert "a secret question" in attributes["gen_ai.input.messages"]
    assert json.loads(attributes["gen_ai.output.messages"])[0]["parts"][0]["content"] == "forty-two"


async def test_only_what_the_call_sends_is_told_where_it_stands_and_its_consumer_is_not() -> None:
    spans = Spans(options=TracingOptions(propagate_to=("models",)))
    seen: list[object] = []

    class Looking(ScriptedModel):
        """Notes the headers that would be sent at each event."""

        async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
            seen.append(dict(build_outgoing_headers()))
            async with aclosing(super().stream(request)) as events:
                async for event in events:
                    yield event

    async with aclosing(TracedModel(model=Looking(["a b"]), tracing=spans.sink.tracing).stream(ASK)) as events:
        async for _ in events:
            assert build_outgoing_headers() == {}
    trace, span = ids(spans.one("chat"))
    assert seen == [{"traceparent": f"00-{trace:032x}-{span:016x}-01"}]


async def test_a_call_outside_of_runs_is_below_whatever_is_at_work() -> None:
    spans = Spans()
    caller = parse_traceparent(f"00-{'a' * 32}-{'b' * 16}-01")
    enter(Scope(trace=caller))
    async with aclosing(TracedModel(model=ScriptedModel(["a"]), tracing=spans.sink.tracing).stream(ASK)) as events:
        async for _ in events:
            pass
    assert f"{ids(spans.one('chat'))[0]:032x}" == "a" * 32


async def test_it_shows_the_model_behind_it_and_closes_it() -> None:
    inner = DemoModel()
    one = trace_model(inner, tracing=Spans().sink.tracing)
    assert isinstance(one, TracedModel)
    assert (one.name, one.warnings, one.context_window) == (inner.name, inner.warnings, inner.context_window)
    assert one.counter is inner.counter
    assert await one.count_exactly(ASK.messages) == await inner.count_exactly(ASK.messages)
    await one.aclose()


def test_where_nothing_is_traced_nothing_is_wrapped() -> None:
    model = DemoModel()
    assert trace_model(model, tracing=None) is model
