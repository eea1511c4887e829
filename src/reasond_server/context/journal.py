"""The books of a bounded-context run: a line of metrics for each window, what was saved, and what readers must know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.context.savings import SavingsMeter
from reasond_server.types import BoundedContextMetrics, WindowLines

if TYPE_CHECKING:
    from reasond_server.context.windows import WindowPlan
    from reasond_server.types import Usage


class Journal:
    """Keeps the accounts of one run; the line of each window, 17 bytes, is all that grows with its depth."""

    def __init__(self, plan: WindowPlan) -> None:
        self._plan = plan
        self._lines = WindowLines()
        self._savings = SavingsMeter(single_pass_tokens=plan.single_pass_tokens)
        self._warnings: dict[str, None] = {}
        self._compressions = 0
        self._carryover_calls = 0
        self._is_exact = True

    @property
    def is_empty(self) -> bool:
        """Whether no window has been booked yet."""
        return not self._lines

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the result's reader must know, each once."""
        return tuple(self._warnings)

    def warn(self, text: str) -> None:
        """Note what the reader must know; an empty text is nothing."""
        if text:
            self._warnings[text] = None

    def book(
        self,
        usage: Usage,
        *,
        summary: Usage | None,
        is_exact: bool,
        is_answered: bool,
        is_generated: bool,
        is_reading: bool,
        is_eaten: bool = False,
        elapsed_s: float,
    ) -> int:
        """Book a window with the call for its carryover, if any; return the tokens of the larger of the two.

        `is_eaten` tells that hidden reasoning is all that the model wrote.
        """
        self._savings.add(usage, is_reading=is_reading)
        tokens = usage.total_tokens
        if summary is not None:
            self._savings.add_carryover(summary)
            self._carryover_calls += summary.model_calls
            tokens = max(tokens, summary.total_tokens)
        self._compressions += is_generated
        self._is_exact = self._is_exact and is_exact
        self._lines = self._lines.plus(
            tokens=tokens,
            has_answer=is_answered,
            carryover_generated=is_generated,
            execution_time_s=elapsed_s,
            is_reading=is_reading,
            is_only_hidden_reasoning=is_eaten,
        )
        return tokens

    @property
    def metrics(self) -> BoundedContextMetrics:
        """The metrics so far."""
        return BoundedContextMetrics(
            iterations=self._lines,
            carryover_compressions=self._compressions,
            carryover_calls=self._carryover_calls,
            savings=self._savings.savings,
            reprompt_savings=self._savings.reprompt_savings,
            capacity_tokens=self._plan.capacity_tokens,
            effective_capacity_tokens=self._plan.effective_capacity_tokens,
            is_window_exact=self._is_exact,
        )
