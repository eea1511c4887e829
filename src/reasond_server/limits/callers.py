"""What the core asks about limits: may this caller start an execution, and which budget do its tokens come from."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager

    from reasond_server.limits.requests import RequestGate
    from reasond_server.limits.tokens import Reservation, TokenLedger
    from reasond_server.types import Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenAccount:
    """The budget of one caller."""

    ledger: TokenLedger
    caller: str

    async def reserve(self, *, least: int, most: int) -> Reservation:
        """Set tokens aside for a model call. Raises as TokenLedger.reserve."""
        return await self.ledger.reserve(self.caller, least=least, most=most)

    async def settle(self, reservation: Reservation, *, used: int) -> None:
        """Give back or charge the rest."""
        await self.ledger.settle(reservation, used=used)


class CallerLimits:
    """The limits by caller: by subject within its tenant, or by tenant."""

    def __init__(
        self,
        *,
        gate: RequestGate | None,
        ledger: TokenLedger | None,
        weights: Mapping[str, int],
        by: Literal["subject", "tenant"] = "subject",
    ) -> None:
        self._gate = gate
        self._ledger = ledger
        self._weights = weights
        self._by = by

    def admitted(self, principal: Principal, strategy: str) -> AbstractAsyncContextManager[None]:
        """Return a context that holds a place for an execution of `strategy`, counted by its weight.

        Raises:
            RateLimitedError: when it is entered and a limit is met; nothing was counted.
        """
        if self._gate is None:
            return nullcontext()
        return self._gate.admitted(self._caller(principal), weight=self._weights.get(strategy, 1))

    def account(self, principal: Principal) -> TokenAccount | None:
        """Return the budget that the caller's tokens come from; None where there is no bound."""
        return None if self._ledger is None else TokenAccount(ledger=self._ledger, caller=self._caller(principal))

    def _caller(self, principal: Principal) -> str:
        # A tenant's name may hold any character, so its length tells where it ends.
        if self._by == "tenant":
            return f"t{principal.tenant}"
        return f"s{len(principal.tenant)}:{principal.tenant}{principal.subject}"
