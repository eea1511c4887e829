"""A model whose calls are timed: how long until the first content, how long in all, and how they ended."""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import TYPE_CHECKING

from reasond_server.errors import ReasondError
from reasond_server.llm.model import ChatModel, Finished
from reasond_server.llm.wrapping import WrappedModel

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from reasond_server.llm.model import ChatRequest, ModelEvent
    from reasond_server.telemetry.observers import ModelObserver

_CLOSED = "closed"


class ObservedModel(WrappedModel[ChatModel]):
    """The model, with `observer` told of each call; one that its caller leaves before the end counts as "closed"."""

    def __init__(
        self, *, model: ChatModel, observer: ModelObserver, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(model=model)
        self._observer = observer
        self._monotonic = monotonic

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Call the model. Raises as it does."""
        observer, name, monotonic = self._observer, self._model.name, self._monotonic
        started, outcome, has_content = monotonic(), _CLOSED, False
        try:
            async with aclosing(self._model.stream(request)) as events:
                async for event in events:
                    if isinstance(event, Finished):
                        outcome = event.reason.value
                    elif not has_content:
                        has_content = True
                        observer.first_content(name, monotonic() - started)
                    yield event
        except ReasondError as error:
            outcome = error.reason
            raise
        except Exception:
            outcome = ReasondError.reason
            raise
        finally:
            observer.model_call_ended(name, outcome, monotonic() - started)
