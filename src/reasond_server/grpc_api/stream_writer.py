"""Writes the events of a stream to a client, and ends the stream of a client that stalls."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from reasond_server.errors.limits import SlowConsumerError
from reasond_server.grpc_api.guard import get_current_call
from reasond_server.telemetry.observers import UNOBSERVED, Observer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from reasond_server.grpc_api.handlers import Context

_log = logging.getLogger("reasond.grpc")


class Placed(Protocol):
    """An event of the log of an execution, or what is made of one: the sequence is where its reader resumes."""

    @property
    def execution_id(self) -> str:
        """The execution."""
        ...

    @property
    def sequence(self) -> int:
        """The number of the event in its log."""
        ...


EventT = TypeVar("EventT", bound=Placed)


class StreamWriter:
    """Writes streams of events; what a log is called in messages is its `id_name`.

    A client that does not read a message within `write_timeout_s` seconds is disconnected (SLOW_CONSUMER); it can
    resume.
    """

    def __init__(
        self, *, write_timeout_s: float, observer: Observer = UNOBSERVED, id_name: str = "execution_id"
    ) -> None:
        self._write_timeout_s = write_timeout_s
        self._observer = observer
        self._id_name = id_name

    async def write(
        self,
        events: AsyncGenerator[EventT, None],
        context: Context,
        message_of: Callable[[EventT], object | None],
    ) -> None:
        """Write `events` as they come, each as the message that `message_of` returns if any; close them at the end.

        Raises:
            SlowConsumerError: the client took nothing for too long.
        """
        transport = get_current_call().transport
        self._observer.stream_opened(transport)
        try:
            with StallWatch(limit_s=self._write_timeout_s) as watch:
                async with aclosing(events):
                    async for event in events:
                        message = message_of(event)
                        if message is None:
                            continue
                        try:
                            # Waits while the client's flow-control window is full.
                            await watch.write_within(context.write(message))
                        except TimeoutError:
                            raise self._cut_off(event) from None
        finally:
            self._observer.stream_closed(transport)

    def _cut_off(self, event: Placed) -> SlowConsumerError:
        """Log that the client did not read `event` in time; return the error for the client."""
        self._observer.slow_consumer(get_current_call().transport)
        # Logged now: the status, and so the access log, waits until the client has read all earlier data.
        facts = {"execution_id": event.execution_id, "undelivered_sequence": event.sequence}
        _log.info("a client that took nothing for %g s was cut off (SLOW_CONSUMER)", self._write_timeout_s, extra=facts)
        error = SlowConsumerError(
            f"The client took no message for {self._write_timeout_s:g} s",
            remedy=f"Resume with the {self._id_name} and the last sequence that was read.",
            metadata={"undelivered_sequence": str(event.sequence)},
        )
        error.execution_id = event.execution_id
        return error


class Timers(Protocol):
    """The part of an event loop that sets timers; in seconds."""

    def time(self) -> float:
        """Return the time on its clock."""

    def call_at(self, when: float, callback: Callable[[], object], /) -> asyncio.TimerHandle:
        """Call `callback` when the clock says `when`."""


class StallWatch:
    """Limits each write of the current task to `limit_s` seconds, while the context lasts.

    `asyncio.timeout` sets and cancels a timer for every message. Here one timer fires once in `limit_s` seconds
    and checks how long the current write has waited. `timers` defaults to the running event loop.
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

    async def write_within(self, write: Awaitable[None]) -> None:
        """Await `write`.

        Raises:
            TimeoutError: the write took too long and was cancelled.
        """
        self._since_s, self._has_cut = self._timers.time(), False
        if self._timer is None:
            self._timer = self._timers.call_at(self._since_s + self._limit_s, self._look)
        try:
            await write
        except asyncio.CancelledError:
            # A cancellation by somebody else must not be suppressed.
            if not self._has_cut or self._task is None or self._task.uncancel() > self._cancelling:
                raise
            raise TimeoutError from None
        finally:
            self._since_s = None

    def _look(self) -> None:
        """Cancel a write that takes too long, else set the timer again; without a write, the next write sets it."""
        self._timer = None
        if self._since_s is None or self._task is None:
            return
        until_s = self._since_s + self._limit_s
        if self._timers.time() < until_s:
            self._timer = self._timers.call_at(until_s, self._look)
        else:
            self._has_cut = True
            self._task.cancel()
