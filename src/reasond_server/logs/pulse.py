"""The moments at which text that waited is given out: the same for all streams of a process."""

from __future__ import annotations

import asyncio
from typing import Protocol

# So many are woken in one turn of the event loop, so that what came over the network meanwhile need not wait for all.
_AT_ONCE = 64


class Held(Protocol):
    """Who waits for the next moment."""

    def let_go(self) -> None:
        """Give out what waits."""
        ...


class Pulse:
    """Lets go of all that it holds every `interval_s` seconds while it holds anything; with 0 it holds nothing.

    One timer serves all streams, and those that have something to send send it in one go: at moments of their own each
    of them would wake the event loop and grpc's threads again.
    """

    __slots__ = ("_held", "_interval_s", "_timer")

    def __init__(self, *, interval_s: float) -> None:
        self._interval_s = interval_s
        self._held: dict[Held, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def count(self) -> int:
        """How many are held."""
        return len(self._held)

    def hold(self, one: Held) -> bool:
        """Hold `one` until the next moment, which is `interval_s` away at most; return whether it is held."""
        if self._interval_s <= 0:
            return False
        self._held[one] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._beat)
        return True

    def forget(self, one: Held) -> None:
        """Hold `one` no longer: it has left."""
        self._held.pop(one, None)
        if not self._held and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _beat(self) -> None:
        self._timer = None
        held, self._held = [*self._held], {}
        self._let_go(held)

    def _let_go(self, held: list[Held]) -> None:
        for one in held[:_AT_ONCE]:
            one.let_go()
        if len(held) > _AT_ONCE:
            asyncio.get_running_loop().call_soon(self._let_go, held[_AT_ONCE:])
