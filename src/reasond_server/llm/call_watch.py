"""What is told of each model call: the time of its first content, its outcome and its duration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reasond_server.errors.base import ReasondError
from reasond_server.llm.model import Finished

if TYPE_CHECKING:
    from collections.abc import Callable

    from reasond_server.llm.model import ModelEvent
    from reasond_server.telemetry.observers import ModelObserver

_CLOSED: Final = "closed"


class CallWatch:
    """Reports one call, which begins now, to `observer`; the outcome of an abandoned call is "closed"."""

    def __init__(self, observer: ModelObserver, model: str, monotonic: Callable[[], float]) -> None:
        self._observer = observer
        self._model = model
        self._monotonic = monotonic
        self._outcome = _CLOSED
        self._has_content = False
        self._started_s = monotonic()

    def note_event(self, event: ModelEvent) -> None:
        """Record an event of the model."""
        if isinstance(event, Finished):
            self._outcome = str(event.reason)
        elif not self._has_content:
            self._has_content = True
            self._observer.first_content(self._model, self._monotonic() - self._started_s)

    def note_failure(self, error: BaseException) -> None:
        """Record the error that ended the call; closing and cancellation are not failures."""
        if isinstance(error, Exception):
            self._outcome = error.reason if isinstance(error, ReasondError) else ReasondError.reason

    def report_end(self) -> None:
        """Report that the call is over."""
        self._observer.model_call_ended(self._model, self._outcome, self._monotonic() - self._started_s)
