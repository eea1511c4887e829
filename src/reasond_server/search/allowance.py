"""The allowance of a search: the worst case is reserved before work begins and settled when the work has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Final

from reasond_server.types.values import value

MODEL_CALLS: Final = "model_calls"
TOKENS: Final = "tokens"


@value
class Cost:
    """The cost of work, as a worst case or as measured; `tokens` counts prompt and output together.

    `resources` are other amounts by name, in pieces or in the unit at the end of the name: `checks`, `check_cpu_s`.
    """

    model_calls: int = 0
    tokens: int = 0
    resources: Mapping[str, float] = field(default_factory=dict, hash=False)

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            model_calls=self.model_calls + other.model_calls,
            tokens=self.tokens + other.tokens,
            resources=_add_amounts(self.resources, other.resources, sign=1),
        )

    def __sub__(self, other: Cost) -> Cost:
        return Cost(
            model_calls=self.model_calls - other.model_calls,
            tokens=self.tokens - other.tokens,
            resources=_add_amounts(self.resources, other.resources, sign=-1),
        )


class Allowance:
    """Bounds on one search, which its parallel calls together cannot exceed.

    Reservations are made one after the other before any of their work begins, so the set of covered calls does not
    depend on which call ends first.

    Args:
        max_calls: most model calls; None sets no bound.
        max_tokens: most tokens, prompts and outputs together; None sets no bound.
        max_resources: bounds by name of the resource; other resources have no bound.
        margin: amount that no reservation may use; it is kept for a last call of the caller.
    """

    def __init__(
        self,
        *,
        max_calls: int | None,
        max_tokens: int | None = None,
        max_resources: Mapping[str, float] | None = None,
        margin: Cost | None = None,
    ) -> None:
        self._max_calls = max_calls
        self._max_tokens = max_tokens
        self._max_resources = dict(max_resources or {})
        self._margin = margin or Cost()
        self.taken = Cost()

    def can_cover(self, cost: Cost) -> bool:
        """Return whether `cost` is available after the margin and all reserved and spent amounts."""
        return not self.find_shortage(cost)

    def find_shortage(self, cost: Cost) -> str:
        """Return the name of a bound that `cost` would exceed: MODEL_CALLS, TOKENS or a resource; empty if none."""
        after = self.taken + self._margin + cost
        if self._max_calls is not None and after.model_calls > self._max_calls:
            return MODEL_CALLS
        if self._max_tokens is not None and after.tokens > self._max_tokens:
            return TOKENS
        return next((name for name, most in self._max_resources.items() if after.resources.get(name, 0) > most), "")

    def reserve(self, cost: Cost, *, is_forced: bool = False) -> bool:
        """Reserve `cost` if it is covered or `is_forced` is set; return whether it was reserved."""
        if not (is_forced or self.can_cover(cost)):
            return False
        self.taken += cost
        return True

    def settle(self, reserved: Cost, spent: Cost) -> None:
        """Replace the reservation `reserved` by the amount `spent`."""
        self.taken += spent - reserved


def _add_amounts(one: Mapping[str, float], other: Mapping[str, float], *, sign: int) -> Mapping[str, float]:
    """Return the sums by name; a sum of 0 is omitted."""
    sums = {name: one.get(name, 0) + sign * other.get(name, 0) for name in sorted({*one, *other})}
    return {name: amount for name, amount in sums.items() if amount}
