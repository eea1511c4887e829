"""A span for every model call, without content by default. All retries of a call belong to one span."""

from __future__ import annotations

import json
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from reasond_server.errors.base import ReasondError
from reasond_server.llm.model import ChatModel, Finished, Text, WrappedModel
from reasond_server.telemetry.logs import shorten
from reasond_server.telemetry.propagation import OutgoingTrace
from reasond_server.telemetry.scope import current
from reasond_server.telemetry.spans import CHAT

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from reasond_server.llm.model import ChatRequest, ModelEvent
    from reasond_server.telemetry.spans import Attributes, OpenSpan, Tracing

_MAX_MESSAGES: Final = 16


def trace_model(model: ChatModel, *, tracing: Tracing | None, provider: str = "openai") -> ChatModel:
    """Return `model` with a span for each call, or `model` itself if tracing is off."""
    return model if tracing is None else TracedModel(model=model, tracing=tracing, provider=provider)


class TracedModel(WrappedModel[ChatModel]):
    """The model, with a span for each call. The span has the warnings of the call in `reasond.call.warnings`."""

    def __init__(
        self,
        *,
        model: ChatModel,
        tracing: Tracing,
        provider: str = "openai",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(model=model)
        self._tracing = tracing
        self._monotonic = monotonic
        self._fixed: Attributes = {
            "gen_ai.operation.name": CHAT,
            "gen_ai.provider.name": provider,
            "gen_ai.request.model": model.name,
            "gen_ai.request.stream": True,
            "openinference.span.kind": "LLM",
        }

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Call the model within a span that ends with the call, also if the call fails."""
        tracing, began_s = self._tracing, self._monotonic()
        work, attributes = current(), self._build_attributes(request)
        parent, trace = (None, None) if work is None else (work.span, work.trace)
        span = tracing.call(f"{CHAT} {self.name}", attributes, parent=parent, trace=trace)
        heard: list[str] | None = [] if tracing.has_content and span.is_recording else None
        is_first = True
        try:
            async with aclosing(self._model.stream(request)) as events:
                # The request and its retries are sent before the first event. The trace context must not stay set
                # longer: while the generator is suspended, its consumer would send it with requests of its own.
                with OutgoingTrace(span.context if tracing.tells_models else None):
                    event = await anext(events, None)
                while event is not None:
                    if isinstance(event, Finished):
                        _note_end(span, event)
                    elif isinstance(event, Text):
                        if is_first:
                            is_first = False
                            span.set({"gen_ai.response.time_to_first_chunk": self._monotonic() - began_s})
                        if heard is not None:
                            heard.append(event.text)
                    yield event
                    event = await anext(events, None)
        except ReasondError as error:
            span.fail(error.reason)
            raise
        finally:
            if heard:
                span.set({"gen_ai.output.messages": _to_json([("assistant", "".join(heard))])})
            span.end()

    def _build_attributes(self, request: ChatRequest) -> Attributes:
        attributes = {
            **self._fixed,
            "gen_ai.request.max_tokens": request.max_tokens,
            "gen_ai.request.temperature": request.temperature,
            "gen_ai.request.stop_sequences": tuple(request.stop),
        }
        if self._tracing.has_content:
            attributes["gen_ai.input.messages"] = _to_json([(one.role.value, one.content) for one in request.messages])
        return attributes


def _note_end(span: OpenSpan, finished: Finished) -> None:
    usage = finished.usage
    span.set(
        {
            "gen_ai.response.finish_reasons": (finished.reason.value,),
            "gen_ai.usage.input_tokens": usage.input_tokens,
            "gen_ai.usage.output_tokens": usage.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_input_tokens,
            "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
            "reasond.usage.source": usage.source.value,
            **({"reasond.call.warnings": tuple(finished.warnings)} if finished.warnings else {}),
        }
    )


def _to_json(said: Sequence[tuple[str, str]]) -> str:
    """Return the last messages as JSON in OpenTelemetry's format, each cut to its beginning."""
    return json.dumps(
        [{"role": role, "parts": [{"type": "text", "content": shorten(text)}]} for role, text in said[-_MAX_MESSAGES:]],
        ensure_ascii=False,
    )
