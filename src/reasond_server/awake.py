"""A time limit that counts only while the event loop is awake."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

_SLICES: Final = 5


@asynccontextmanager
async def awake_for(seconds: float) -> AsyncGenerator[None, None]:
    """Bound what is awaited to `seconds` in which the event loop is awake.

    A loop that was busy with something else hears of an answer and of the end of its time at once: with one timer,
    every stall of the process would pass for one of what is asked. Of a stall only one slice counts.

    Raises:
        TimeoutError: they are over.
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
