"""What bounded windows saved, from measured usage, against one pass with everything in one window.

With T(n) = n(n+1)/2 attention pairs for n tokens, windows i of a_i input and b_i output tokens, P tokens of
a prompt that holds question and material whole, and G = sum of all b_i:

| figure           | bounded                          | single pass   |
| attention_pct    | sum of T(a_i + b_i)              | T(P + G)      |
| kv_read_pct      | sum of T(a_i + b_i) - T(a_i)     | T(P + G) - T(P) |
| tokens_pct       | sum of a_i + b_i                 | P + G         |
| peak_context_pct | largest a_i + b_i                | P + G         |

A figure is 100 (1 - bounded / single pass), signed: `tokens_pct` is negative as a rule, because every window
is sent the question and the notes again. The single pass is assumed to write as many tokens as the windows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.types import Savings, SavingsBaseline

if TYPE_CHECKING:
    from reasond_server.types import Usage


class SavingsMeter:
    """Adds up windows in constant memory. `single_pass_tokens` is P."""

    def __init__(self, *, single_pass_tokens: int) -> None:
        self._prompt = single_pass_tokens
        self._windows = 0
        self._generated = 0
        self._pairs = 0
        self._kv_read = 0
        self._tokens = 0
        self._peak = 0

    def add(self, usage: Usage) -> None:
        """Count one window."""
        whole = usage.total_tokens
        self._windows += 1
        self._generated += usage.output_tokens
        self._pairs += _pairs(whole)
        self._kv_read += _pairs(whole) - _pairs(usage.input_tokens)
        self._tokens += whole
        self._peak = max(self._peak, whole)

    @property
    def savings(self) -> Savings | None:
        """The savings so far; None while there was one window at most."""
        if self._windows <= 1:
            return None
        whole = self._prompt + self._generated
        return Savings(
            baseline=SavingsBaseline.SINGLE_PASS,
            attention_pct=_saved_pct(self._pairs, _pairs(whole)),
            kv_read_pct=_saved_pct(self._kv_read, _pairs(whole) - _pairs(self._prompt)),
            tokens_pct=_saved_pct(self._tokens, whole),
            peak_context_pct=_saved_pct(self._peak, whole),
        )


def _pairs(tokens: int) -> int:
    """Return how many pairs of tokens attend to each other in a window of `tokens`."""
    return tokens * (tokens + 1) // 2


def _saved_pct(spent: int, baseline: int) -> float:
    """Return the saving in per cent, signed; 0 where the baseline is nothing."""
    return 100.0 * (1.0 - spent / baseline) if baseline else 0.0
