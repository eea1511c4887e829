"""The accounts of a bounded-context run: a line of metrics for each window, and what was saved.

Savings are measured against one pass and against sending the history again.

With T(n) = n(n+1)/2 attention pairs for n tokens, calls i of a_i input and b_i output tokens, P tokens of a prompt that
holds question and material whole, and G = sum of b_i over the calls that reason or read (G_j up to the j-th reasoning
window; what was written while reading counts to the window after it):

| figure           | bounded                      | SINGLE_PASS     | REPROMPT          |
| attention_pct    | sum of T(a_i + b_i)          | T(P + G)        | sum of T(P + G_j) |
| kv_read_pct      | sum of T(a_i + b_i) - T(a_i) | T(P + G) - T(P) | T(P + G) - T(P)   |
| tokens_pct       | sum of a_i + b_i             | P + G           | sum of P + G_j    |
| peak_context_pct | largest a_i + b_i            | P + G           | P + G             |

A figure is 100 (1 - bounded / baseline), signed. The bounded side holds every call, those for carryovers included,
with all its input, cached or not; neither baseline makes carryover calls, so what those wrote is not in G. Baselines
are given all that the windows wrote, their notes included, as one chain of thought. Against SINGLE_PASS `tokens_pct` is
negative as a rule, because every window is sent the question and the notes again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from reasond_server.types import BoundedContextMetrics, Savings, SavingsBaseline, WindowLines

if TYPE_CHECKING:
    from reasond_server.context.window_plan import WindowPlan
    from reasond_server.types import Usage


class SavingsMeter:
    """Adds up calls in constant memory. `single_pass_tokens` is P."""

    def __init__(self, *, single_pass_tokens: int) -> None:
        self._prompt = single_pass_tokens
        self._windows = 0
        self._generated = 0
        self._spent = _Work()
        self._resent = _Work()
        self._is_read_last = False

    def add(self, usage: Usage, *, is_reading: bool = False) -> None:
        """Count one window."""
        self._windows += 1
        self._generated += usage.output_tokens
        self._spent = self._spent.add(usage.input_tokens, usage.output_tokens)
        self._is_read_last = is_reading
        if not is_reading:
            self._resent = self._resent.add(self._prompt + self._generated, 0)

    def add_carryover(self, usage: Usage) -> None:
        """Count a call that is no window: made for a carryover alone, or ended in its reasoning by stop strings."""
        self._spent = self._spent.add(usage.input_tokens, usage.output_tokens)

    @property
    def savings(self) -> Savings | None:
        """The savings so far against one pass; None while there was one window at most."""
        return self._compare(SavingsBaseline.SINGLE_PASS, _Work().add(self._prompt, self._generated))

    @property
    def reprompt_savings(self) -> Savings | None:
        """The same against sending everything again for every window that reasons."""
        resent = self._resent
        if self._is_read_last:
            resent = resent.add(self._prompt + self._generated, 0)
        decoding = _Work().add(self._prompt, self._generated)
        return self._compare(SavingsBaseline.REPROMPT, replace(resent, kv_read=decoding.kv_read))

    def _compare(self, baseline: SavingsBaseline, work: _Work) -> Savings | None:
        if self._windows <= 1:
            return None
        spent = self._spent
        return Savings(
            baseline=baseline,
            attention_pct=_compute_saving(spent.pairs, work.pairs),
            kv_read_pct=_compute_saving(spent.kv_read, work.kv_read),
            tokens_pct=_compute_saving(spent.tokens, work.tokens),
            peak_context_pct=_compute_saving(spent.peak, work.peak),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What calls take together."""

    pairs: int = 0
    kv_read: int = 0
    tokens: int = 0
    peak: int = 0

    def add(self, given: int, written: int) -> _Work:
        """Return this and one call more."""
        whole = given + written
        return _Work(
            pairs=self.pairs + _count_pairs(whole),
            kv_read=self.kv_read + _count_pairs(whole) - _count_pairs(given),
            tokens=self.tokens + whole,
            peak=max(self.peak, whole),
        )


def _count_pairs(tokens: int) -> int:
    """Return how many pairs of tokens attend to each other in a window of `tokens`."""
    return tokens * (tokens + 1) // 2


def _compute_saving(spent: int, baseline: int) -> float:
    """Return the saving in per cent, signed; 0 where the baseline is nothing."""
    return 100.0 * (1.0 - spent / baseline) if baseline else 0.0


class WindowAccounts:
    """Keeps the accounts of one run; only the lines of its windows grow with its depth, 17 bytes each."""

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
        """The warnings of the result, each once."""
        return tuple(self._warnings)

    def warn(self, text: str) -> None:
        """Add a warning to the result; an empty text adds none."""
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
        is_only_hidden_reasoning: bool = False,
        elapsed_s: float,
    ) -> int:
        """Book a window with the call for its carryover, if any; return the tokens of the larger of the two.

        `is_only_hidden_reasoning` tells that hidden reasoning is all that the model wrote.
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
            is_only_hidden_reasoning=is_only_hidden_reasoning,
        )
        return tokens

    def book_cut_call(self, usage: Usage) -> None:
        """Book a call that stop strings ended in its reasoning, before the one that made the window; nothing: none."""
        if usage.model_calls:
            self._savings.add_carryover(usage)

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
