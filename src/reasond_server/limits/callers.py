"""The limits as the core uses them: the admission of executions, and the budget of a caller's tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from reasond_server.limits.budgets import CallerAccount, TokenLedger
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.types.values import value

if TYPE_CHECKING:
    from reasond_server.errors.limits import TokenBudgetExhaustedError
    from reasond_server.limits.request_limits import ExecutionPermit, RequestGate
    from reasond_server.types import Principal

_log = logging.getLogger("reasond.limits")


class SharedHealth:
    """The health of Redis: after a failure it is not tried for `rest_s` seconds, then one attempt decides."""

    def __init__(self, *, monotonic: Callable[[], float], rest_s: float = 1.0) -> None:
        self._monotonic = monotonic
        self._rest_s = rest_s
        self._failed_s: float | None = None

    @property
    def is_degraded(self) -> bool:
        """Whether the last attempt failed; each server then applies the limits on its own."""
        return self._failed_s is not None

    def may_try(self) -> bool:
        """Return whether to try now; after `rest_s` only the first call gets True."""
        if self._failed_s is None:
            return True
        now_s = self._monotonic()
        if now_s - self._failed_s < self._rest_s:
            return False
        self._failed_s = now_s
        return True

    def note_failure(self, error: Exception) -> None:
        """Record a failed attempt."""
        if self._failed_s is None:
            _log.warning("limits cannot be shared at present: %s", type(error).__name__)
        self._failed_s = self._monotonic()

    def note_success(self) -> None:
        """Record a successful attempt."""
        if self._failed_s is not None:
            _log.info("limits are shared again")
        self._failed_s = None


OnSettled = Callable[[str, str, float], None]
"""Is told tenant, subject (empty if the tenant is the caller) and the share of the tokens of a day that is left."""


def ignore_settled(_tenant: str, _subject: str, _left: float) -> None:
    """Do nothing."""


@value
class CallerLimits:
    """The limits of callers; a caller is a subject within its tenant, or a tenant.

    `on_settled` is told what is left of a budget of the day after each model call.
    """

    gate: RequestGate | None
    ledger: TokenLedger | None
    weights: Mapping[str, int]
    by: Literal["subject", "tenant"] = "subject"
    observer: Observer = UNOBSERVED
    on_settled: OnSettled = ignore_settled

    async def admit(self, principal: Principal, strategy: str) -> ExecutionPermit | None:
        """Count an execution of `strategy` by its weight; return a permit to leave at its end; None without limits.

        Raises:
            RateLimitedError: a limit is reached; nothing was counted.
        """
        if self.gate is None:
            return None
        caller = self._name_caller(principal.tenant, principal.subject)
        return await self.gate.admit(caller, weight=self.weights.get(strategy, 1))

    async def carry_over(self, tenant: str, subject: str, name: str, life: int) -> ExecutionPermit | None:
        """Return a permit to resume an execution that the permit `name` admitted; this is never refused."""
        if self.gate is None:
            return None
        return await self.gate.carry_over(self._name_caller(tenant, subject), name, life=life)

    async def aclose(self) -> None:
        """Wait until the slots of all permits that were left are released."""
        if self.gate is not None:
            await self.gate.aclose()

    async def require_tokens(self, principal: Principal, least: int) -> None:
        """Refuse what costs no tokens itself to a caller who has fewer than `least` for what it is for.

        Raises:
            TokenBudgetExhaustedError: the token budget is spent.
        """
        account = self.open_account(principal.tenant, principal.subject)
        if account is not None:
            await account.settle(await account.reserve(least=least, most=least), used=0)

    def open_account(
        self, tenant: str, subject: str, *, on_refused: Callable[[TokenBudgetExhaustedError], None] = lambda _: None
    ) -> CallerAccount | None:
        """Return the account with the token budget of a caller; None without a limit."""
        if self.ledger is None:
            return None
        return CallerAccount(
            ledger=self.ledger,
            caller=self._name_caller(tenant, subject),
            observer=self.observer,
            on_refused=on_refused,
            on_settled=partial(self.on_settled, tenant, "" if self.by == "tenant" else subject),
        )

    def _name_caller(self, tenant: str, subject: str) -> str:
        # A tenant's name may contain any character, so its length marks its end.
        return f"t{tenant}" if self.by == "tenant" else f"s{len(tenant)}:{tenant}{subject}"


NO_LIMITS: Final = CallerLimits(gate=None, ledger=None, weights={})
