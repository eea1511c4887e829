"""Whether a failed call is made again, and how long to wait before."""

from __future__ import annotations

import math
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from reasond_server.llm.openai.faults import UpstreamFaultError
    from reasond_server.llm.openai.options import RetryPolicy

_MIN_JITTER = 0.5
_RESERVE = 3.0
_MOST_SAVED = 10.0
_REFILL_PER_S = 0.1
_MAX_EXPONENT = 30


def retry_after_s(headers: Mapping[str, str], *, now: Callable[[], float]) -> float | None:
    """Return the seconds that a server asks to wait (RFC 9110, section 10.2.3); None if it does not say.

    `retry-after-ms` is finer and goes first. A date is compared with `now`, in seconds since 1970. What is neither
    a number nor a date, and what lies in the past, says nothing.
    """
    fine = _number(headers.get("retry-after-ms", ""))
    value = headers.get("retry-after", "").strip()
    seconds = fine / 1000 if fine is not None else _number(value)
    if seconds is None and value:
        seconds = _until(value, now=now())
    return seconds if seconds is not None and seconds > 0 else None


def backoff_s(policy: RetryPolicy, attempt: int, *, random: Callable[[], float]) -> float:
    """Return the wait after attempt number `attempt` (from 1): doubling, at most `max_wait_s`, half of it by chance."""
    whole = min(policy.first_wait_s * 2.0 ** min(attempt - 1, _MAX_EXPONENT), policy.max_wait_s)
    return whole * (_MIN_JITTER + (1 - _MIN_JITTER) * random())


class RetryBudget:
    """Bounds retries to a share of the calls, so that a failing server is not hit harder than a healthy one.

    Every call saves `ratio` of a retry, at most 10; three are there at the beginning and come back, one in
    10 s, so that few calls are not worse off than many.
    """

    def __init__(self, *, ratio: float, monotonic: Callable[[], float]) -> None:
        self._ratio = ratio
        self._monotonic = monotonic
        self._saved = _RESERVE
        self._seen_at = monotonic()

    def note_call(self) -> None:
        """Save for a call that begins."""
        self._refill()
        self._saved = min(_MOST_SAVED, self._saved + self._ratio)

    def take(self) -> bool:
        """Take one retry if there is one."""
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
    """Decides about retries of one backend's calls."""

    def __init__(self, *, policy: RetryPolicy, monotonic: Callable[[], float], random: Callable[[], float]) -> None:
        self._policy = policy
        self._random = random
        self._budget = RetryBudget(ratio=policy.budget_ratio, monotonic=monotonic)

    def note_call(self) -> None:
        """Note that a call begins."""
        self._budget.note_call()

    def wait_s(self, fault: UpstreamFaultError, *, attempt: int, time_left_s: float) -> float:
        """Return the seconds to wait before the next attempt after attempt number `attempt` (from 1) failed.

        Where the server asks for a wait, that is waited and a little more, by chance.

        Raises:
            ModelError: there is no next attempt; `retry_after_s` says how long to wait if the wait is all that
                stands against it.
        """
        asked = fault.error.retry_after_s
        if attempt > min(fault.retries, self._policy.max_attempts - 1):
            raise fault.error
        wait = backoff_s(self._policy, attempt, random=self._random)
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


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _until(value: str, *, now: float) -> float | None:
    try:
        return parsedate_to_datetime(value).timestamp() - now
    except (ValueError, OverflowError):
        return None
