"""Models around another: with a preface, with a span for every call, or with others to ask after it.

A preface is the instructions and the earlier messages of the caller. A span has no content by default, and all retries
of a call belong to one. Of models in an order of preference the next one is asked only after an error that spent
nothing.
"""

from __future__ import annotations

import json
import time
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from reasond_server.errors.base import ReasondError
from reasond_server.errors.model import UNSPENT
from reasond_server.llm.counting.learners import Forkable, can_fork
from reasond_server.llm.counting.requests import bound_images
from reasond_server.llm.model import (
    ChatModel,
    Finished,
    ImagePart,
    Message,
    Role,
    Text,
    WrappedModel,
    can_enforce_schema,
    find_image_tokens,
    find_most_logprobs,
    find_price,
)
from reasond_server.telemetry.logs import shorten
from reasond_server.telemetry.propagation import OutgoingTrace
from reasond_server.telemetry.scope import current
from reasond_server.telemetry.spans import CHAT, Attributes, OpenSpan, Tracing
from reasond_server.types.usage import Price
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from reasond_server.llm.model import ChatRequest, ModelEvent, TokenCounter
    from reasond_server.types import Json


_TALKERS: Final = (Role.USER, Role.ASSISTANT)


@value
class Preface:
    """What precedes the prompts of a strategy: `system` its instructions, `history` its first other message.

    `images` become part of the strategy's first message of the user.
    Neighbouring messages of one author are joined: many chat templates accept only authors in turn.
    """

    system: str = ""
    history: Sequence[Message] = ()
    images: Sequence[ImagePart] = ()

    def apply(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return `messages` after the preface."""
        has_rules = bool(messages) and messages[0].role is Role.SYSTEM
        rules, rest = (messages[0].content, messages[1:]) if has_rules else ("", messages)
        system = "\n\n".join(part for part in (self.system, rules) if part)
        first = (Message(role=Role.SYSTEM, content=system),) if system else ()
        return (*first, *join_neighbours(*self.history, *(self._add_images(rest) if self.images else rest)))

    def _add_images(self, messages: Sequence[Message]) -> Sequence[Message]:
        at = next((place for place, each in enumerate(messages) if each.role is Role.USER), None)
        if at is None:
            return messages
        return (*messages[:at], replace(messages[at], images=(*messages[at].images, *self.images)), *messages[at + 1 :])


def join_neighbours(*messages: Message) -> list[Message]:
    """Return `messages` with neighbours of one author joined, unless they call tools."""
    joined: list[Message] = []
    for message in messages:
        last = joined[-1] if joined else None
        if last is not None and last.role is message.role and last.role in _TALKERS and not last.tool_calls:
            joined[-1] = replace(
                message,
                content=f"{last.content}\n\n{message.content}" if last.content else message.content,
                reasoning="\n\n".join(text for text in (last.reasoning, message.reasoning) if text),
                images=(*last.images, *message.images),
            )
        else:
            joined.append(message)
    return joined


class PrefacedModel(WrappedModel[ChatModel]):
    """The model, with `preface` before the messages of each call and of each count."""

    def __init__(self, *, model: ChatModel, preface: Preface) -> None:
        super().__init__(model=model)
        self._preface = preface
        self._counter = preface_counter(model.counter, preface)

    @property
    def counter(self) -> TokenCounter:
        """Counter of the model; the tokens of a prompt include the preface."""
        return self._counter

    async def count_exactly(self, messages: Sequence[Message]) -> int | None:
        """Return the server's count of the preface and `messages`, None if it does not count."""
        # Servers count texts.
        return None if self._preface.images else await self._model.count_exactly(self._preface.apply(messages))

    def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Call the model. Raises the errors of the inner model."""
        return self._model.stream(replace(request, messages=self._preface.apply(request.messages)))


class PrefacedCounter:
    """A counter that adds the preface to every prompt."""

    def __init__(self, counter: TokenCounter, preface: Preface) -> None:
        self._inner = counter
        self._preface = preface

    @property
    def is_exact(self) -> bool:
        """Whether the counts are the model's own."""
        return self._inner.is_exact

    def count_text(self, text: str) -> int:
        """Return the tokens of `text` alone."""
        return self._inner.count_text(text)

    def count_prompt(self, messages: Sequence[Message]) -> int:
        """Return the input tokens of a call with the preface and `messages`."""
        whole = self._preface.apply(messages)
        return self._inner.count_prompt(whole) + bound_images(whole)

    def head(self, text: str, tokens: int) -> str:
        """Return the longest prefix of `text` with at most `tokens` tokens."""
        return self._inner.head(text, tokens)

    def tail(self, text: str, tokens: int) -> str:
        """Return the longest suffix of `text` with at most `tokens` tokens."""
        return self._inner.tail(text, tokens)

    def list_messages(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages of the prompt, those of the preface included."""
        return self._preface.apply(messages)


def list_messages(messages: Sequence[Message], counter: TokenCounter) -> Sequence[Message]:
    """Return all messages of the prompt that `counter` counts as `messages`."""
    return counter.list_messages(messages) if isinstance(counter, PrefacedCounter) else messages


class ForkablePrefacedCounter(PrefacedCounter):
    """The same over a counter that learns; reports are passed on with the preface."""

    def __init__(self, counter: TokenCounter, preface: Preface, *, learner: Forkable) -> None:
        super().__init__(counter, preface)
        self._learner = learner

    def learn(self, messages: Sequence[Message], reported: int) -> None:
        """See `Learner.learn`."""
        self._learner.learn(self._preface.apply(messages), reported)

    def fork(self) -> TokenCounter:
        """See `Forkable.fork`."""
        return preface_counter(self._learner.fork(), self._preface)

    def snapshot(self) -> Json:
        """See `Forkable.snapshot`."""
        return self._learner.snapshot()

    def restore(self, snapshot: Json) -> None:
        """See `Forkable.restore`."""
        self._learner.restore(snapshot)


def preface_counter(counter: TokenCounter, preface: Preface) -> TokenCounter:
    """Return a counter that adds `preface` to every prompt, and learns if `counter` does."""
    learner = counter if can_fork(counter) else None
    if learner is None:
        return PrefacedCounter(counter, preface)
    return ForkablePrefacedCounter(counter, preface, learner=learner)


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


class PreferredModels(WrappedModel[ChatModel]):
    """Several models behind the name of the first one.

    Their tokenizers may differ, so the counts of several models are upper estimates: the largest of any model.

    Raises:
        ValueError: there is none.
    """

    def __init__(self, models: Sequence[ChatModel]) -> None:
        if not models:
            raise ValueError("at least one model is needed")
        super().__init__(model=models[0])
        self._models = tuple(models)
        self._counter = models[0].counter if len(models) == 1 else LargestCounter([each.counter for each in models])

    @property
    def counter(self) -> TokenCounter:
        """Counter of the only model, or the largest counts of all."""
        return self._counter

    @property
    def image_tokens(self) -> int:
        """Most tokens of an image in any model; 0: one of them takes none."""
        tokens = [find_image_tokens(model) for model in self._models]
        return max(tokens) if all(tokens) else 0

    @property
    def enforces_schema(self) -> bool:
        """Whether the server of every model enforces a JSON Schema."""
        return all(map(can_enforce_schema, self._models))

    @property
    def most_logprobs(self) -> int:
        """Of how many likely tokens every server tells the probability; 0: one of them tells none."""
        return min(map(find_most_logprobs, self._models))

    @property
    def price(self) -> Price | None:
        """The highest prices of all models, for calls of which nobody knows who answered; None if one has none."""
        prices = [find_price(model) for model in self._models]
        known = [price for price in prices if price is not None]
        if len(known) < len(prices):
            return None
        return Price(
            input_usd=max(price.input_usd for price in known),
            cached_input_usd=max(price.cached_input_usd for price in known),
            output_usd=max(price.output_usd for price in known),
        )

    async def count_exactly(self, messages: Sequence[Message]) -> int | None:
        """Return the count of the only model's server; None if there are several, or it does not count."""
        return await self._models[0].count_exactly(messages) if len(self._models) == 1 else None

    @property
    def context_window(self) -> int | None:
        """The smallest known window, so that a prompt fits whichever model gets it."""
        known = [window for model in self._models if (window := model.context_window) is not None]
        return min(known, default=None)

    @property
    def has_native_tools(self) -> bool:
        """Whether every model takes tools."""
        return all(model.has_native_tools for model in self._models)

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Call the first model; after an error that spent nothing, and before any text, the next one.

        Raises:
            ReasondError: that of the last model that was asked.
        """
        refusals: list[str] = []
        for model in self._models:
            has_begun = False
            try:
                async with aclosing(model.stream(request)) as events:
                    async for event in events:
                        has_begun = True
                        yield _name_model(event, refusals, model.name)
            except UNSPENT as error:
                if has_begun or model is self._models[-1]:
                    raise
                refusals.append(f"{model.name} refused a call ({error.reason})")
            else:
                return

    async def aclose(self) -> None:
        """Close every model."""
        for model in self._models:
            await model.aclose()


class LargestCounter:
    """Counts a text as the counter that counts the most tokens in it; at least one of `counters`."""

    is_exact = False

    def __init__(self, counters: Sequence[TokenCounter]) -> None:
        self._counters = counters

    def count_text(self, text: str) -> int:
        """Return the tokens of `text` alone, by any counter at most."""
        return max(counter.count_text(text) for counter in self._counters)

    def count_prompt(self, messages: Sequence[Message]) -> int:
        """Return the input tokens of a call with `messages`, by any counter at most."""
        return max(counter.count_prompt(messages) for counter in self._counters)

    def head(self, text: str, tokens: int) -> str:
        """Return the longest prefix of `text` that has at most `tokens` tokens by every counter."""
        return min((counter.head(text, tokens) for counter in self._counters), key=len)

    def tail(self, text: str, tokens: int) -> str:
        """Return the longest suffix of `text` that has at most `tokens` tokens by every counter."""
        return min((counter.tail(text, tokens) for counter in self._counters), key=len)


def _name_model(event: ModelEvent, refusals: Sequence[str], name: str) -> ModelEvent:
    """Return the last event of a call with who answered, and a warning if that is another model than the first."""
    if not isinstance(event, Finished):
        return event
    event = replace(event, model=event.model or name)
    return (
        event
        if not refusals
        else replace(event, warnings=(*event.warnings, f"{' and '.join(refusals)}: {name} answered."))
    )
