"""A circuit breaker: while a backend fails, calls fail at once instead of waiting for it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from reasond_server.llm.openai.options import RetryPolicy


class BreakerState(StrEnum):
    """Closed lets calls through, open refuses them, half-open lets one through to see."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Outcome(StrEnum):
    """What a call says about its backend's health; `UNKNOWN` if it was broken off or refused for other reasons."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit:
    """Leave for one call; given back with `Breaker.report`, once."""

    era: int
    is_probe: bool


class Breaker:
    """Opens when, of the last `breaker_window` calls, `breaker_ratio` failed; probes after `breaker_cooldown_s`.

    What a call reports that began before the state last changed is not counted: it tells of another time.
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
        """What would happen to a call now."""
        if self._opened_at is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if self._cooldown_left_s() > 0 else BreakerState.HALF_OPEN

    def admit(self) -> Permit | None:
        """Return leave for a call, or None while it is refused."""
        state = self.state
        if state is BreakerState.OPEN or (state is BreakerState.HALF_OPEN and self._is_probing):
            return None
        self._is_probing = state is BreakerState.HALF_OPEN
        return Permit(era=self._era, is_probe=self._is_probing)

    def retry_after_s(self) -> float:
        """Return how long a refused call should wait, in seconds."""
        left = self._cooldown_left_s()
        return left if left > 0 else self._policy.breaker_cooldown_s

    def report(self, permit: Permit, outcome: Outcome) -> None:
        """Take back `permit` with what its call told."""
        if permit.era != self._era:
            return
        if permit.is_probe:
            self._is_probing = False
        if outcome is Outcome.UNKNOWN:
            return
        if permit.is_probe:
            self._change(is_open=outcome is Outcome.UNHEALTHY)
            return
        self._failures.append(outcome is Outcome.UNHEALTHY)
        most = max(1.0, self._policy.breaker_window * self._policy.breaker_ratio)
        if outcome is Outcome.UNHEALTHY and sum(self._failures) >= most:
            self._change(is_open=True)

    def _change(self, *, is_open: bool) -> None:
        self._era += 1
        self._failures.clear()
        self._is_probing = False
        self._opened_at = self._monotonic() if is_open else None

    def _cooldown_left_s(self) -> float:
        if self._opened_at is None:
            return 0.0
        return self._opened_at + self._policy.breaker_cooldown_s - self._monotonic()
