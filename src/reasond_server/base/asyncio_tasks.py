"""Tasks of asyncio: ended for good, or finished for a caller that leaves; limits of the time that the loop is awake."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from asyncio import Task
    from collections.abc import AsyncGenerator, Coroutine

_Result = TypeVar("_Result")

_SLICES: Final = 5


@asynccontextmanager
async def limit_awake_time(seconds: float) -> AsyncGenerator[None, None]:
    """Limit the body to `seconds` in which the event loop is awake.

    With a single timer, a stall of the loop would count as a delay of the answer, because the answer and the end of the
    timer would arrive together. Therefore the time is cut into slices, and a stall counts as one slice at most.

    Raises:
        TimeoutError: the time is over.
    """
    loop = asyncio.get_running_loop()
    slice_s = seconds / _SLICES
    async with asyncio.timeout(None) as limit:

        def tick(left: int) -> None:
            if left:
                timers[:] = [loop.call_later(slice_s, tick, left - 1)]
            else:
                limit.reschedule(loop.time())

        timers = [loop.call_later(slice_s, tick, _SLICES - 1)]
        try:
            yield
        finally:
            timers[0].cancel()


_AGAIN_S: Final = 1.0


async def end_task(task: Task[Any]) -> None:
    """Cancel `task` until it has ended; what it returns or raises is dropped.

    Before Python 3.12 `asyncio.wait_for`, which psycopg uses, swallows a cancellation that arrives together with what
    it waits for. A task that works for ever would go on then, and whoever awaits its end would wait for ever.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_AGAIN_S)
    if not task.cancelled():
        # Reading it prevents asyncio from logging it as never retrieved.
        task.exception()


async def finish_though_cancelled(work: Coroutine[Any, Any, _Result], *, name: str) -> _Result:
    """Return what `work` returns. If the caller is cancelled meanwhile, `work` is done to its end first."""
    task = asyncio.create_task(work, name=name)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            # The caller has left: an error that nobody asks for would be logged as one that nobody caught.
            task.exception()
        raise
