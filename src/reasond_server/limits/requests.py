"""How many requests a caller may make, and how many executions at once: refused ones count for nothing."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from limits import RateLimitItemPerHour, RateLimitItemPerMinute
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from reasond_server.errors import RateLimitedError
from reasond_server.telemetry.observers import UNOBSERVED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from limits import RateLimitItem
    from limits.aio.storage import MemoryStorage, RedisStorage

    from reasond_server.limits.concurrency import Slots
    from reasond_server.limits.fallback import Fallback
    from reasond_server.telemetry.observers import LimitObserver

_CONCURRENCY_WAIT_S = 1.0
# Places of lives before those have lapsed, or were moved already.
_LIVES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """Requests that a caller may make in a minute and in an hour, by weight; None sets no bound."""

    per_minute: int | None = None
    per_hour: int | None = None

    @property
    def items(self) -> Sequence[RateLimitItem]:
        """The limits in the words of the library."""
        minute = [] if self.per_minute is None else [RateLimitItemPerMinute(self.per_minute)]
        return [*minute, *([] if self.per_hour is None else [RateLimitItemPerHour(self.per_hour)])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial:
    """Which limit was met, and the seconds until it is worth trying again; None for never."""

    limit: str
    retry_after_s: float | None


class RequestRates(Protocol):
    """Counts requests."""

    async def count(self, caller: str, *, weight: int) -> Denial | None:
        """Count a request of `weight`, unless it would pass a limit; return which one then."""
        ...


class WindowRates:
    """Counts in sliding windows: the window before counts by the share of it that is still in sight."""

    def __init__(
        self,
        *,
        storage: MemoryStorage | RedisStorage,
        limits: RequestLimits,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._limiter = SlidingWindowCounterRateLimiter(storage)
        self._items = limits.items
        self._clock = clock

    async def count(self, caller: str, *, weight: int) -> Denial | None:
        """See RequestRates; what the first limit has counted is not given back if the second is met in between."""
        # A single limit need not be asked first: it counts nothing that it refuses.
        for item in self._items if len(self._items) > 1 else ():
            if not await self._limiter.test(item, caller, cost=weight):
                return await self._denial(item, caller, weight)
        for item in self._items:
            if not await self._limiter.hit(item, caller, cost=weight):
                return await self._denial(item, caller, weight)
        return None

    async def _denial(self, item: RateLimitItem, caller: str, weight: int) -> Denial:
        words = f"{item.amount} requests in {'a minute' if item.get_expiry() == 60 else 'an hour'}"  # noqa: PLR2004 - s
        if weight > item.amount:
            return Denial(limit=words, retry_after_s=None)
        stats = await self._limiter.get_window_stats(item, caller)
        return Denial(limit=words, retry_after_s=max(1.0, stats.reset_time - self._clock()))


class FallbackRates:
    """Rates over shared and local ones."""

    def __init__(self, *, shared: RequestRates, local: RequestRates, fallback: Fallback) -> None:
        self._shared = shared
        self._local = local
        self._fallback = fallback

    async def count(self, caller: str, *, weight: int) -> Denial | None:
        """See RequestRates. Raises as `Fallback.ask`."""

        async def count_shared() -> Denial | None:
            return await self._shared.count(caller, weight=weight)

        return await self._fallback.ask(
            count_shared, local=lambda: self._local.count(caller, weight=weight), unlimited=lambda: None
        )


class Permit:
    """The right of a caller to an execution more; `leave` gives it back by `give_back`, a second time does nothing.

    Whoever goes on with the execution carries it over by its `name`.
    """

    def __init__(self, give_back: Callable[[], None], *, name: str) -> None:
        self.name = name
        self._give_back = give_back
        self._is_left = False

    def leave(self) -> None:
        """Give it back, without waiting: whoever leaves may be in the middle of being cancelled."""
        if not self._is_left:
            self._is_left = True
            self._give_back()


class RequestGate:
    """Admits requests: first a place, then the rates, so that what is refused for the one costs none of the other."""

    def __init__(
        self,
        *,
        rates: RequestRates,
        slots: Slots | None,
        most_at_once: int | None,
        observer: LimitObserver = UNOBSERVED,
    ) -> None:
        self._observer = observer
        self._rates = rates
        self._slots = slots
        self._most_at_once = most_at_once
        self._leaving: set[asyncio.Task[None]] = set()

    async def aclose(self) -> None:
        """Wait until all places that were left are given back."""
        if self._leaving:
            await asyncio.wait(self._leaving)

    async def admit(self, caller: str, *, weight: int = 1) -> Permit:
        """Return the right to one execution more, which is to be left at its end.

        Raises:
            RateLimitedError: a limit is met; nothing was counted.
        """
        slots = self._slots
        place = "" if slots is None else uuid.uuid4().hex
        try:
            await self._take(caller, place)
            await self.count(caller, weight=weight)
        except BaseException:
            # Whoever is cancelled while a place is taken may have it already.
            if slots is not None:
                await slots.give_back(caller, place)
            raise
        return Permit(partial(self._give_back, caller, place), name=place)

    async def carry_over(self, caller: str, name: str, *, life: int) -> Permit | None:
        """Return the right to go on with what was admitted by the permit `name`, in its second `life` or a later one.

        It takes the place of those that the earlier lives had, which nobody may have given back. None where executions
        at once are not counted.
        """
        if self._slots is None:
            return None
        place = _place_in(name, life)
        earlier = [_place_in(name, before) for before in range(max(1, life - _LIVES), life)]
        await self._slots.move(caller, place, earlier=earlier)
        return Permit(partial(self._give_back, caller, place), name=name)

    def _give_back(self, caller: str, place: str) -> None:
        if self._slots is not None:
            task = asyncio.create_task(self._slots.give_back(caller, place), name="place of a caller")
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def _take(self, caller: str, place: str) -> None:
        if self._slots is not None and not await self._slots.take(caller, place):
            self._observer.denied("concurrency")
            raise _limited(f"{self._most_at_once} executions at once", _CONCURRENCY_WAIT_S)

    async def count(self, caller: str, *, weight: int = 1) -> None:
        """Count a request. Raises as `admit`."""
        denial = await self._rates.count(caller, weight=weight)
        if denial is not None:
            self._observer.denied("rate")
            raise _limited(denial.limit, denial.retry_after_s)


def _place_in(name: str, life: int) -> str:
    """Return the place of a life of an execution: two of them may be given back in any order."""
    return name if life == 1 else f"{name}:{life}"


def _limited(limit: str, retry_after_s: float | None) -> RateLimitedError:
    remedy = "Retry after the time given." if retry_after_s is not None else "Have [limits] raised: this never fits."
    return RateLimitedError(
        f"The caller may make {limit}", remedy=remedy, metadata={"limit": limit}, retry_after_s=retry_after_s
    )
