"""How far a run has come: which share of its steps is done, and how long the rest takes if that can be known.

What a strategy will do is known from its configuration and its steps. Where only a most is known, the text says so and
tells no time; where nothing is known there is no progress to show.
"""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from reasond_server.cli.run_text import bar, span_of
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from reasond import Iteration

_MEASURED_STEPS: Final = 8
_FEWEST_MEASURED: Final = 2
_LEAST_BAR: Final = 8
_MOST_BAR: Final = 30
_TEXT_COLUMNS: Final = 36
_MINUTE_S: Final = 60
_HOUR_S: Final = 3600


@value
class ShownProgress:
    """`done` of `total` steps, and what that means in words; `left_s` (seconds) is None where it is not known."""

    done: int
    total: int
    text: str
    left_s: float | None = None


def draw_bar(progress: ShownProgress, *, width: int, is_ascii: bool) -> str:
    """Return the bar and its text, in `width` columns if the bar can have four of them."""
    left = "" if progress.left_s is None else f", about {describe_span(progress.left_s)} left"
    text = f"{progress.text}{left}"
    # The bar keeps its size while the text changes, unless the terminal is narrow.
    size = min(max(width - _TEXT_COLUMNS, _LEAST_BAR), _MOST_BAR, max(width - len(text) - 1, _LEAST_BAR // 2))
    return f"{bar(progress.done / progress.total, is_ascii=is_ascii, width=size)} {text}"


def describe_span(span_s: float) -> str:
    """Return `span_s` (seconds) as a person says it: 12 s, 5 min, 2 h 10 min."""
    if span_s < _MINUTE_S:
        return f"{max(round(span_s), 1)} s"
    if span_s < _HOUR_S:
        return f"{round(span_s / _MINUTE_S)} min"
    hours, rest_s = divmod(span_s, _HOUR_S)
    return f"{hours:.0f} h {rest_s // _MINUTE_S:.0f} min"


MOST_STEPS: Final[Mapping[str, Callable[[Mapping[str, Any]], int]]] = MappingProxyType(
    {
        "best_of_n": lambda config: config["samples"] * (1 if config["verifier"] == "schema" else 2),
        "bounded_context": lambda config: config["max_iterations"],
        "chain_of_verification": lambda config: config["max_questions"] + 3,
        "plan_and_solve": lambda _: 2,
        "program_of_thought": lambda config: 2 * config["max_attempts"],
        "react": lambda config: config["max_iterations"],
        "self_consistency": lambda config: config["samples"],
        "self_refine": lambda config: 2 * config["max_rounds"] + 1,
    }
)
"""The most steps of a strategy by its configuration; for bounded_context without those that read."""


@dataclass(slots=True, kw_only=True)
class RunProgress:
    """Keeps what was seen of a run."""

    strategy: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 0
    readings: int = 0
    model_calls: int = 0
    spans_s: deque[float] = field(default_factory=lambda: deque(maxlen=_MEASURED_STEPS))

    def take(self, step: Iteration) -> ShownProgress | None:
        """Return how far the run has come with `step`; None where that is not known."""
        self.steps = step.index + 1
        self.model_calls += step.usage.model_calls
        if step.bounded_context.HasField("reading"):
            return self._read(step)
        with contextlib.suppress(KeyError, TypeError):
            # Another release may have other keys.
            return self._reason()
        return None

    def _read(self, step: Iteration) -> ShownProgress:
        """Return the progress of reading; the answer takes one more window than the text."""
        done, count = step.bounded_context.reading.segment, step.bounded_context.reading.segment_count
        self.readings = self.steps
        self.spans_s.append(span_of(step.elapsed))
        left_s = None
        if len(self.spans_s) >= _FEWEST_MEASURED:
            left_s = (count + 1 - done) * sum(self.spans_s) / len(self.spans_s)
        return ShownProgress(done=min(done, count), total=count + 1, text=f"read {done:,} of {count:,}", left_s=left_s)

    def _reason(self) -> ShownProgress | None:
        if self.strategy == "tree_of_thought":
            return count_to(self.model_calls, self.config["max_model_calls"], "model call")
        if self.strategy not in MOST_STEPS:
            return None
        most, done = MOST_STEPS[self.strategy](self.config), self.steps - self.readings
        if self.readings:
            text = f"all is read; step {done} of at most {most}"
            return ShownProgress(done=self.readings, total=self.readings + 1, text=text)
        return count_to(done, most, "step")


def count_to(done: int, most: int, noun: str) -> ShownProgress:
    """Return the progress of what is done at most `most` times."""
    return ShownProgress(done=min(done, most), total=max(most, 1), text=f"{noun} {done:,} of at most {most:,}")
