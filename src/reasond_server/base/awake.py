"""A time limit that counts only while the event loop is awake."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

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
