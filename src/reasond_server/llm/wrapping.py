"""A model around another one: what every wrapper passes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from reasond_server.llm.model import ChatModel

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reasond_server.llm.model import ChatRequest, Message, ModelEvent, TokenCounter

Inner = TypeVar("Inner", bound=ChatModel)


class WrappedModel(Generic[Inner]):
    """The model that it is given, as it is. Subclasses change what they are there for, mostly `stream`."""

    def __init__(self, *, model: Inner) -> None:
        self._model = model

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._model.name

    @property
    def warnings(self) -> Sequence[str]:
        """Warnings of the model."""
        return self._model.warnings

    @property
    def context_window(self) -> int | None:
        """Window of the model in tokens, if known."""
        return self._model.context_window

    @property
    def has_native_tools(self) -> bool:
        """Whether the model takes tools."""
        return self._model.has_native_tools

    @property
    def counter(self) -> TokenCounter:
        """Counter of the model."""
        return self._model.counter

    async def count_exactly(self, messages: Sequence[Message]) -> int | None:
        """Return what the model's server counts."""
        return await self._model.count_exactly(messages)

    async def aclose(self) -> None:
        """Close the model."""
        await self._model.aclose()

    def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Call the model. Raises as it does."""
        return self._model.stream(request)
