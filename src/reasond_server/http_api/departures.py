"""Who has left: what is worked on for a client ends when the client goes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

from reasond_server.http_api.exchange import ClientGoneError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from reasond_server.http_api.asgi import Scope

T = TypeVar("T")
DEPARTURE_KEY: Final = "reasond.departure"


class Departure:
    """Whether the client of a connection has left. Its requests are worked on one after the other, each in a task."""

    __slots__ = ("_task", "has_happened")

    def __init__(self) -> None:
        self.has_happened = False
        self._task: asyncio.Task[Any] | None = None

    def happen(self) -> None:
        """Note that the client has left, and cancel what is worked on for it."""
        self.has_happened = True
        if self._task is not None:
            self._task.cancel()

    def watch(self, task: asyncio.Task[Any]) -> None:
        """Cancel `task` once the client leaves; now, if it has left."""
        self._task = task
        if self.has_happened:
            task.cancel()

    def forget(self) -> None:
        """Cancel nothing any more."""
        self._task = None


def departure_of(scope: Scope) -> Departure:
    """Return that of the client behind `scope`; one that never happens where the server does not tell."""
    departure: Departure | None = scope.get(DEPARTURE_KEY)
    return Departure() if departure is None else departure


async def unless_client_leaves(work: Coroutine[Any, Any, T], departure: Departure) -> T:
    """Return what `work` returns; when the client leaves first, cancel `work` and wait until it has ended.

    `work` runs in the task of the caller.

    Raises:
        ClientGoneError: the client left.
    """
    task = asyncio.current_task()
    if task is None:  # pragma: no cover - coroutines run in tasks
        message = "a request is served outside a task"
        raise RuntimeError(message)
    departure.watch(task)
    try:
        result = await work
    except asyncio.CancelledError:
        # Who cancels the task from outside is obeyed, whether the client has left as well or not.
        if departure.has_happened and not task.uncancel():
            raise ClientGoneError from None
        raise
    except BaseException:
        if departure.has_happened:
            task.uncancel()
        raise
    else:
        if departure.has_happened:
            # The work went on to its end though it was cancelled.
            task.uncancel()
            raise ClientGoneError
        return result
    finally:
        departure.forget()
