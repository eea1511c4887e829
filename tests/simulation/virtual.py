"""An event loop with virtual time: if nothing is ready, it jumps to the next timer.

All that happens on it follows from the code and its random numbers, so that the same seed gives the same run, and an
hour of waiting takes no time. There are no sockets, no signals and no threads. All contexts with the same `OWNER` can
be frozen together, like a process that is stopped by a signal.
"""

from __future__ import annotations

import asyncio
import contextvars
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Coroutine, Sequence

ResultT = TypeVar("ResultT")
BEGIN: Final = datetime(2026, 11, 21, tzinfo=UTC)
_FIRST_S: Final = 1000.0
OWNER: contextvars.ContextVar[object] = contextvars.ContextVar("owner", default=None)


class StandstillError(RuntimeError):
    """No task is ready and no timer is set, but the run has not ended: a task waits for ever."""


class ThreadError(RuntimeError):
    """Work was given to a thread, but threads do not follow the virtual time."""


class _Jump:
    """Replaces the loop's selector: instead of waiting, it advances the time."""

    def __init__(self) -> None:
        self.now_s = _FIRST_S

    def select(self, timeout: float | None) -> Sequence[Any]:
        """Let `timeout` seconds pass.

        Raises:
          StandstillError: `timeout` is None, so the loop would wait for ever.
        """
        if timeout is None:
            raise StandstillError("nothing is left to be done, no timer is set, and the run has not ended")
        self.now_s += timeout
        return ()


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop, built on the hooks that asyncio's own loops implement: a selector, its events and a way to wake it.

    Work for threads is refused, or, if `has_threads`, done at once in no time.
    """

    _ready: deque[asyncio.Handle]

    def __init__(self, *, has_threads: bool = False) -> None:
        super().__init__()
        self._has_threads = has_threads
        self._selector = _Jump()
        self.faults: list[str] = []
        self._frozen: dict[object, list[asyncio.Handle]] = {}
        self.set_exception_handler(self._note)

    def time(self) -> float:
        """Return the seconds of this loop, which start at 1,000."""
        return self._selector.now_s

    @property
    def passed_s(self) -> float:
        """Seconds since the loop was made."""
        return self._selector.now_s - _FIRST_S

    def now(self) -> datetime:
        """Return the time of day that corresponds to `time`."""
        return BEGIN + timedelta(seconds=self.passed_s)

    def freeze(self, owner: object) -> None:
        """Run nothing of `owner` until `thaw`, except what is due at this very moment."""
        self._frozen.setdefault(owner, [])

    def thaw(self, owner: object) -> None:
        """Run the callbacks that were due meanwhile, in their order."""
        self._ready.extend(self._frozen.pop(owner, ()))

    def call_at(  # type: ignore[override]  # typeshed's signature is more precise than this one can be
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Call back at that time, unless the owner is frozen then."""
        context = contextvars.copy_context() if context is None else context
        owner = context.get(OWNER)
        if owner is None:
            return super().call_at(when, callback, *args, context=context)

        def due() -> None:
            if owner in self._frozen:
                self._frozen[owner].append(asyncio.Handle(due, (), self, context))
            elif not timer.cancelled():
                callback(*args)

        timer = super().call_at(when, due, context=context)
        return timer

    def _call_soon(
        self, callback: Callable[..., Any], args: Sequence[Any], context: contextvars.Context | None
    ) -> asyncio.Handle:
        context = contextvars.copy_context() if context is None else context
        handle = asyncio.Handle(callback, args, self, context)
        frozen = self._frozen.get(context.get(OWNER))
        if frozen is None:
            self._ready.append(handle)
        else:
            frozen.append(handle)
        return handle

    def run_in_executor(  # type: ignore[override]  # typeshed's signature is more precise than this one can be
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Do the work now.

        Raises:
            ThreadError: there are no threads.
        """
        del executor
        if not self._has_threads:
            raise ThreadError(f"{func!r} was handed to a thread")
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it is passed to the waiting task
            done.set_exception(error)
        return done

    def run(self, main: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run `main` to its end, cancel what is left, and close the loop."""
        try:
            asyncio.set_event_loop(self)
            return self.run_until_complete(main)
        finally:
            left = asyncio.all_tasks(self)
            for task in left:
                task.cancel()
            if left:
                self.run_until_complete(asyncio.wait(left, timeout=1.0))
            self.run_until_complete(self.shutdown_asyncgens())
            asyncio.set_event_loop(None)
            self.close()

    def _note(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.faults.append(f"{context['message']}: {context.get('exception')!r}")

    def _process_events(self, event_list: Sequence[Any]) -> None:
        """Do nothing: there are no events, see `_Jump`."""

    def _write_to_self(self) -> None:
        """Do nothing: no other thread can be waiting for the loop."""
