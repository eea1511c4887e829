"""Token budgets of callers: tokens are reserved before a model call and settled with the tokens that it used.

Each caller has a bucket for a minute and one for a day. A bucket holds its limit and refills evenly over its time. A
reservation never overdraws a bucket: the call gets fewer tokens if they are enough for it, else it is refused. If a
model server ignores its limit and uses more tokens than reserved, the bucket falls below zero and refuses calls until
it has refilled. A reservation that is never settled, because its process died, counts as spent.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count, islice
from typing import TYPE_CHECKING, Final, Protocol

from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reasond_server.telemetry.observers import Observer

MINUTE_S: Final = 60.0
DAY_S: Final = 86_400.0
# Longer than any call may take. A later settlement changes nothing.
RESERVED_S: Final = 3600.0
# For each new caller this many others are examined to make room.
_EXAMINED: Final = 32


@value
class TokenLimits:
    """Tokens that a caller may spend in a minute and in a day; None means no limit."""

    per_minute: int | None = None
    per_day: int | None = None

    @property
    def buckets(self) -> Sequence[tuple[int, float]]:
        """Capacity and seconds of each bucket."""
        pairs = ((self.per_minute, MINUTE_S), (self.per_day, DAY_S))
        return [(amount, seconds) for amount, seconds in pairs if amount is not None]


@value
class Reservation:
    """Tokens reserved for one model call of `caller`."""

    id: str
    caller: str
    tokens: int


class TokenLedger(Protocol):
    """The buckets of all callers."""

    async def reserve(self, caller: str, *, least: int, most: int) -> Reservation:
        """Reserve up to `most` tokens, but at least `least`.

        Raises:
            TokenBudgetExhaustedError: fewer than `least` are left. The error has the time to wait if waiting helps.
        """

    async def settle(self, reservation: Reservation, *, used: int) -> float | None:
        """Return unused tokens, or charge those used beyond the reservation; a second settlement changes nothing.

        Return the share that is left of the tokens of a day; None if it is unknown, or there is no such limit.
        """


@value
class CallerAccount:
    """The budget of one caller in `ledger`; `on_refused` is called for each model call that it does not cover.

    `on_settled` is told the share of the tokens of a day that is left.
    """

    ledger: TokenLedger
    caller: str
    observer: Observer
    on_refused: Callable[[TokenBudgetExhaustedError], None]
    on_settled: Callable[[float], None] = lambda _: None

    async def reserve(self, *, least: int, most: int) -> Reservation:
        """Reserve tokens for a model call. Raises the same errors as TokenLedger.reserve."""
        try:
            reservation = await self.ledger.reserve(self.caller, least=least, most=most)
        except TokenBudgetExhaustedError as error:
            self.observer.caller_refused("budget")
            self.on_refused(error)
            raise
        self.observer.tokens_reserved(reservation.tokens)
        return reservation

    async def settle(self, reservation: Reservation, *, used: int) -> None:
        """See TokenLedger."""
        self.observer.tokens_settled(reservation.tokens, used)
        left = await self.ledger.settle(reservation, used=used)
        if left is not None:
            self.on_settled(left)


def build_refusal(limits: TokenLimits, *, least: int, left: int, wait_s: float | None) -> TokenBudgetExhaustedError:
    """Return the error for a call that needs `least` tokens while `left` are left; `wait_s` None means never enough."""
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
    """The tokens that were left at a given time; the bucket refills evenly."""

    capacity: int
    seconds: float
    level: float
    at_s: float

    def fill(self, now_s: float) -> None:
        """Add the tokens that have refilled since the last call."""
        if now_s > self.at_s:
            level = self.level + (now_s - self.at_s) * self.capacity / self.seconds
            self.level = min(self.capacity, level)
            self.at_s = now_s

    def compute_wait_s(self, tokens: int) -> float | None:
        """Return the seconds until the bucket has `tokens`; None if its capacity is smaller."""
        if tokens > self.capacity:
            return None
        return max(0.0, (tokens - self.level) * self.seconds / self.capacity)


class MemoryTokenLedger:
    """The ledger of one process; it removes callers whose buckets are full."""

    def __init__(self, *, limits: TokenLimits, monotonic: Callable[[], float], most_callers: int = 100_000) -> None:
        self._limits = limits
        self._monotonic = monotonic
        self._most_callers = most_callers
        self._buckets: dict[str, list[_Bucket]] = {}
        self._open: set[str] = set()
        self._ids = map(str, count(1))

    async def reserve(self, caller: str, *, least: int, most: int) -> Reservation:
        """See TokenLedger."""
        buckets = self._fill_buckets(caller)
        granted = most
        for bucket in buckets:
            if bucket.level < granted:
                granted = int(bucket.level)
        if granted < least:
            waits = [bucket.compute_wait_s(least) for bucket in buckets]
            wait_s = None if None in waits else max(wait for wait in waits if wait is not None)
            raise build_refusal(self._limits, least=least, left=granted, wait_s=wait_s)
        for bucket in buckets:
            bucket.level -= granted
        reservation = Reservation(id=next(self._ids), caller=caller, tokens=granted)
        self._open.add(reservation.id)
        return reservation

    async def settle(self, reservation: Reservation, *, used: int) -> float | None:
        """See TokenLedger."""
        if reservation.id not in self._open:
            return None
        self._open.remove(reservation.id)
        back, left = reservation.tokens - used, None
        for bucket in self._fill_buckets(reservation.caller):
            bucket.level = min(bucket.capacity, bucket.level + back)
            left = bucket.level / bucket.capacity if bucket.seconds == DAY_S else None
        return left

    def _fill_buckets(self, caller: str) -> list[_Bucket]:
        """Return the buckets of `caller`, refilled up to now."""
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
        """Remove some callers whose buckets are full; a new bucket would be the same.

        It examines only a few callers, in rotation, so that no call is delayed.
        """
        for caller in list(islice(self._buckets, _EXAMINED)):
            buckets = self._buckets.pop(caller)
            for bucket in buckets:
                bucket.fill(now_s)
            if any(bucket.level < bucket.capacity for bucket in buckets):
                self._buckets[caller] = buckets
