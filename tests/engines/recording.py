"""A wrapper around a real engine's model that records each request and the end of each call."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from reasond_server.llm.model import ChatModel, ChatRequest, Finished, ModelEvent, Text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class Recording:
    """Passes calls on to a model and records each request and its finish, and in `texts` what it wrote."""

    def __init__(self, model: ChatModel) -> None:
        self._model = model
        self.calls: list[tuple[ChatRequest, Finished]] = []
        self.texts: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        written = ""
        async with aclosing(self._model.stream(request)) as events:
            async for event in events:
                if isinstance(event, Text):
                    written += event.text
                if isinstance(event, Finished):
                    self.calls.append((request, event))
                    self.texts.append(written)
                yield event
