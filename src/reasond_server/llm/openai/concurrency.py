"""A cap on the calls that one backend works on at a time; the others wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager


class NoRoomError(Exception):
    """No call ended in time."""


class ConcurrencyCap:
    """Lets `limit` calls through at a time, first come, first served; `on_wait` hears how long one had to wait."""

    def __init__(self, *, limit: int, on_wait: Callable[[float], None] = lambda _: None) -> None:
        self.limit = limit
        self._on_wait = on_wait
        self._room = asyncio.Semaphore(limit)

    def room(self, *, wait_s: float) -> AbstractAsyncContextManager[None]:
        """Hold a place, after waiting for it no longer than `wait_s` seconds.

        Raises:
            NoRoomError: there was none in time.
        """
        return _Room(self, self._room, wait_s)

    async def waited(self, wait_s: float) -> None:
        """Take a place that is not free yet."""
        loop = asyncio.get_running_loop()
        since_s = loop.time()
        try:
            async with asyncio.timeout(max(0.0, wait_s)):
                await self._room.acquire()
        except TimeoutError:
            raise NoRoomError from None
        finally:
            self._on_wait(loop.time() - since_s)


class _Room:
    """A place for as long as the context lasts."""

    __slots__ = ("_cap", "_room", "_wait_s")

    def __init__(self, cap: ConcurrencyCap, room: asyncio.Semaphore, wait_s: float) -> None:
        self._cap = cap
        self._room = room
        self._wait_s = wait_s

    async def __aenter__(self) -> None:
        if self._room.locked():
            await self._cap.waited(self._wait_s)
        else:
            await self._room.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._room.release()
