"""How much of a request is taken in: bounds on a body, on all bodies together, on time; and who has left."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from reasond_server.errors import shown
from reasond_server.http_api.exchange import ClientGoneError, RefusalError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from reasond_server.http_api.asgi import Receive
    from reasond_server.http_api.headers import RequestHeaders

T = TypeVar("T")

# What is done sooner is not worth a task that looks whether its client has left.
_UNWATCHED_S = 0.03


class Intake:
    """Takes in request bodies and counts what is held.

    `max_body_bytes` bounds one body, `max_held_bytes` all bodies whose calls are in progress,
    `max_requests` their number, `body_timeout_s` the seconds until a body is complete.
    """

    def __init__(self, *, max_body_bytes: int, max_held_bytes: int, max_requests: int, body_timeout_s: float) -> None:
        self._max_body_bytes = max_body_bytes
        self._max_held_bytes = max_held_bytes
        self._max_requests = max_requests
        self._body_timeout_s = body_timeout_s
        self._held_bytes = 0
        self._requests = 0

    async def take_in(self, declared: int | None, receive: Receive) -> bytearray:
        """Return the body of a request, which counts as held from now on, until it is let go.

        What is over the limit as it is `declared` need not be read at all.

        Raises:
            RefusalError: 413 too large, 408 too slow, 503 more than the server holds at once.
            ClientGoneError: the client left before its body was complete.
        """
        if declared is not None and declared > self._max_body_bytes:
            raise self._too_large()
        if self._requests >= self._max_requests:
            raise _busy()
        self._requests += 1
        body = bytearray()
        try:
            async with asyncio.timeout(self._body_timeout_s):
                while await self._take(body, receive):
                    pass
        except BaseException as error:
            self.let_go(body)
            if isinstance(error, TimeoutError):
                raise self._too_slow() from None
            raise
        return body

    def let_go(self, body: bytearray) -> None:
        """Count a request no longer, and what of its body was taken in."""
        self._requests -= 1
        self._held_bytes -= len(body)

    async def _take(self, body: bytearray, receive: Receive) -> bool:
        """Take the next piece of `body`; return whether more is to come."""
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunk: bytes = message.get("body", b"")
        if len(body) + len(chunk) > self._max_body_bytes:
            raise self._too_large()
        if self._held_bytes + len(chunk) > self._max_held_bytes:
            raise _busy()
        body += chunk
        self._held_bytes += len(chunk)
        return bool(message.get("more_body", False))

    def _too_large(self) -> RefusalError:
        return RefusalError(
            413,
            f"the body is over the limit of {self._max_body_bytes} bytes; send less, "
            "or have [server] max_http_body_bytes raised",
        )

    def _too_slow(self) -> RefusalError:
        message = f"the body did not arrive within {self._body_timeout_s:g} s"
        return RefusalError(408, message, headers={"connection": "close"})


async def unless_client_leaves(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """Return what `work` returns; when the client leaves first, cancel `work` and wait until it has ended.

    `work` runs in the task of the caller.

    Raises:
        ClientGoneError: the client left.
    """
    task = asyncio.current_task()
    if task is None:  # pragma: no cover - coroutines run in tasks
        message = "a request is served outside a task"
        raise RuntimeError(message)
    watch = _Watch(task, receive)
    try:
        result = await work
    except asyncio.CancelledError:
        # Who cancels the task from outside is obeyed, whether the client has left as well or not.
        if watch.has_left and not task.uncancel():
            raise ClientGoneError from None
        raise
    except BaseException:
        if watch.has_left:
            task.uncancel()
        raise
    else:
        if watch.has_left:
            # The work went on to its end though it was cancelled.
            task.uncancel()
            raise ClientGoneError
        return result
    finally:
        watch.end()


class _Watch:
    """Cancels `task` once its client has left; it begins to look when the task has worked for a while."""

    __slots__ = ("_looking", "_receive", "_task", "_timer", "has_left")

    def __init__(self, task: asyncio.Task[Any], receive: Receive) -> None:
        self.has_left = False
        self._task = task
        self._receive = receive
        self._looking: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(_UNWATCHED_S, self._begin)

    def end(self) -> None:
        """Look no more."""
        self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()

    def _begin(self) -> None:
        self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        # ASGI tells of a departure only to whoever is waiting for a message.
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.has_left = True
        self._task.cancel()


def require_plain(headers: RequestHeaders) -> None:
    """Refuse a body that is packed: a small one could hold more than any limit.

    Raises:
        RefusalError: 415.
    """
    encoding = headers.first(b"content-encoding")
    if encoding is not None and encoding.strip().lower() != "identity":
        raise RefusalError(
            415,
            f"the body has Content-Encoding {shown(encoding)}, which is not unpacked here; send it as it is, without",
            headers={"accept-encoding": "identity"},
        )


def _busy() -> RefusalError:
    message = "the server holds as many requests as it may; retry in a second"
    return RefusalError(503, message, headers={"retry-after": "1"})
