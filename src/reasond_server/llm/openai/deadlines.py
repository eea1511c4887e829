"""How long a call may take: until its first token, between pieces of content, and altogether."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from reasond_server.llm.model import CALLERS_TIME

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from reasond_server.llm.openai.options import Timeouts

_T = TypeVar("_T")
_MARGIN = 0.05


class WaitedTooLongError(Exception):
    """A wait came to its end; `what` did not happen within `seconds`, which `setting` limits.

    `is_callers` tells that the caller gave no more time, which says nothing about the backend.
    """

    def __init__(self, what: str, *, seconds: float, setting: str, is_callers: bool = False) -> None:
        super().__init__(what)
        self.what = what
        self.seconds = seconds
        self.setting = setting
        self.is_callers = is_callers


class Deadline:
    """The moment when a whole call must have ended.

    Args:
        timeouts: `total_s` bounds the call.
        time_left_s: what the caller still has, in seconds, for the answer to begin; 5 % of it are kept for the way
            back. None: no bound.
        monotonic: a clock that never goes back, in seconds.
    """

    def __init__(self, *, timeouts: Timeouts, time_left_s: float | None, monotonic: Callable[[], float]) -> None:
        allowed = time_left_s * (1 - _MARGIN) if time_left_s is not None else timeouts.total_s
        self._is_callers = allowed < timeouts.total_s
        self.seconds = max(0.0, min(allowed, timeouts.total_s))
        self._monotonic = monotonic
        self._began = monotonic()
        self._total_s = timeouts.total_s

    def answer_began(self) -> None:
        """Bound the call by `total_s` only: whoever gave it less time ends the answer himself, and keeps what came."""
        self.seconds = self._total_s
        self._is_callers = False

    def end_within(self, seconds: float) -> None:
        """Leave no more than `seconds` from now on."""
        self.seconds = min(self.seconds, self._monotonic() - self._began + seconds)

    def left_s(self) -> float:
        """Return the seconds that are left; negative when it is over."""
        return self._began + self.seconds - self._monotonic()

    def passed(self) -> WaitedTooLongError:
        """Return the error for the passing of this deadline."""
        setting = CALLERS_TIME if self._is_callers else "timeouts.total_s"
        what = "did not end its answer"
        return WaitedTooLongError(what, seconds=self.seconds, setting=setting, is_callers=self._is_callers)


class Patience:
    """Bounds every wait of one attempt.

    Only waiting is measured, so a slow reader of ours does not use up the model's time; only content renews the
    idle time, so keep-alives do not hold a dead call open.
    """

    def __init__(self, *, timeouts: Timeouts, deadline: Deadline, monotonic: Callable[[], float]) -> None:
        self._timeouts = timeouts
        self._deadline = deadline
        self._monotonic = monotonic
        self._left_s = timeouts.first_token_s
        self._has_begun = False

    def check(self) -> float:
        """Return the seconds that may still be waited.

        Raises:
            WaitedTooLongError: none.
        """
        left = min(self._left_s, self._deadline.left_s())
        if left <= 0:
            raise self._too_late()
        return left

    async def wait(self, begin: Callable[[], Awaitable[_T]]) -> _T:
        """Await what `begin` returns.

        Raises:
            WaitedTooLongError: it took longer than may be; it was cancelled.
        """
        left = self.check()
        began = self._monotonic()
        try:
            async with asyncio.timeout(left):
                return await begin()
        except TimeoutError:
            self._left_s -= left
            raise self._too_late() from None
        finally:
            self._left_s -= self._monotonic() - began

    def content_came(self) -> None:
        """Begin a new idle time."""
        self._left_s = self._timeouts.idle_s
        if not self._has_begun:
            self._has_begun = True
            self._deadline.answer_began()

    def end_within(self, seconds: float) -> None:
        """Wait until `seconds` from now at most, whatever comes."""
        self._deadline.end_within(seconds)

    def linger(self, seconds: float) -> None:
        """Wait no longer than `seconds` from here on: all that matters has come."""
        self._left_s = min(self._left_s, seconds)

    def _too_late(self) -> WaitedTooLongError:
        if self._left_s >= self._deadline.left_s():
            return self._deadline.passed()
        timeouts = self._timeouts
        if self._has_begun:
            return WaitedTooLongError("went silent", seconds=timeouts.idle_s, setting="timeouts.idle_s")
        seconds, setting = timeouts.first_token_s, "timeouts.first_token_s"
        return WaitedTooLongError("did not begin to answer", seconds=seconds, setting=setting)
