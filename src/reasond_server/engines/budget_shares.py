"""Shares of a repair's budget: each activity that calls a model gets one before it begins, and settles it after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reasond_server.llm.metering import build_exhausted_error
from reasond_server.types import NOTHING, Budget

if TYPE_CHECKING:
    from reasond_server.types import Usage

_LIMITS: Final = ("max_total_tokens", "max_output_tokens", "max_model_calls")


class BudgetShares:
    """The `budget` of one repair, whose activities run in several processes that know nothing of each other.

    Shares that are not settled and what was spent never exceed the budget together.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._open: list[Budget] = []
        self._spent = NOTHING
        self._lost_tokens = 0

    def reserve(self, most: Budget) -> Budget:
        """Return what an activity may spend: `most`, or less if less is left; None where nothing bounds it.

        Raises:
            TokenBudgetExhaustedError: nothing is left.
        """
        share = Budget(**{name: self._reserve(name, getattr(most, name)) for name in _LIMITS})
        self._open.append(share)
        return share

    def settle(self, share: Budget, usage: Usage, lost_tokens: int) -> None:
        """Replace a share by what was spent of it.

        `lost_tokens` were reserved for attempts that may be billed although they failed.
        """
        self._open.remove(share)
        self._spent += usage
        self._lost_tokens += lost_tokens

    def _reserve(self, name: str, most: int | None) -> int | None:
        limit = getattr(self._budget, name)
        if limit is None:
            return None
        taken = self._count_spent(name) + sum(getattr(share, name) for share in self._open)
        if taken >= limit:
            raise build_exhausted_error(name, limit=limit, spent=taken, needed=1)
        left: int = limit - taken
        return left if most is None else min(most, left)

    def _count_spent(self, name: str) -> int:
        if name == "max_total_tokens":
            return self._spent.total_tokens + self._lost_tokens
        return self._spent.output_tokens if name == "max_output_tokens" else self._spent.model_calls
