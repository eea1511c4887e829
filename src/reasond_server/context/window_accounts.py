"""The metrics of a bounded-context run: a line for each window, and the savings.

Savings are measured against one pass, and against sending the history again with every call.

T(n) = n(n+1)/2 is the number of attention pairs for n tokens. Call i has a_i input and b_i output tokens. P is the
number of tokens of a prompt with the question and all the text that was read. G is the sum of b_i over the calls that
reason or read. G_j is that sum up to the j-th reasoning window; output of a reading window counts for the next
reasoning window.

| figure           | bounded                      | SINGLE_PASS     | REPROMPT          |
| attention_pct    | sum of T(a_i + b_i)          | T(P + G)        | sum of T(P + G_j) |
| kv_read_pct      | sum of T(a_i + b_i) - T(a_i) | T(P + G) - T(P) | T(P + G) - T(P)   |
| tokens_pct       | sum of a_i + b_i             | P + G           | sum of P + G_j    |
| peak_context_pct | largest a_i + b_i            | P + G           | P + G             |

A figure is 100 (1 - bounded / baseline), signed. The bounded side includes every call, also calls for carryovers, with
all its input, cached or not. The baselines make no carryover calls, so the output of those calls is not in G. The
baselines include all text of the windows, with their notes, as one chain of thought.

P is measured too: `OnePassPrompt` derives it from the prompts of the windows. P is at most their sum, so `tokens_pct`
against SINGLE_PASS is never positive, with any counter. A run that ended early is compared with one pass over the text
that it read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.llm.counting import make_fork
from reasond_server.types import BoundedContextMetrics, Savings, SavingsBaseline, Usage, UsageSource, WindowMetrics
from reasond_server.types.values import value

if TYPE_CHECKING:
    from reasond_server.context.window_fitting import FittedWindow
    from reasond_server.context.window_plan import WindowPlan
    from reasond_server.llm.model import TokenCounter


class OnePassPrompt:
    """P: the tokens of one prompt with all the text that the windows showed.

    P is the first prompt plus the new text of all later prompts. The new text of a prompt is its reported tokens minus
    the tokens of the repeated part: rules, question, notes, the server's template. The repeated part is counted, and
    the count is corrected with the reported tokens of prompts without new text, or of the first prompt if none exist.
    For an exact counter, the correction adds the tokens of the server's template. Other counts are scaled.
    """

    def __init__(self, counter: TokenCounter) -> None:
        # A copy that receives no reports, so that all windows of a run are counted in the same way.
        self._counter = make_fork(counter)
        self._first = _Prompts()
        self._with_text = _Prompts()
        self._without_text = _Prompts()

    @property
    def is_measured(self) -> bool:
        """Whether no part of a prompt was estimated."""
        return self._counter.is_exact or not self._with_text.number

    @property
    def tokens(self) -> int:
        """P for the windows so far."""
        text, known = self._with_text, self._without_text if self._without_text.number else self._first
        if not text.number:
            return self._first.reported
        if self._counter.is_exact:
            repeated = text.counted + (known.reported - known.counted) * text.number / known.number
        else:
            repeated = text.counted * known.reported / max(1, known.counted)
        return self._first.reported + min(text.reported, max(0, text.reported - round(repeated)))

    def add(self, fitted: FittedWindow, *, reported: int) -> None:
        """Add a window whose prompt had `reported` tokens."""
        if not self._first.number:
            self._first = self._first.add(reported=reported, counted=fitted.counted_tokens)
        elif bare := fitted.build_bare_prompt():
            self._with_text = self._with_text.add(reported=reported, counted=self._counter.count_prompt(bare))
        else:
            counted = self._counter.count_prompt(fitted.messages)
            self._without_text = self._without_text.add(reported=reported, counted=counted)


@value
class _Prompts:
    """Sums over several prompts: their reported tokens, and the counted tokens of their parts without new text."""

    number: int = 0
    reported: int = 0
    counted: int = 0

    def add(self, *, reported: int, counted: int) -> _Prompts:
        """Return the sums with one more prompt."""
        return _Prompts(number=self.number + 1, reported=self.reported + reported, counted=self.counted + counted)


class SavingsMeter:
    """Sums up calls in constant memory."""

    def __init__(self) -> None:
        self._windows = 0
        self._generated = 0
        self._spent = _Work()
        self._is_read_last = False
        self._is_reported = True
        # The number of windows that reason, and the sums of G_j and of its square.
        self._steps = self._sum = self._squares = 0

    def add(self, usage: Usage, *, is_reading: bool = False) -> None:
        """Add the call of a window."""
        self._windows += 1
        self._generated += usage.output_tokens
        self._is_read_last = is_reading
        self._spend(usage)
        if not is_reading:
            self._steps += 1
            self._sum += self._generated
            self._squares += self._generated**2

    def add_carryover(self, usage: Usage) -> None:
        """Add a call that is not a window: a summary, or a call that stop strings ended in its reasoning."""
        self._spend(usage)

    def compare(self, baseline: SavingsBaseline, *, prompt_tokens: int, is_measured: bool = True) -> Savings | None:
        """Return the savings so far; None until there are two windows.

        `prompt_tokens` is P, and `is_measured` is whether P was measured.
        """
        if self._windows <= 1:
            return None
        spent, work = self._spent, _Work().add(prompt_tokens, self._generated)
        if baseline is SavingsBaseline.REPROMPT:
            work = self._resend(prompt_tokens, work)
        return Savings(
            baseline=baseline,
            attention_pct=_compute_saving(spent.pairs, work.pairs),
            kv_read_pct=_compute_saving(spent.kv_read, work.kv_read),
            tokens_pct=_compute_saving(spent.tokens, work.tokens),
            peak_context_pct=_compute_saving(spent.peak, work.peak),
            is_measured=is_measured and self._is_reported,
        )

    def _spend(self, usage: Usage) -> None:
        self._spent = self._spent.add(usage.input_tokens, usage.output_tokens)
        self._is_reported = self._is_reported and usage.source is UsageSource.REPORTED

    def _resend(self, prompt: int, single_pass: _Work) -> _Work:
        """Return the work if every reasoning window sent the whole history; after a reading window, add one more."""
        steps, total, squares = self._steps, self._sum, self._squares
        if self._is_read_last:
            steps, total, squares = steps + 1, total + self._generated, squares + self._generated**2
        tokens = steps * prompt + total
        # The sum of T(P + G_j), from the sums of G_j and of its square, because P is known only at the end.
        pairs = (steps * prompt**2 + 2 * prompt * total + squares + tokens) // 2
        return _Work(pairs=pairs, kv_read=single_pass.kv_read, tokens=tokens, peak=single_pass.peak)


@value
class _Work:
    """The total work of several calls."""

    pairs: int = 0
    kv_read: int = 0
    tokens: int = 0
    peak: int = 0

    def add(self, given: int, written: int) -> _Work:
        """Return the work with one more call of `given` input and `written` output tokens."""
        whole = given + written
        return _Work(
            pairs=self.pairs + _count_pairs(whole),
            kv_read=self.kv_read + _count_pairs(whole) - _count_pairs(given),
            tokens=self.tokens + whole,
            peak=max(self.peak, whole),
        )


def _count_pairs(tokens: int) -> int:
    """Return the number of attention pairs in a window of `tokens` tokens."""
    return tokens * (tokens + 1) // 2


def _compute_saving(spent: int, baseline: int) -> float:
    """Return the saving in per cent, signed; 0 if the baseline is 0."""
    return 100.0 * (1.0 - spent / baseline) if baseline else 0.0


class WindowAccounts:
    """Keeps the metrics of one run. Its memory grows only by the lines of the windows, some 150 bytes each."""

    def __init__(self, plan: WindowPlan, *, counter: TokenCounter) -> None:
        self._plan = plan
        self._lines: list[WindowMetrics] = []
        self._savings = SavingsMeter()
        self._one_pass = OnePassPrompt(counter)
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
        fitted: FittedWindow,
        summary: Usage | None,
        is_exact: bool,
        is_answered: bool,
        is_generated: bool,
        is_only_hidden_reasoning: bool = False,
        elapsed_s: float,
    ) -> int:
        """Book a window and its summary call, if any; return the tokens of the larger of the two calls.

        `is_only_hidden_reasoning` is whether the model wrote only hidden reasoning.
        """
        is_reading = fitted.window.reading is not None
        self._savings.add(usage, is_reading=is_reading)
        self._one_pass.add(fitted, reported=usage.input_tokens)
        tokens = usage.total_tokens
        if summary is not None:
            self._savings.add_carryover(summary)
            self._carryover_calls += summary.model_calls
            tokens = max(tokens, summary.total_tokens)
        self._compressions += is_generated
        self._is_exact = self._is_exact and is_exact
        line = WindowMetrics(
            iteration=len(self._lines),
            tokens=tokens,
            has_answer=is_answered,
            carryover_generated=is_generated,
            execution_time_s=elapsed_s,
            is_reading=is_reading,
            is_only_hidden_reasoning=is_only_hidden_reasoning,
        )
        self._lines.append(line)
        return tokens

    def book_cut_call(self, usage: Usage) -> None:
        """Book an earlier call for the window, which stop strings ended in its reasoning; an empty usage is ignored."""
        if usage.model_calls:
            self._savings.add_carryover(usage)

    @property
    def metrics(self) -> BoundedContextMetrics:
        """The metrics so far."""
        one_pass = self._one_pass
        single, resent = (
            self._savings.compare(baseline, prompt_tokens=one_pass.tokens, is_measured=one_pass.is_measured)
            for baseline in (SavingsBaseline.SINGLE_PASS, SavingsBaseline.REPROMPT)
        )
        return BoundedContextMetrics(
            iterations=tuple(self._lines),
            carryover_compressions=self._compressions,
            carryover_calls=self._carryover_calls,
            savings=single,
            reprompt_savings=resent,
            capacity_tokens=self._plan.capacity_tokens,
            effective_capacity_tokens=self._plan.effective_capacity_tokens,
            is_window_exact=self._is_exact,
        )
