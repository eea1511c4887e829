"""Models in an order of preference: the next one is asked only after an error that spent nothing."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from reasond_server.errors.model import UNSPENT
from reasond_server.llm.model import (
    ChatModel,
    Finished,
    WrappedModel,
    can_enforce_schema,
    find_image_tokens,
    find_most_logprobs,
    find_price,
)
from reasond_server.types.usage import Price

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reasond_server.llm.model import ChatRequest, Message, ModelEvent, TokenCounter


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
