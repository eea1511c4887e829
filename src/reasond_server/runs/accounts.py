"""The limits and the usage of a run over all its lives: tokens, calls and time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reasond_server.llm.counting.learners import can_fork
from reasond_server.types import NOTHING, Json, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reasond_server.llm.metered_model import MeteredModel
    from reasond_server.llm.model import TokenCounter
    from reasond_server.runs.run_journal import RunJournal


@dataclass(eq=False, kw_only=True)
class Accounts:
    """Adds the usage of `model` to earlier usage, and measures the time since `began_s` (seconds) with `monotonic`.

    `before` is the usage of all earlier lives of the run. The `journal` knows which part of it is counted again when
    recorded calls are replayed. The rest was spent on calls that were interrupted; it is reported as usage, but does
    not count against the budget.
    `inherited` are warnings about what was taken over from another execution. `limit_s` is the time limit of the run,
    `cleanup_s` the time that its work has to clean up after it has reported its end; `ended_s` is the time of the last
    event. All three are in seconds.
    """

    model: MeteredModel
    monotonic: Callable[[], float]
    began_s: float
    limit_s: float | None = None
    cleanup_s: float = 2.0
    before: Usage = NOTHING
    journal: RunJournal | None = None
    inherited: Sequence[str] = ()

    def __post_init__(self) -> None:
        self._lost = (
            self.before
            if self.journal is None or self.before is NOTHING
            else _subtract(self.before, self.journal.spent)
        )
        self._timer: asyncio.Handle | None = None
        self.ended_s: float | None = None

    @property
    def usage(self) -> Usage:
        """The usage of all lives; recorded calls count even if the run has not repeated them yet."""
        if self.before is NOTHING:
            return self.model.usage
        recorded = NOTHING if self.journal is None else self.journal.spent
        return self._lost + recorded + self.model.usage

    @property
    def elapsed_s(self) -> float:
        """Seconds from the creation of the execution until now, or until its last event."""
        return (self.monotonic() if self.ended_s is None else self.ended_s) - self.began_s

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for the caller about the model, its calls, and what was taken over."""
        return (*self.model.warnings, *self.model.warnings_of_calls, *self.inherited)

    def charge_again(self, usage: Usage) -> None:
        """Count `usage`, which earlier lives have spent, against the budget, as if this life had made the calls.

        For work that goes on from its last step: no journal replays its calls.
        """
        self.model.recall(usage)
        self._lost = _subtract(self._lost, usage)

    def close(self) -> None:
        """Let go of the journal once the run is over; what was recorded and not repeated stays in `usage`."""
        if self.journal is not None:
            self._lost += self.journal.spent
            self.journal = None

    def set_timer(self, within_s: float | None, on_time_out: Callable[[], None]) -> None:
        """Call `on_time_out` after `within_s` seconds; replaces an earlier timer. None only cancels that.

        The seconds count from the next turn of the event loop: most timers are cancelled before, and cost less so.
        """
        if self._timer is not None:
            self._timer.cancel()
        if within_s is None:
            self._timer = None
        else:
            self._timer = asyncio.get_running_loop().call_soon(self._begin_timer, within_s, on_time_out)

    def _begin_timer(self, within_s: float, on_time_out: Callable[[], None]) -> None:
        self._timer = asyncio.get_running_loop().call_later(within_s, on_time_out)


def fork_counter(counter: TokenCounter, calibration: Json) -> TokenCounter:
    """Return a separate counter for one run, set to `calibration` unless that is empty.

    Separate, because what the counters of other runs learn must not change how this run cuts its windows.
    """
    if not can_fork(counter):
        return counter
    own = counter.fork()
    if calibration and can_fork(own):
        own.restore(calibration)
    return own


def read_calibration(counter: TokenCounter) -> Json:
    """Return what `counter` has learnt; empty if it does not learn."""
    return counter.snapshot() if can_fork(counter) else {}


def _subtract(whole: Usage, part: Usage) -> Usage:
    return Usage(
        input_tokens=max(0, whole.input_tokens - part.input_tokens),
        output_tokens=max(0, whole.output_tokens - part.output_tokens),
        cached_input_tokens=max(0, whole.cached_input_tokens - part.cached_input_tokens),
        reasoning_tokens=max(0, whole.reasoning_tokens - part.reasoning_tokens),
        model_calls=max(0, whole.model_calls - part.model_calls),
        source=whole.source,
        cost_usd=(whole - part).cost_usd,
    )
