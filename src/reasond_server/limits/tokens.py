"""Token budgets of callers: reserved before a model call, settled with what it really had.

Each caller has a bucket for a minute and one for a day. A bucket holds its limit, is filled again evenly over its time,
and is never overdrawn by a reservation: a call that would is refused, or granted less where it can do with less. What a
call had beyond its reservation, which only a server that ignores limits brings about, is a debt: the bucket goes below
zero and refuses until it is filled again. A reservation that nobody settles was made by a process that died, and counts
as spent.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count, islice
from typing import TYPE_CHECKING, Final, Protocol

from reasond_server.errors import TokenBudgetExhaustedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MINUTE_S: Final = 60.0
DAY_S: Final = 86_400.0
# Longer than any call may take: a settlement that comes later changes nothing.
RESERVED_S: Final = 3600.0
# For every new caller so many are looked at, so that more leave than come.
_LOOKED_AT: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLimits:
    """Tokens that a caller may spend in a minute and in a day; None sets no bound."""

    per_minute: int | None = None
    per_day: int | None = None

    @property
    def buckets(self) -> Sequence[tuple[int, float]]:
        """Capacity and seconds of each bucket there is."""
        pairs = ((self.per_minute, MINUTE_S), (self.per_day, DAY_S))
        return [(amount, seconds) for amount, seconds in pairs if amount is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Tokens set aside for one model call of `caller`."""

    id: str
    caller: str
    tokens: int


class TokenLedger(Protocol):
    """Keeps the buckets of all callers."""

    async def reserve(self, caller: str, *, least: int, most: int) -> Reservation:
        """Set aside up to `most` tokens, but at least `least`.

        Raises:
            TokenBudgetExhaustedError: fewer are left; with the time to wait where waiting helps.
        """
        ...

    async def settle(self, reservation: Reservation, *, used: int) -> None:
        """Give back what was not used, or charge what was used beyond it; a second settlement changes nothing."""
        ...


def exhausted(limits: TokenLimits, *, least: int, left: int, wait_s: float | None) -> TokenBudgetExhaustedError:
    """Return the refusal of a call that needs `least` tokens while `left` are left; `wait_s` is None for never."""
    allowed = " and ".join(
        f"{amount} in {'a minute' if seconds == MINUTE_S else 'a day'}" for amount, seconds in limits.buckets
    )
    can_wait = wait_s is not None
    return TokenBudgetExhaustedError(
        f"The next model call needs at least {least} tokens, {max(0, left)} are left of the {allowed} that the caller "
        "may spend",
        remedy="Retry after the time given." if can_wait else "Shorten the task, or have [limits] raised.",
        metadata={"needed": str(least), "left": str(max(0, left))},
        retry_after_s=wait_s,
    )


@dataclass(slots=True)
class _Bucket:
    """Tokens left at a time, filled evenly."""

    capacity: int
    seconds: float
    level: float
    at_s: float

    def fill(self, now_s: float) -> None:
        """Add what came since the last time."""
        if now_s > self.at_s:
            level = self.level + (now_s - self.at_s) * self.capacity / self.seconds
            self.level = min(self.capacity, level)
            self.at_s = now_s

    def wait_s(self, tokens: int) -> float | None:
        """Return the seconds until `tokens` are there; None where the bucket never holds as many."""
        if tokens > self.capacity:
            return None
        return max(0.0, (tokens - self.level) * self.seconds / self.capacity)


class MemoryTokenLedger:
    """The ledger of one process; callers whose buckets are full are forgotten."""

    def __init__(self, *, limits: TokenLimits, monotonic: Callable[[], float], most_callers: int = 100_000) -> None:
        self._limits = limits
        self._monotonic = monotonic
        self._most_callers = most_callers
        self._buckets: dict[str, list[_Bucket]] = {}
        self._open: set[str] = set()
        self._ids = map(str, count(1))

    async def reserve(self, caller: str, *, least: int, most: int) -> Reservation:
        """See TokenLedger."""
        buckets = self._filled(caller)
        granted = most
        for bucket in buckets:
            if bucket.level < granted:
                granted = int(bucket.level)
        if granted < least:
            waits = [bucket.wait_s(least) for bucket in buckets]
            wait_s = None if None in waits else max(wait for wait in waits if wait is not None)
            raise exhausted(self._limits, least=least, left=granted, wait_s=wait_s)
        for bucket in buckets:
            bucket.level -= granted
        reservation = Reservation(id=next(self._ids), caller=caller, tokens=granted)
        self._open.add(reservation.id)
        return reservation

    async def settle(self, reservation: Reservation, *, used: int) -> None:
        """See TokenLedger."""
        if reservation.id not in self._open:
            return
        self._open.remove(reservation.id)
        back = reservation.tokens - used
        for bucket in self._filled(reservation.caller):
            bucket.level = min(bucket.capacity, bucket.level + back)

    def _filled(self, caller: str) -> list[_Bucket]:
        """Return the buckets of `caller` as they are now."""
        now_s = self._monotonic()
        buckets = self._buckets.get(caller)
        if buckets is None:
            if len(self._buckets) >= self._most_callers:
                self._forget_full(now_s)
            buckets = [
                _Bucket(capacity=capacity, seconds=seconds, level=capacity, at_s=now_s)
                for capacity, seconds in self._limits.buckets
            ]
            self._buckets[caller] = buckets
        for bucket in buckets:
            bucket.fill(now_s)
        return buckets

    def _forget_full(self, now_s: float) -> None:
        """Forget callers whose buckets are full again: a new one would be just the same.

        A few at a time, those first that were not looked at for longest: nobody waits while all are looked through.
        """
        for caller in list(islice(self._buckets, _LOOKED_AT)):
            buckets = self._buckets.pop(caller)
            for bucket in buckets:
                bucket.fill(now_s)
            if any(bucket.level < bucket.capacity for bucket in buckets):
                self._buckets[caller] = buckets
