"""What a run has spent in all its lives: calls that are on record, calls that were broken off, calls of today."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.types import NOTHING, Usage

if TYPE_CHECKING:
    from reasond_server.llm.metering import MeteredModel


class Spending:
    """Adds what `model` spends to what was spent before.

    `before` is all that earlier lives of the run spent, `recorded` the part of it that is booked again when calls are
    recalled. The rest went into calls that were broken off: nobody gets it back, and it is no part of the budget.
    """

    def __init__(self, *, model: MeteredModel, before: Usage = NOTHING, recorded: Usage = NOTHING) -> None:
        self._model = model
        self._before = before
        self._lost = NOTHING if before is NOTHING else _rest(before, recorded)

    @property
    def total(self) -> Usage:
        """Everything, never less than what was said before."""
        if self._before is NOTHING:
            return self._model.usage
        total = self._lost + self._model.usage
        return total if _is_as_much(total, self._before) else self._before


def _is_as_much(one: Usage, other: Usage) -> bool:
    return one.total_tokens >= other.total_tokens and one.model_calls >= other.model_calls


def _rest(whole: Usage, part: Usage) -> Usage:
    return Usage(
        input_tokens=max(0, whole.input_tokens - part.input_tokens),
        output_tokens=max(0, whole.output_tokens - part.output_tokens),
        cached_input_tokens=max(0, whole.cached_input_tokens - part.cached_input_tokens),
        reasoning_tokens=max(0, whole.reasoning_tokens - part.reasoning_tokens),
        model_calls=max(0, whole.model_calls - part.model_calls),
        source=whole.source,
    )
