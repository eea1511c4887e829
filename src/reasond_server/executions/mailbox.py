"""What lies between one run and one of its followers: bounded, so that a slow reader costs nothing."""

from __future__ import annotations

import asyncio
from collections import deque

from reasond_server.types import TextDelta

# Enough for a reader that is late by a moment; one that is later loses deltas, never steps.
_MAX_ITEMS = 256
_MAX_DELTA_CHARACTERS = 65_536


class Mailbox:
    """Tells a follower in order that the log grew (None) or that text was written (TextDelta).

    Notices of growth collapse, deltas of one step are joined, and what is over the bounds is left out: the
    step's own event will carry the text. Nothing that is logged can be lost here, because it is read
    from the log.
    """

    def __init__(self, *, wants_deltas: bool) -> None:
        self._wants_deltas = wants_deltas
        self._items: deque[TextDelta | None] = deque([None])
        self._characters = 0
        self._filled = asyncio.Event()
        self._filled.set()

    def log_grew(self) -> None:
        """Note that there are new events in the log."""
        if not self._items or self._items[-1] is not None:
            self._items.append(None)
        self._filled.set()

    def wrote(self, delta: TextDelta) -> None:
        """Note that text was written, as far as there is room."""
        if not self._wants_deltas or self._characters + len(delta.text) > _MAX_DELTA_CHARACTERS:
            return
        last = self._items[-1] if self._items else None
        if last is not None and last.iteration_index == delta.iteration_index:
            self._items[-1] = TextDelta(iteration_index=delta.iteration_index, text=last.text + delta.text)
        elif len(self._items) < _MAX_ITEMS:
            self._items.append(delta)
        else:
            return
        self._characters += len(delta.text)
        self._filled.set()

    async def take(self, *, timeout_s: float) -> TextDelta | None:
        """Return the next item, waiting for it.

        Raises:
            TimeoutError: nothing came within `timeout_s` seconds.
        """
        if not self._items:
            self._filled.clear()
            async with asyncio.timeout(timeout_s):
                await self._filled.wait()
        item = self._items.popleft()
        if item is not None:
            self._characters -= len(item.text)
        return item
