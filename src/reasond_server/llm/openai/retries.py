"""Whether a call of a backend may begin or be repeated: retries, circuit breaker, cap on concurrent calls."""

from __future__ import annotations

import asyncio
from collections import deque
from enum import StrEnum
from typing import TYPE_CHECKING

from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable

    from reasond_server.llm.openai.backend_options import RetryPolicy
    from reasond_server.llm.openai.faults import UpstreamFaultError


_MIN_JITTER = 0.5
_RESERVE = 3.0
_MOST_SAVED = 10.0
_REFILL_PER_S = 0.1
_MAX_EXPONENT = 30


def compute_backoff_s(policy: RetryPolicy, attempt: int, *, random: Callable[[], float]) -> float:
    """Return the seconds to wait after attempt `attempt` (from 1): it doubles up to `max_wait_s`, with jitter."""
    whole = min(policy.first_wait_s * 2.0 ** min(attempt - 1, _MAX_EXPONENT), policy.max_wait_s)
    return whole * (_MIN_JITTER + (1 - _MIN_JITTER) * random())


class RetryBudget:
    """Limits retries to a share of the calls, so that a failing server does not get more calls than a healthy one.

    Every call adds `ratio` of a retry, up to 10 retries. The budget begins with 3 retries and is refilled up to 3, one
    retry per 10 s, so that a backend with few calls can retry too.
    """

    def __init__(self, *, ratio: float, monotonic: Callable[[], float]) -> None:
        self._ratio = ratio
        self._monotonic = monotonic
        self._saved = _RESERVE
        self._seen_at = monotonic()

    def note_call(self) -> None:
        """Add the share of a call that begins."""
        self._refill()
        self._saved = min(_MOST_SAVED, self._saved + self._ratio)

    def take(self) -> bool:
        """Take one retry and return True; return False if none is left."""
        self._refill()
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True

    def _refill(self) -> None:
        now = self._monotonic()
        if self._saved < _RESERVE:
            self._saved = min(_RESERVE, self._saved + (now - self._seen_at) * _REFILL_PER_S)
        self._seen_at = now


class Retries:
    """Decides whether calls of one backend are repeated."""

    def __init__(self, *, policy: RetryPolicy, monotonic: Callable[[], float], random: Callable[[], float]) -> None:
        self._policy = policy
        self._random = random
        self._budget = RetryBudget(ratio=policy.budget_ratio, monotonic=monotonic)

    def note_call(self) -> None:
        """Record that a call begins."""
        self._budget.note_call()

    def choose_wait_s(self, fault: UpstreamFaultError, *, attempt: int, time_left_s: float) -> float:
        """Return the seconds to wait before the next attempt after attempt number `attempt` (from 1) failed.

        A wait that the server requests is respected, plus a random share of `first_wait_s`.

        Raises:
            ModelError: there is no next attempt. `retry_after_s` is set if the only obstacle is that the wait is longer
                than `time_left_s`.
        """
        asked = fault.error.retry_after_s
        if attempt > min(fault.retries, self._policy.max_attempts - 1):
            raise fault.error
        wait = compute_backoff_s(self._policy, attempt, random=self._random)
        if asked is not None:
            wait = max(wait, asked + self._policy.first_wait_s * self._random())
        if time_left_s <= 0:
            raise fault.error
        if wait >= time_left_s:
            fault.error.retry_after_s = asked if asked is not None else wait
            raise fault.error
        if not self._budget.take():
            raise fault.error
        return wait


class BreakerState(StrEnum):
    """Closed admits calls, open refuses them, half-open admits one probe."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class CallHealth(StrEnum):
    """The health that a call shows of its backend; `UNKNOWN` if it was abandoned or failed for other reasons."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


@value
class BreakerPermit:
    """Permit for one call; it must be returned once, with `Breaker.report`."""

    era: int
    is_probe: bool


class Breaker:
    """A circuit breaker: while a backend fails, calls fail at once instead of waiting for it.

    It opens when `breaker_ratio` of the last `breaker_window` calls failed, and probes after `breaker_cooldown_s`.
    Reports of calls that began before the last change of state are not counted.
    """

    def __init__(self, *, policy: RetryPolicy, monotonic: Callable[[], float]) -> None:
        self._policy = policy
        self._monotonic = monotonic
        self._failures: deque[bool] = deque(maxlen=policy.breaker_window)
        self._era = 0
        self._opened_at: float | None = None
        self._is_probing = False

    @property
    def state(self) -> BreakerState:
        """The state for a call that begins now."""
        if self._opened_at is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if self._compute_cooldown_left_s() > 0 else BreakerState.HALF_OPEN

    def admit(self) -> BreakerPermit | None:
        """Return a permit for a call, or None while calls are refused."""
        state = self.state
        if state is BreakerState.OPEN or (state is BreakerState.HALF_OPEN and self._is_probing):
            return None
        self._is_probing = state is BreakerState.HALF_OPEN
        return BreakerPermit(era=self._era, is_probe=self._is_probing)

    def compute_wait_s(self) -> float:
        """Return the seconds that a refused call should wait."""
        left = self._compute_cooldown_left_s()
        return left if left > 0 else self._policy.breaker_cooldown_s

    def report(self, permit: BreakerPermit, outcome: CallHealth) -> None:
        """Take back `permit` with the outcome of its call."""
        if permit.era != self._era:
            return
        if permit.is_probe:
            self._is_probing = False
        if outcome is CallHealth.UNKNOWN:
            return
        if permit.is_probe:
            self._change(is_open=outcome is CallHealth.UNHEALTHY)
            return
        self._failures.append(outcome is CallHealth.UNHEALTHY)
        most = max(1.0, self._policy.breaker_window * self._policy.breaker_ratio)
        if outcome is CallHealth.UNHEALTHY and sum(self._failures) >= most:
            self._change(is_open=True)

    def _change(self, *, is_open: bool) -> None:
        self._era += 1
        self._failures.clear()
        self._is_probing = False
        self._opened_at = self._monotonic() if is_open else None

    def _compute_cooldown_left_s(self) -> float:
        if self._opened_at is None:
            return 0.0
        return self._opened_at + self._policy.breaker_cooldown_s - self._monotonic()


class NoRoomError(Exception):
    """No place became free in time."""


class ConcurrencyCap:
    """A semaphore for `limit` calls, first come, first served; `on_wait` is called with the seconds of each wait."""

    def __init__(self, *, limit: int, on_wait: Callable[[float], None] = lambda _: None) -> None:
        self.limit = limit
        self._on_wait = on_wait
        self._room = asyncio.Semaphore(limit)

    async def take(self, *, wait_s: float) -> None:
        """Take a place, waiting for at most `wait_s` seconds.

        Raises:
            NoRoomError: no place became free in time.
        """
        if self._room.locked():
            await self._wait_for_room(wait_s)
        else:
            await self._room.acquire()

    def give_back(self) -> None:
        """Release a place."""
        self._room.release()

    async def _wait_for_room(self, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        since_s = loop.time()
        try:
            async with asyncio.timeout(max(0.0, wait_s)):
                await self._room.acquire()
        except TimeoutError:
            raise NoRoomError from None
        finally:
            self._on_wait(loop.time() - since_s)
