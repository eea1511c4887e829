"""A bounded queue between one run and one of its subscribers; a slow reader cannot fill the memory."""

from __future__ import annotations

import asyncio
from typing import Protocol

from reasond_server.types import AnswerPlace, TextDelta

# A reader that falls further behind loses deltas, never steps.
_MAX_ITEMS = 256
_MAX_DELTA_CHARACTERS = 65_536
_FLUSHED_CHARACTERS = 8192
# Flushed per turn of the event loop, so that network input does not wait until all are flushed.
_AT_ONCE = 64


class Subscriber(Protocol):
    """A subscriber of a run; a run without subscribers is cancelled."""

    @property
    def wants_deltas(self) -> bool:
        """Whether it receives text."""

    def notify_growth(self) -> None:
        """Signal that the log has new events."""

    def add_text(
        self, iteration_index: int, text: str, *, after_sequence: int, place: AnswerPlace | None = None
    ) -> None:
        """Add text of a step, written after this event of the log; `place` as in `TextDelta`."""


class SilentSubscriber:
    """A subscriber that ignores all notices and only waits for the end."""

    wants_deltas = False

    def notify_growth(self) -> None:
        """Do nothing."""

    def add_text(
        self, iteration_index: int, text: str, *, after_sequence: int, place: AnswerPlace | None = None
    ) -> None:
        """Do nothing."""


class Flushable(Protocol):
    """An object that waits for the next flush."""

    def flush(self) -> None:
        """Deliver what waits."""


class FlushTimer:
    """Flushes all delayed objects every `interval_s` seconds while there are any; with 0 nothing is delayed.

    One timer serves all streams, so that they send together. With a timer each, every stream would wake the event loop
    and gRPC's threads separately.
    """

    def __init__(self, *, interval_s: float) -> None:
        self._interval_s = interval_s
        self._delayed: dict[Flushable, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def count(self) -> int:
        """The number of delayed objects."""
        return len(self._delayed)

    def delay(self, one: Flushable) -> bool:
        """Delay `one` until the next flush, `interval_s` seconds at most; return whether it is delayed."""
        if self._interval_s <= 0:
            return False
        self._delayed[one] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._beat)
        return True

    def remove(self, one: Flushable) -> None:
        """Remove `one`, which has left."""
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


class StepText:
    """Text that one step wrote after an event of the log, in pieces, which are joined only once."""

    def __init__(self, iteration_index: int, text: str, *, after_sequence: int, place: AnswerPlace | None) -> None:
        self.iteration_index = iteration_index
        self.after_sequence = after_sequence
        self.place = place
        self.characters = len(text)
        self._pieces = [text]

    @property
    def text(self) -> str:
        """All of it."""
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def add(self, iteration_index: int, text: str, place: AnswerPlace | None) -> bool:
        """Add text that comes next in the same step, and return True; return False for any other."""
        end = None if self.place is None else self.place.at + self.characters
        if iteration_index != self.iteration_index or end != (None if place is None else place.at):
            return False
        self._pieces.append(text)
        self.characters += len(text)
        return True


class Mailbox:
    """Delivers to a follower, in order, that the log has grown (None) and the text that was written (TextDelta).

    Successive notices of growth become one, texts of one step are joined, and text beyond the bounds is dropped: the
    event of the step will carry it. No event can be lost here, because followers read events from the log.

    With a `flush_timer`, text that follows a delta waits for the next flush and is joined, because a message costs the
    same whatever its length. It does not wait if 8,192 characters are waiting or if the log grows. The first text after
    a pause is delivered at once; without a timer every text is.
    """

    def __init__(self, *, wants_deltas: bool, flush_timer: FlushTimer | None = None) -> None:
        self.wants_deltas = wants_deltas
        self._flush_timer = flush_timer
        # A list, with a future only while somebody waits, to save memory: thousands of mailboxes may be empty.
        self._items: list[StepText | None] = [None]
        self._characters = 0
        self._is_delayed = False
        self._is_ready = True
        self._waiter: asyncio.Future[None] | None = None

    def notify_growth(self) -> None:
        """Signal that the log has new events."""
        if not self._items or self._items[-1] is not None:
            self._items.append(None)
        self._wake()

    def add_text(
        self, iteration_index: int, text: str, *, after_sequence: int, place: AnswerPlace | None = None
    ) -> None:
        """Add text of a step, written after this event of the log; text beyond the bounds is dropped."""
        characters = self._characters + len(text)
        if not self.wants_deltas or characters > _MAX_DELTA_CHARACTERS:
            return
        last = self._items[-1] if self._items else None
        if last is None or not last.add(iteration_index, text, place):
            if len(self._items) >= _MAX_ITEMS:
                return
            self._items.append(StepText(iteration_index, text, after_sequence=after_sequence, place=place))
        self._characters = characters
        if not self._is_ready and self._is_due():
            self._wake()

    async def take(self, *, timeout_s: float) -> TextDelta | None:
        """Wait for the next item and return it.

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
        """Deliver the waiting text: the flush interval is over."""
        self._is_delayed = False
        if self._items:
            self._wake()

    def close(self) -> None:
        """Leave the flush timer: the follower has left."""
        if self._is_delayed and self._flush_timer is not None:
            self._flush_timer.remove(self)

    def _delta_of(self, written: StepText) -> TextDelta:
        """Return the delta to deliver; text that is written from now on waits."""
        self._characters -= written.characters
        if self._flush_timer is not None and not self._is_delayed:
            self._is_delayed = self._flush_timer.delay(self)
        return TextDelta(
            iteration_index=written.iteration_index,
            text=written.text,
            after_sequence=written.after_sequence,
            place=written.place,
        )

    def _is_due(self) -> bool:
        """Whether the first item can be delivered now; only text that may still grow has to wait."""
        if not self._is_delayed or self._characters >= _FLUSHED_CHARACTERS:
            return True
        return len(self._items) > 1 or self._items[0] is None

    async def _wait(self, *, within_s: float) -> None:
        """Wait until there is an item, `within_s` seconds at most."""
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
