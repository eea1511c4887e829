"""What the core asks about limits: may this caller start an execution, and which budget do its tokens come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from reasond_server.errors import TokenBudgetExhaustedError
from reasond_server.telemetry.observers import UNOBSERVED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from reasond_server.limits.requests import Permit, RequestGate
    from reasond_server.limits.tokens import Reservation, TokenLedger
    from reasond_server.telemetry.observers import LimitObserver
    from reasond_server.types import Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerAccount:
    """The budget of one caller; `on_refused` hears of each model call that it does not cover."""

    ledger: TokenLedger
    caller: str
    observer: LimitObserver
    on_refused: Callable[[TokenBudgetExhaustedError], None]

    async def reserve(self, *, least: int, most: int) -> Reservation:
        """Set tokens aside for a model call. Raises as TokenLedger.reserve."""
        try:
            reservation = await self.ledger.reserve(self.caller, least=least, most=most)
        except TokenBudgetExhaustedError as error:
            self.observer.caller_refused("budget")
            self.on_refused(error)
            raise
        self.observer.tokens_reserved(reservation.tokens)
        return reservation

    async def settle(self, held: Reservation, *, used: int) -> None:
        """Give back or charge the rest."""
        self.observer.tokens_settled(held.tokens, used)
        await self.ledger.settle(held, used=used)


class CallerLimits:
    """The limits by caller: by subject within its tenant, or by tenant."""

    def __init__(
        self,
        *,
        gate: RequestGate | None,
        ledger: TokenLedger | None,
        weights: Mapping[str, int],
        by: Literal["subject", "tenant"] = "subject",
        observer: LimitObserver = UNOBSERVED,
    ) -> None:
        self._observer = observer
        self._gate = gate
        self._ledger = ledger
        self._weights = weights
        self._by = by

    async def admit(self, principal: Principal, strategy: str) -> Permit | None:
        """Count an execution of `strategy` by its weight; return what is to be left at its end, None for nothing.

        Raises:
            RateLimitedError: a limit is met; nothing was counted.
        """
        if self._gate is None:
            return None
        caller = self._caller(principal.tenant, principal.subject)
        return await self._gate.admit(caller, weight=self._weights.get(strategy, 1))

    async def carry_over(self, tenant: str, subject: str, name: str, life: int) -> Permit | None:
        """Return the right to go on with an execution that was admitted by the permit `name`; nobody is refused."""
        if self._gate is None:
            return None
        return await self._gate.carry_over(self._caller(tenant, subject), name, life=life)

    async def aclose(self) -> None:
        """Wait until all that was left is given back."""
        if self._gate is not None:
            await self._gate.aclose()

    def account(
        self, tenant: str, subject: str, *, on_refused: Callable[[TokenBudgetExhaustedError], None] = lambda _: None
    ) -> CallerAccount | None:
        """Return the budget that a caller's tokens come from; None where there is no bound."""
        if self._ledger is None:
            return None
        return CallerAccount(
            ledger=self._ledger,
            caller=self._caller(tenant, subject),
            observer=self._observer,
            on_refused=on_refused,
        )

    def _caller(self, tenant: str, subject: str) -> str:
        # A tenant's name may hold any character, so its length tells where it ends.
        return f"t{tenant}" if self._by == "tenant" else f"s{len(tenant)}:{tenant}{subject}"


NO_LIMITS = CallerLimits(gate=None, ledger=None, weights={})
