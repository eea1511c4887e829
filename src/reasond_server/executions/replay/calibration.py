"""A token counter of a run's own: what other runs learn meanwhile must not change how a run cuts its windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from reasond_server.llm.model import TokenCounter
    from reasond_server.types import Json


@runtime_checkable
class ForkingCounter(Protocol):
    """A counter that learns, and of which a run can have a copy that learns by itself."""

    def fork(self) -> TokenCounter:
        """Return a copy with what was learnt until now; what it learns itself it passes on."""
        ...

    def snapshot(self) -> Json:
        """Return what was learnt, as JSON."""
        ...

    def restore(self, snapshot: Json) -> None:
        """Know what `snapshot` tells, and nothing else."""
        ...


def fork_of(counter: TokenCounter, calibration: Json) -> TokenCounter:
    """Return a counter of a run's own, set to `calibration` unless that is empty."""
    if not isinstance(counter, ForkingCounter):
        return counter
    own = counter.fork()
    if calibration and isinstance(own, ForkingCounter):
        own.restore(calibration)
    return own


def calibration_of(counter: TokenCounter) -> Json:
    """Return what `counter` has learnt; empty where it learns nothing."""
    return counter.snapshot() if isinstance(counter, ForkingCounter) else {}
