"""A token counter of a run's own: what other runs learn meanwhile must not change how a run cuts its windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.llm.counting.learning import can_fork

if TYPE_CHECKING:
    from reasond_server.llm.model import TokenCounter
    from reasond_server.types import Json


def fork_of(counter: TokenCounter, calibration: Json) -> TokenCounter:
    """Return a counter of a run's own, set to `calibration` unless that is empty."""
    if not can_fork(counter):
        return counter
    own = counter.fork()
    if calibration and can_fork(own):
        own.restore(calibration)
    return own


def calibration_of(counter: TokenCounter) -> Json:
    """Return what `counter` has learnt; empty where it learns nothing."""
    return counter.snapshot() if can_fork(counter) else {}
