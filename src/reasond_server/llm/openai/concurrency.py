"""A cap on the calls that one backend works on at a time; the others wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class NoRoomError(Exception):
    """No call ended in time."""


class ConcurrencyCap:
    """Lets `limit` calls through at a time, first come, first served; `on_wait` hears how long one had to wait."""

    def __init__(self, *, limit: int, on_wait: Callable[[float], None] = lambda _: None) -> None:
        self.limit = limit
        self._on_wait = on_wait
        self._room = asyncio.Semaphore(limit)

    async def take(self, *, wait_s: float) -> None:
        """Take a place, after waiting for it no longer than `wait_s` seconds.

        Raises:
            NoRoomError: there was none in time.
        """
        if self._room.locked():
            await self._waited(wait_s)
        else:
            await self._room.acquire()

    def give_back(self) -> None:
        """Give a place back."""
        self._room.release()

    async def _waited(self, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        since_s = loop.time()
        try:
            async with asyncio.timeout(max(0.0, wait_s)):
                await self._room.acquire()
        except TimeoutError:
            raise NoRoomError from None
        finally:
            self._on_wait(loop.time() - since_s)
