"""What lies between one run and one of its followers: bounded, so that a slow reader costs nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from reasond_server.types import TextDelta

if TYPE_CHECKING:
    from reasond_server.logs.pulse import Pulse

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

    def wrote(self, iteration_index: int, text: str) -> None:
        """Note that text of a step was written."""
        ...


class Patience:
    """Listens to nothing and waits for the end."""

    wants_deltas = False

    def log_grew(self) -> None:
        """Do nothing."""

    def wrote(self, iteration_index: int, text: str) -> None:
        """Do nothing."""


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

    With a `pulse` text that follows a delta waits for its next moment and is joined, because a message costs the same
    whatever its length, unless 8,192 characters wait or the log grows. After a silence text is given out at once, and
    without a pulse always.
    """

    __slots__ = ("_characters", "_is_held", "_is_ready", "_items", "_pulse", "_waiter", "wants_deltas")

    def __init__(self, *, wants_deltas: bool, pulse: Pulse | None = None) -> None:
        self.wants_deltas = wants_deltas
        self._pulse = pulse
        # A list, and a future only while somebody waits: thousands of these lie empty beside runs that wait.
        self._items: list[_Written | None] = [None]
        self._characters = 0
        self._is_held = False
        self._is_ready = True
        self._waiter: asyncio.Future[None] | None = None

    def log_grew(self) -> None:
        """Note that there are new events in the log."""
        if not self._items or self._items[-1] is not None:
            self._items.append(None)
        self._wake()

    def wrote(self, iteration_index: int, text: str) -> None:
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
            await self._woken(within_s=timeout_s)
            if not self._items:
                raise TimeoutError
        written = self._items.pop(0)
        delta = None if written is None else self._delta_of(written)
        self._is_ready = bool(self._items) and self._is_due()
        return delta

    def let_go(self) -> None:
        """Give out what waits: the moment has come."""
        self._is_held = False
        if self._items:
            self._wake()

    def close(self) -> None:
        """Give nothing out any more by itself; the follower has left."""
        if self._is_held and self._pulse is not None:
            self._pulse.forget(self)

    def _delta_of(self, written: _Written) -> TextDelta:
        """Return the delta to give out; what is written from now on waits."""
        text = "".join(written.pieces)
        self._characters -= len(text)
        if self._pulse is not None and not self._is_held:
            self._is_held = self._pulse.hold(self)
        return TextDelta(iteration_index=written.iteration_index, text=text)

    def _is_due(self) -> bool:
        """Whether the first of the items need not wait: only text that may still grow does."""
        if not self._is_held or self._characters >= _FLUSHED_CHARACTERS:
            return True
        return len(self._items) > 1 or self._items[0] is None

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


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
