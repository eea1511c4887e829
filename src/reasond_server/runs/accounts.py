"""What a run may take and has taken, in all its lives: tokens, calls and time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from reasond_server.llm.counting.learning import can_fork
from reasond_server.types import NOTHING, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reasond_server.llm.metering import MeteredModel
    from reasond_server.llm.model import TokenCounter
    from reasond_server.runs.run_journal import RunJournal
    from reasond_server.types import Json


class Accounts:
    """Adds what `model` spends to what was spent before, and counts the time since `began_s` on `monotonic`.

    `before` is all that earlier lives of the run spent. The `journal` has the part of it that is booked again when
    calls are recalled. The rest went into calls that were broken off: nobody gets it back, and it is no part of the
    budget.
    `inherited` says in words what was taken over from another execution. `limit_s` is the time that the run has,
    `cleanup_s` what its work has after it has reported its end; `ended_s` is when the last event was made.
    """

    __slots__ = (
        "_before",
        "_inherited",
        "_journal",
        "_lost",
        "_monotonic",
        "_timer",
        "began_s",
        "cleanup_s",
        "ended_s",
        "limit_s",
        "model",
    )

    def __init__(
        self,
        *,
        model: MeteredModel,
        monotonic: Callable[[], float],
        began_s: float,
        limit_s: float | None = None,
        cleanup_s: float = 2.0,
        before: Usage = NOTHING,
        journal: RunJournal | None = None,
        inherited: Sequence[str] = (),
    ) -> None:
        self.model = model
        self.began_s = began_s
        self.limit_s = limit_s
        self.cleanup_s = cleanup_s
        self._monotonic = monotonic
        self._before = before
        self._journal = journal
        self._lost = before if journal is None or before is NOTHING else _subtract(before, journal.spent)
        self._inherited = inherited
        self._timer: asyncio.TimerHandle | None = None
        self.ended_s: float | None = None

    @property
    def usage(self) -> Usage:
        """Everything that was spent in all lives, calls included that were on record and were not asked for again."""
        if self._before is NOTHING:
            return self.model.usage
        recorded = NOTHING if self._journal is None else self._journal.spent
        return self._lost + recorded + self.model.usage

    @property
    def elapsed_s(self) -> float:
        """Seconds since the execution was created, until its clock was stopped."""
        return (self._monotonic() if self.ended_s is None else self.ended_s) - self.began_s

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the caller should know about the model, its calls, and what was taken over."""
        return (*self.model.warnings, *self.model.warnings_of_calls, *self._inherited)

    def set_timer(self, within_s: float | None, on_time_out: Callable[[], None]) -> None:
        """Call `on_time_out` in so many seconds, instead of what was said before; None: never."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if within_s is None else asyncio.get_running_loop().call_later(within_s, on_time_out)


def fork_counter(counter: TokenCounter, calibration: Json) -> TokenCounter:
    """Return a counter of a run's own, set to `calibration` unless that is empty.

    What other runs learn meanwhile must not change how a run cuts its windows.
    """
    if not can_fork(counter):
        return counter
    own = counter.fork()
    if calibration and can_fork(own):
        own.restore(calibration)
    return own


def read_calibration(counter: TokenCounter) -> Json:
    """Return what `counter` has learnt; empty where it learns nothing."""
    return counter.snapshot() if can_fork(counter) else {}


def _subtract(whole: Usage, part: Usage) -> Usage:
    return Usage(
        input_tokens=max(0, whole.input_tokens - part.input_tokens),
        output_tokens=max(0, whole.output_tokens - part.output_tokens),
        cached_input_tokens=max(0, whole.cached_input_tokens - part.cached_input_tokens),
        reasoning_tokens=max(0, whole.reasoning_tokens - part.reasoning_tokens),
        model_calls=max(0, whole.model_calls - part.model_calls),
        source=whole.source,
    )
