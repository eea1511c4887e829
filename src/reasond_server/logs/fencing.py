"""Until when a process may act for a run: as long as it knows, by its own clock, that the lease is its own.

A process that is cut off from its store is not told that another one has taken its runs over. It counts instead: a
lease that was renewed lasts `lease_s` seconds from some moment after the renewal was asked for.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MARGIN_SHARE: Final = 0.1
_LOOKS_PER_MARGIN: Final = 16


def _nothing() -> None:
    """Do nothing."""


class Tenure:
    """How long one run is surely at work here alone.

    It is for `lease_s` less a tenth, counted on `monotonic` from the start of the request that got or renewed the
    lease. The tenth is for clocks that do not run alike, and for the way from the last look at the clock to the
    model's server. From then on `hold` keeps new calls waiting; a tenth of a lease later, if nothing was renewed
    meanwhile, `end` is called, again and again until `close`. Before `begin` nobody else knows of the run.
    """

    def __init__(self, *, lease_s: float, monotonic: Callable[[], float]) -> None:
        self._sure_s = lease_s * (1 - MARGIN_SHARE)
        self._margin_s = lease_s * MARGIN_SHARE
        self._monotonic = monotonic
        self._until_s = math.inf
        self._is_in_doubt = False
        self._moved = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._ask: Callable[[], None] = _nothing
        self._end: Callable[[], None] = _nothing

    @property
    def is_sure(self) -> bool:
        """Whether no other process can have taken the run over yet."""
        return self._monotonic() < self._until_s

    def begin(self, since_s: float, *, ask: Callable[[], None], end: Callable[[], None]) -> None:
        """Count from `since_s` on; `ask` is called when a renewal is wanted at once."""
        self._ask, self._end = ask, end
        self.prolong(since_s)
        self._look()

    def prolong(self, since_s: float) -> None:
        """Count from `since_s` on: then a renewal was asked for that is known to have succeeded."""
        self._until_s = since_s + self._sure_s
        self._moved.set()

    async def hold(self) -> None:
        """Wait until no other process can have taken the run over; the run may be stopped meanwhile."""
        while not self.is_sure:
            self._ask()
            self._moved.clear()
            await self._moved.wait()

    def close(self) -> None:
        """Stop counting: the run is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """Look at the clock, which may have gone further than the timer: the event loop may have stood still."""
        left_s = self._until_s - self._monotonic()
        if left_s > 0:
            self._is_in_doubt = False
        elif self._is_in_doubt:
            self._end()
        else:
            self._is_in_doubt = True
            self._ask()
        # The loop's clock may be the faster one: looking again too soon would come to nothing, many times.
        wait_s = max(left_s, self._margin_s / _LOOKS_PER_MARGIN) if left_s > 0 else self._margin_s
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._look)
