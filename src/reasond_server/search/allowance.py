"""What a search may still spend: worst cases are reserved before calls begin, and settled when they have ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Model calls and tokens (prompt and output together), as a worst case or as measured."""

    model_calls: int = 0
    tokens: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(model_calls=self.model_calls + other.model_calls, tokens=self.tokens + other.tokens)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(model_calls=self.model_calls - other.model_calls, tokens=self.tokens - other.tokens)


class Allowance:
    """Bounds on one search that parallel calls cannot exceed together.

    Reservations are made one after the other before any of their calls begins, so what is covered does not depend
    on which call ends first.

    Args:
        max_calls: most model calls; None sets no bound.
        max_tokens: most tokens, prompts and outputs together; None sets no bound.
        kept: what no reservation may touch, for a last call of the caller's.
    """

    def __init__(self, *, max_calls: int | None, max_tokens: int | None = None, kept: Cost | None = None) -> None:
        self._max_calls = max_calls
        self._max_tokens = max_tokens
        self._kept = kept or Cost()
        self.taken = Cost()

    def covers(self, cost: Cost) -> bool:
        """Return whether `cost` is left beside everything that is reserved, spent or kept."""
        after = self.taken + self._kept + cost
        has_calls = self._max_calls is None or after.model_calls <= self._max_calls
        return has_calls and (self._max_tokens is None or after.tokens <= self._max_tokens)

    def reserve(self, cost: Cost, *, is_forced: bool = False) -> bool:
        """Take `cost` if it is covered, or `is_forced`; return whether it was taken."""
        if not (is_forced or self.covers(cost)):
            return False
        self.taken += cost
        return True

    def settle(self, reserved: Cost, spent: Cost) -> None:
        """Put `spent` in the place of what was `reserved`."""
        self.taken += spent - reserved
