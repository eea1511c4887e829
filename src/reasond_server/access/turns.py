"""Turns at something that few may do at once: who asks often waits longer, and cannot keep others out."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from reasond_server.errors import OverloadedError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class Turns:
    """Lets `at_once` work and up to `most_waiting` wait, by key: keys take turns, each with those that came first.

    Where all waiting places are taken, a newcomer gets the one of whoever came last under the key that has most of
    them, unless its own key would then have as many: no key keeps another out by asking more often.
    """

    def __init__(self, *, at_once: int, most_waiting: int) -> None:
        self._free = at_once
        self._most_waiting = most_waiting
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def free(self) -> int:
        """How many may begin now."""
        return self._free

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(map(len, self._queues.values()))

    @asynccontextmanager
    async def taken(self, key: str) -> AsyncGenerator[None, None]:
        """Wait for a turn under `key` and have it while the context lasts.

        Raises:
            OverloadedError: too many wait, now or since.
        """
        await self._take(key)
        try:
            yield
        finally:
            self._give_back()

    async def _take(self, key: str) -> None:
        # While anybody waits nothing is free: a turn that ends is handed on.
        if self._free:
            self._free -= 1
            return
        if self.waiting >= self._most_waiting:
            self._make_room(key)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(key, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and turn.exception() is None:
                # It was this one's turn at the very moment at which it left.
                self._give_back()
            raise

    def _give_back(self) -> None:
        while self._queues:
            key, queue = self._queues.popitem(last=False)
            turn = queue.popleft()
            if queue:
                self._queues[key] = queue
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def _make_room(self, key: str) -> None:
        longest = max(self._queues.values(), key=len)
        if len(longest) <= len(self._queues.get(key, ())) + 1:
            raise self._refusal()
        last = longest.pop()
        if not last.done():
            last.set_exception(self._refusal())

    def _refusal(self) -> OverloadedError:
        return OverloadedError(f"{self._most_waiting} agents wait to be verified", remedy="Retry after the time given.")
