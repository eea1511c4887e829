import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from reasond_server.errors import ModelUnavailableError
from reasond_server.llm.demo import DemoModel
from reasond_server.llm.model import ChatModel, ChatRequest, Finished, Message, ModelEvent, Role
from reasond_server.llm.tracing import TracedModel, traced
from reasond_server.testing import Reply, ScriptedModel

ASK = ChatRequest(messages=[Message(role=Role.USER, content="a secret question")], max_tokens=50, stop=["</answer>"])


async def span_of(model: ChatModel) -> ReadableSpan:
    """Play one call and return its span."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    one = TracedModel(model=model, tracer=provider.get_tracer("test"))
    try:
        async with aclosing(one.stream(ASK)) as events:
            async for _ in events:
                pass
    finally:
        (span,) = exporter.get_finished_spans()
    return span


class Dropping(ScriptedModel):
    """A model that leaves a parameter out and says so."""

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
    model = ScriptedModel([Reply(error=ModelUnavailableError("gone"))])
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    one = TracedModel(model=model, tracer=provider.get_tracer("test"))
    async with aclosing(one.stream(ASK)) as events:
        with pytest.raises(ModelUnavailableError):
            await anext(events)
    (span,) = exporter.get_finished_spans()
    assert (span.attributes or {})["error.type"] == "MODEL_UNAVAILABLE"


async def test_a_call_that_is_broken_off_ends_its_span() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    stream = TracedModel(model=ScriptedModel(["one two three"]), tracer=provider.get_tracer("test")).stream(ASK)
    await anext(stream)
    await stream.aclose()
    assert len(exporter.get_finished_spans()) == 1


async def test_it_shows_the_model_behind_it_and_closes_it() -> None:
    inner = DemoModel()
    one = traced(inner)
    assert isinstance(one, TracedModel)
    assert (one.name, one.warnings, one.context_window) == (inner.name, inner.warnings, inner.context_window)
    assert one.counter is inner.counter
    assert await one.count_exactly(ASK.messages) == await inner.count_exactly(ASK.messages)
    await one.aclose()


def test_without_the_package_nothing_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    model = DemoModel()
    assert traced(model) is model
