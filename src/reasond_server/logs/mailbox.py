"""What lies between one run and one of its subscribers: bounded, so that a slow reader costs nothing."""

from __future__ import annotations

import asyncio
from typing import Protocol

from reasond_server.types import TextDelta

# Enough for a reader that is late by a moment; one that is later loses deltas, never steps.
_MAX_ITEMS = 256
_MAX_DELTA_CHARACTERS = 65_536
_FLUSHED_CHARACTERS = 8192
# So many are flushed in one turn of the event loop, so that what came over the network meanwhile need not wait for all.
_AT_ONCE = 64


class Subscriber(Protocol):
    """Who wants a run: without any it is cancelled."""

    @property
    def wants_deltas(self) -> bool:
        """Whether it is to be told of text."""
        ...

    def notify_growth(self) -> None:
        """Note that there are new events in the log."""
        ...

    def add_text(self, iteration_index: int, text: str) -> None:
        """Note that text of a step was written."""
        ...


class SilentSubscriber:
    """Hears nothing and waits for the end."""

    wants_deltas = False

    def notify_growth(self) -> None:
        """Do nothing."""

    def add_text(self, iteration_index: int, text: str) -> None:
        """Do nothing."""


class Flushable(Protocol):
    """Who waits for the next moment."""

    def flush(self) -> None:
        """Give out what waits."""
        ...


class FlushTimer:
    """Flushes all that is delayed every `interval_s` seconds while anything is; with 0 nothing is delayed.

    One timer serves all streams, and those that have something to send send it in one go: at moments of their own each
    of them would wake the event loop and grpc's threads again.
    """

    __slots__ = ("_delayed", "_interval_s", "_timer")

    def __init__(self, *, interval_s: float) -> None:
        self._interval_s = interval_s
        self._delayed: dict[Flushable, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def count(self) -> int:
        """How many are delayed."""
        return len(self._delayed)

    def delay(self, one: Flushable) -> bool:
        """Delay `one` until the next moment, which is `interval_s` away at most; return whether it is delayed."""
        if self._interval_s <= 0:
            return False
        self._delayed[one] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._beat)
        return True

    def remove(self, one: Flushable) -> None:
        """Delay `one` no longer: it has left."""
        self._delayed.pop(one, None)
        if not self._delayed and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _beat(self) -> None:
        self._timer = None
        delayed, self._delayed = [*self._delayed], {}
        self._flush(delayed)

    def _flush(self, delayed: list[Flushable]) -> None:
        for one in delayed[:_AT_ONCE]:
            one.flush()
        if len(delayed) > _AT_ONCE:
            asyncio.get_running_loop().call_soon(self._flush, delayed[_AT_ONCE:])


class _Written:
    """What was written in one step and is not given out yet: joined once, however many pieces it comes in."""

    __slots__ = ("iteration_index", "pieces")

    def __init__(self, iteration_index: int, text: str) -> None:
        self.iteration_index = iteration_index
        self.pieces = [text]


class Mailbox:
    """Tells a follower in order that the log grew (None) or that text was written (TextDelta).

    Notices of growth collapse, texts of one step are joined, and what is over the bounds is left out: the
    step's own event will carry the text. Nothing that is logged can be lost here, because it is read
    from the log.

    With a `flush_timer` text that follows a delta waits for its next moment and is joined, because a message costs the
    same whatever its length, unless 8,192 characters wait or the log grows. After a silence text is given out at once,
    and without a timer always.
    """

    __slots__ = ("_characters", "_flush_timer", "_is_delayed", "_is_ready", "_items", "_waiter", "wants_deltas")

    def __init__(self, *, wants_deltas: bool, flush_timer: FlushTimer | None = None) -> None:
        self.wants_deltas = wants_deltas
        self._flush_timer = flush_timer
        # A list, and a future only while somebody waits: thousands of these lie empty beside runs that wait.
        self._items: list[_Written | None] = [None]
        self._characters = 0
        self._is_delayed = False
        self._is_ready = True
        self._waiter: asyncio.Future[None] | None = None

    def notify_growth(self) -> None:
        """Note that there are new events in the log."""
        if not self._items or self._items[-1] is not None:
            self._items.append(None)
        self._wake()

    def add_text(self, iteration_index: int, text: str) -> None:
        """Note that text of a step was written, as far as there is room."""
        characters = self._characters + len(text)
        if not self.wants_deltas or characters > _MAX_DELTA_CHARACTERS:
            return
        last = self._items[-1] if self._items else None
        if last is not None and last.iteration_index == iteration_index:
            last.pieces.append(text)
        elif len(self._items) < _MAX_ITEMS:
            self._items.append(_Written(iteration_index, text))
        else:
            return
        self._characters = characters
        if not self._is_ready and self._is_due():
            self._wake()

    async def take(self, *, timeout_s: float) -> TextDelta | None:
        """Return the next item, waiting for it.

        Raises:
            TimeoutError: nothing came within `timeout_s` seconds.
        """
        if not self._is_ready:
            await self._wait(within_s=timeout_s)
            if not self._items:
                raise TimeoutError
        written = self._items.pop(0)
        delta = None if written is None else self._delta_of(written)
        self._is_ready = bool(self._items) and self._is_due()
        return delta

    def flush(self) -> None:
        """Give out what waits: the moment has come."""
        self._is_delayed = False
        if self._items:
            self._wake()

    def close(self) -> None:
        """Give nothing out any more by itself; the follower has left."""
        if self._is_delayed and self._flush_timer is not None:
            self._flush_timer.remove(self)

    def _delta_of(self, written: _Written) -> TextDelta:
        """Return the delta to give out; what is written from now on waits."""
        text = "".join(written.pieces)
        self._characters -= len(text)
        if self._flush_timer is not None and not self._is_delayed:
            self._is_delayed = self._flush_timer.delay(self)
        return TextDelta(iteration_index=written.iteration_index, text=text)

    def _is_due(self) -> bool:
        """Whether the first of the items need not wait: only text that may still grow does."""
        if not self._is_delayed or self._characters >= _FLUSHED_CHARACTERS:
            return True
        return len(self._items) > 1 or self._items[0] is None

    async def _wait(self, *, within_s: float) -> None:
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


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
