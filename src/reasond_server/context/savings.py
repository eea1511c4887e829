"""What bounded windows saved, from measured usage, against one pass and against sending the history again.

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

from reasond_server.types import Savings, SavingsBaseline

if TYPE_CHECKING:
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
        self._spent = self._spent.plus(usage.input_tokens, usage.output_tokens)
        self._is_read_last = is_reading
        if not is_reading:
            self._resent = self._resent.plus(self._prompt + self._generated, 0)

    def add_carryover(self, usage: Usage) -> None:
        """Count a call that was made for a carryover alone."""
        self._spent = self._spent.plus(usage.input_tokens, usage.output_tokens)

    @property
    def savings(self) -> Savings | None:
        """The savings so far against one pass; None while there was one window at most."""
        return self._against(SavingsBaseline.SINGLE_PASS, _Work().plus(self._prompt, self._generated))

    @property
    def reprompt_savings(self) -> Savings | None:
        """The same against sending everything again for every window that reasons."""
        resent = self._resent
        if self._is_read_last:
            resent = resent.plus(self._prompt + self._generated, 0)
        decoding = _Work().plus(self._prompt, self._generated)
        return self._against(SavingsBaseline.REPROMPT, replace(resent, kv_read=decoding.kv_read))

    def _against(self, baseline: SavingsBaseline, work: _Work) -> Savings | None:
        if self._windows <= 1:
            return None
        spent = self._spent
        return Savings(
            baseline=baseline,
            attention_pct=_saved_pct(spent.pairs, work.pairs),
            kv_read_pct=_saved_pct(spent.kv_read, work.kv_read),
            tokens_pct=_saved_pct(spent.tokens, work.tokens),
            peak_context_pct=_saved_pct(spent.peak, work.peak),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What calls take together."""

    pairs: int = 0
    kv_read: int = 0
    tokens: int = 0
    peak: int = 0

    def plus(self, given: int, written: int) -> _Work:
        """Return this and one call more."""
        whole = given + written
        return _Work(
            pairs=self.pairs + _pairs(whole),
            kv_read=self.kv_read + _pairs(whole) - _pairs(given),
            tokens=self.tokens + whole,
            peak=max(self.peak, whole),
        )


def _pairs(tokens: int) -> int:
    """Return how many pairs of tokens attend to each other in a window of `tokens`."""
    return tokens * (tokens + 1) // 2


def _saved_pct(spent: int, baseline: int) -> float:
    """Return the saving in per cent, signed; 0 where the baseline is nothing."""
    return 100.0 * (1.0 - spent / baseline) if baseline else 0.0
