"""Tasks that are ended for good."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from asyncio import Task

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
