"""A ledger that tells what is reserved, settled and refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.errors import TokenBudgetExhaustedError

if TYPE_CHECKING:
    from reasond_server.limits.tokens import Reservation, TokenLedger
    from reasond_server.telemetry.observers import LimitObserver


class ObservedLedger:
    """The ledger, with `observer` told."""

    def __init__(self, *, ledger: TokenLedger, observer: LimitObserver) -> None:
        self._ledger = ledger
        self._observer = observer

    async def reserve(self, caller: str, *, least: int, most: int) -> Reservation:
        """See TokenLedger."""
        try:
            reservation = await self._ledger.reserve(caller, least=least, most=most)
        except TokenBudgetExhaustedError:
            self._observer.denied("budget")
            raise
        self._observer.tokens_reserved(reservation.tokens)
        return reservation

    async def settle(self, reservation: Reservation, *, used: int) -> None:
        """See TokenLedger."""
        self._observer.tokens_settled(reservation.tokens, used)
        await self._ledger.settle(reservation, used=used)
