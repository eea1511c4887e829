"""Cuts a stream off whose client takes nothing: one timer for the whole stream, however many messages it has."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Self


class Timers(Protocol):
    """What of an event loop sets timers; in seconds."""

    def time(self) -> float:
        """Return the time on its clock."""
        ...

    def call_at(self, when: float, callback: Callable[[], object], /) -> asyncio.TimerHandle:
        """Call `callback` when the clock says `when`."""
        ...


class StallWatch:
    """Bounds each wait of the present task by `limit_s` seconds, while the context lasts.

    `asyncio.timeout` sets and cancels a timer for every message. Here one goes off once in `limit_s` seconds and
    looks since when the write at work has waited. `timers` are those of the running event loop, unless given.
    """

    def __init__(self, *, limit_s: float, timers: Timers | None = None) -> None:
        self._limit_s = limit_s
        self._timers: Timers = timers or asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._since_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._has_cut = False

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        self._cancelling = 0 if self._task is None else self._task.cancelling()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def bound(self, write: Awaitable[None]) -> None:
        """Await `write`.

        Raises:
            TimeoutError: it took too long and was cancelled.
        """
        self._since_s, self._has_cut = self._timers.time(), False
        if self._timer is None:
            self._timer = self._timers.call_at(self._since_s + self._limit_s, self._look)
        try:
            await write
        except asyncio.CancelledError:
            # Whoever else wanted the task cancelled is not to be kept from it.
            if not self._has_cut or self._task is None or self._task.uncancel() > self._cancelling:
                raise
            raise TimeoutError from None
        finally:
            self._since_s = None

    def _look(self) -> None:
        """Cancel the wait that takes too long, or look again when it would; without one, the next sets the timer."""
        self._timer = None
        if self._since_s is None or self._task is None:
            return
        until_s = self._since_s + self._limit_s
        if self._timers.time() < until_s:
            self._timer = self._timers.call_at(until_s, self._look)
        else:
            self._has_cut = True
            self._task.cancel()
