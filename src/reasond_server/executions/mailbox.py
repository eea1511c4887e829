"""What lies between one run and one of its followers: bounded, so that a slow reader costs nothing."""

from __future__ import annotations

import asyncio
from typing import Protocol

from reasond_server.types import TextDelta

# Enough for a reader that is late by a moment; one that is later loses deltas, never steps.
_MAX_ITEMS = 256
_MAX_DELTA_CHARACTERS = 65_536
_FLUSHED_CHARACTERS = 8192


class Listener(Protocol):
    """Who wants a run: without any it is cancelled."""

    @property
    def wants_deltas(self) -> bool:
        """Whether it is to be told of text."""
        ...

    def log_grew(self) -> None:
        """Note that there are new events in the log."""
        ...

    def wrote(self, delta: TextDelta) -> None:
        """Note that text was written."""
        ...


class Patience:
    """Listens to nothing and waits for the end."""

    wants_deltas = False

    def log_grew(self) -> None:
        """Do nothing."""

    def wrote(self, delta: TextDelta) -> None:
        """Do nothing."""


class Mailbox:
    """Tells a follower in order that the log grew (None) or that text was written (TextDelta).

    Notices of growth collapse, deltas of one step are joined, and what is over the bounds is left out: the
    step's own event will carry the text. Nothing that is logged can be lost here, because it is read
    from the log.

    At most one delta is given out per `flush_interval_s` seconds, because a message costs the same whatever its
    length: text that follows one sooner waits and is joined, until the interval is over, 8,192 characters wait or
    the log grows. After a silence of that length text is given out at once, and with 0 always.
    """

    __slots__ = (
        "_characters",
        "_flush_interval_s",
        "_held_until_s",
        "_is_ready",
        "_items",
        "_timer",
        "_waiter",
        "wants_deltas",
    )

    def __init__(self, *, wants_deltas: bool, flush_interval_s: float = 0.0) -> None:
        self.wants_deltas = wants_deltas
        self._flush_interval_s = flush_interval_s
        # A list, and a future only while somebody waits: thousands of these lie empty beside runs that wait.
        self._items: list[TextDelta | None] = [None]
        self._characters = 0
        self._held_until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_ready = True
        self._waiter: asyncio.Future[None] | None = None

    def log_grew(self) -> None:
        """Note that there are new events in the log."""
        if not self._items or self._items[-1] is not None:
            self._items.append(None)
        self._wake()

    def wrote(self, delta: TextDelta) -> None:
        """Note that text was written, as far as there is room."""
        if not self.wants_deltas or self._characters + len(delta.text) > _MAX_DELTA_CHARACTERS:
            return
        last = self._items[-1] if self._items else None
        if last is not None and last.iteration_index == delta.iteration_index:
            self._items[-1] = TextDelta(iteration_index=delta.iteration_index, text=last.text + delta.text)
        elif len(self._items) < _MAX_ITEMS:
            self._items.append(delta)
        else:
            return
        self._characters += len(delta.text)
        self._settle()

    async def take(self, *, timeout_s: float) -> TextDelta | None:
        """Return the next item, waiting for it.

        Raises:
            TimeoutError: nothing came within `timeout_s` seconds.
        """
        if not self._is_ready:
            await self._woken(within_s=timeout_s)
            if not self._items:
                raise TimeoutError
        item = self._items.pop(0)
        if item is not None:
            self._characters -= len(item.text)
            if self._flush_interval_s > 0:
                self._held_until_s = asyncio.get_running_loop().time() + self._flush_interval_s
        self._settle()
        return item

    def close(self) -> None:
        """Give nothing out any more by itself; the follower has left."""
        self._forget_timer()

    def _settle(self) -> None:
        """Let the reader have the first item, now or when the interval since the last delta is over."""
        if not self._items:
            self._forget_timer()
            self._is_ready = False
        elif self._is_due():
            self._forget_timer()
            self._wake()
        elif self._timer is None:
            self._is_ready = False
            self._timer = asyncio.get_running_loop().call_at(self._held_until_s, self._flush)

    def _is_due(self) -> bool:
        """Whether the first of the items need not wait: only text that may still grow does."""
        if len(self._items) > 1 or self._items[0] is None or self._flush_interval_s <= 0:
            return True
        if self._characters >= _FLUSHED_CHARACTERS:
            return True
        return asyncio.get_running_loop().time() >= self._held_until_s

    def _flush(self) -> None:
        """Let the reader have what waits: the interval is over."""
        self._timer = None
        self._wake()

    async def _woken(self, *, within_s: float) -> None:
        """Wait until there is something to take, or so many seconds have passed."""
        loop = asyncio.get_running_loop()
        self._waiter = waiter = loop.create_future()
        timer = loop.call_later(within_s, _end, waiter)
        try:
            await waiter
        finally:
            self._waiter = None
            timer.cancel()

    def _wake(self) -> None:
        self._is_ready = True
        if self._waiter is not None:
            _end(self._waiter)

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
