"""A span for every model call, by OpenTelemetry's GenAI conventions; no content, and nothing without the package.

Source: open-telemetry/semantic-conventions-genai, "chat" spans, still in development. The names are written out
here, because the published constants of that state are marked as deprecated.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from reasond_server.errors import ReasondError
from reasond_server.llm.model import ChatModel, Finished
from reasond_server.llm.wrapping import WrappedModel

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from opentelemetry.trace import Span, Tracer

    from reasond_server.llm.model import ChatRequest, ModelEvent


def traced(model: ChatModel) -> ChatModel:
    """Return `model` with a span for each call, or as it is where OpenTelemetry is not installed."""
    try:
        from opentelemetry.trace import get_tracer  # noqa: PLC0415 - an optional package
    except ImportError:
        return model
    return TracedModel(model=model, tracer=get_tracer("reasond"))


class TracedModel(WrappedModel[ChatModel]):
    """The model, with a span for each call. What a call left out or found odd is in `reasond.call.warnings`."""

    def __init__(self, *, model: ChatModel, tracer: Tracer) -> None:
        super().__init__(model=model)
        self._tracer = tracer

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Call the model within a span that ends with the call, however that ends."""
        span = self._tracer.start_span(f"chat {self.name}", attributes=_of_request(self.name, request))
        try:
            async with aclosing(self._model.stream(request)) as events:
                async for event in events:
                    if isinstance(event, Finished):
                        _note_end(span, event)
                    yield event
        except ReasondError as error:
            span.set_attribute("error.type", error.reason)
            raise
        finally:
            # Not the current span while the generator is suspended: its consumer would become its child.
            span.end()


def _of_request(model: str, request: ChatRequest) -> dict[str, str | int | float | bool | Sequence[str]]:
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": model,
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.temperature": request.temperature,
        "gen_ai.request.stop_sequences": tuple(request.stop),
        "gen_ai.request.stream": True,
    }


def _note_end(span: Span, finished: Finished) -> None:
    usage = finished.usage
    span.set_attribute("gen_ai.response.finish_reasons", [finished.reason.value])
    span.set_attribute("gen_ai.usage.input_tokens", usage.input_tokens)
    span.set_attribute("gen_ai.usage.output_tokens", usage.output_tokens)
    span.set_attribute("gen_ai.usage.cache_read.input_tokens", usage.cached_input_tokens)
    span.set_attribute("gen_ai.usage.reasoning.output_tokens", usage.reasoning_tokens)
    if finished.warnings:
        span.set_attribute("reasond.call.warnings", list(finished.warnings))
