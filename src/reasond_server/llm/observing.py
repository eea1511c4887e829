"""How long a call of a model takes until its first content and in all, and how it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.errors import ReasondError
from reasond_server.llm.model import Finished

if TYPE_CHECKING:
    from collections.abc import Callable

    from reasond_server.llm.model import ModelEvent
    from reasond_server.telemetry.observers import ModelObserver

_CLOSED = "closed"


class Watch:
    """Tells `observer` of one call, which begins now; one that its caller leaves before the end counts as "closed"."""

    __slots__ = ("_has_content", "_model", "_monotonic", "_observer", "_outcome", "_started_s")

    def __init__(self, observer: ModelObserver, model: str, monotonic: Callable[[], float]) -> None:
        self._observer = observer
        self._model = model
        self._monotonic = monotonic
        self._outcome = _CLOSED
        self._has_content = False
        self._started_s = monotonic()

    def heard(self, event: ModelEvent) -> None:
        """Note what came from the model."""
        if isinstance(event, Finished):
            self._outcome = event.reason.value
        elif not self._has_content:
            self._has_content = True
            self._observer.first_content(self._model, self._monotonic() - self._started_s)

    def failed(self, error: BaseException) -> None:
        """Note what the call ended with; being closed or cancelled is no failure."""
        if isinstance(error, Exception):
            self._outcome = error.reason if isinstance(error, ReasondError) else ReasondError.reason

    def ended(self) -> None:
        """Tell that the call is over."""
        self._observer.model_call_ended(self._model, self._outcome, self._monotonic() - self._started_s)
