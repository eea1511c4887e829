"""Models in an order of preference: the next one is asked only after an error that spent nothing."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from reasond_server.errors import UNSPENT
from reasond_server.llm.model import ChatModel, WrappedModel

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reasond_server.llm.model import ChatRequest, ModelEvent


class PreferredModels(WrappedModel[ChatModel]):
    """Several models as one, which has the name, the counter and the window of the first.

    Raises:
        ValueError: there is none.
    """

    def __init__(self, models: Sequence[ChatModel]) -> None:
        if not models:
            raise ValueError("at least one model is needed")
        super().__init__(model=models[0])
        self._models = tuple(models)

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
        *others, last = self._models
        for model in others:
            has_begun = False
            try:
                async with aclosing(model.stream(request)) as events:
                    async for event in events:
                        has_begun = True
                        yield event
            except UNSPENT:
                if has_begun:
                    raise
            else:
                return
        async with aclosing(last.stream(request)) as events:
            async for event in events:
                yield event

    async def aclose(self) -> None:
        """Close every model."""
        for model in self._models:
            await model.aclose()
