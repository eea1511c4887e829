"""How far a run has come: which share of its steps is done, and how long the rest takes if that can be known.

What a strategy will do is known from its configuration and its steps. Where only a most is known, the text says so and
tells no time; where nothing is known there is no progress to show.
"""

from __future__ import annotations

import contextlib
import json
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from reasond_server.base.plugins import list_built_in
from reasond_server.cli.run_text import bar, span_of
from reasond_server.reasoning.registry import STRATEGIES
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reasond import Iteration
    from reasond_server.strategies.strategy import StrategyConfig

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


def count_most_steps(strategy: str, config: Mapping[str, Any]) -> int | None:
    """Return the most steps of a run, as the built-in strategy says; None where that is not known.

    Those of bounded_context are without the steps that read.
    """
    if not config or strategy not in list_built_in(STRATEGIES.group):
        return None
    kind: type[StrategyConfig] = STRATEGIES.find_installed()[strategy].load().config_type
    with contextlib.suppress(ValidationError):
        # Another release may have other keys.
        return kind.model_validate_json(json.dumps(config)).most_steps
    return None


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
        return self._reason()

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
            most_calls = self.config.get("max_model_calls")
            return count_to(self.model_calls, most_calls, "model call") if isinstance(most_calls, int) else None
        most, done = count_most_steps(self.strategy, self.config), self.steps - self.readings
        if most is None:
            return None
        if self.readings:
            text = f"all is read; step {done} of at most {most}"
            return ShownProgress(done=self.readings, total=self.readings + 1, text=text)
        return count_to(done, most, "step")


def count_to(done: int, most: int, noun: str) -> ShownProgress:
    """Return the progress of what is done at most `most` times."""
    return ShownProgress(done=min(done, most), total=max(most, 1), text=f"{noun} {done:,} of at most {most:,}")
