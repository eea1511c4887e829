"""Servers of tests, on the loopback, that leave no connection open."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine


@asynccontextmanager
async def accepting(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]],
    *,
    port: int = 0,
    **options: Any,
) -> AsyncGenerator[int, None]:
    """Let `serve` answer each connection, and yield the port; `options` are those of `asyncio.start_server`.

    At the end what still serves is cancelled, and every connection that was accepted is closed. One that stays open
    warns when it is collected, and then the test that runs at that moment fails.
    """
    tasks: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        task = asyncio.create_task(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(begin, "127.0.0.1", port, **options)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        left = tuple(tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for writer in writers:
            # A client that does not read would keep it open, and a task that was cancelled before it began too. What
            # closes with nothing left to write may be gone, and asyncio fails to abort that.
            if not writer.is_closing() or writer.transport.get_write_buffer_size():
                writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)
