"""Tasks of asyncio: ended for good, or finished for a caller that leaves; limits of the time that the loop is awake.

Also a semaphore at which keys, such as tenants or addresses, take turns.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from reasond_server.errors.limits import OverloadedError

if TYPE_CHECKING:
    from asyncio import Task
    from collections.abc import AsyncGenerator, Coroutine, Sequence


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


async def interleave(
    streams: Sequence[AsyncGenerator[_Result, None]],
) -> AsyncGenerator[tuple[int, _Result | None], None]:
    """Yield what each stream yields as it comes, with its place among them, and None when it has ended.

    The first failure of a stream is raised. Then, and when this generator is closed, the other streams are closed.
    """
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for each in only:
                yield 0, each
        yield 0, None
        return
    came = asyncio.Queue[tuple[int, _Result | None, Exception | None]](maxsize=1)

    async def read(place: int, stream: AsyncGenerator[_Result, None]) -> None:
        failure = None
        try:
            async with aclosing(stream):
                async for each in stream:
                    await came.put((place, each, None))
        except Exception as error:  # noqa: BLE001 - raised where the streams are read
            failure = error
        await came.put((place, None, failure))

    readers = [asyncio.create_task(read(*each), name="reading a stream") for each in enumerate(streams)]
    try:
        left = len(readers)
        while left:
            source, found, error = await came.get()
            if error is not None:
                raise error
            yield source, found
            left -= found is None
    finally:
        for reader in readers:
            await end_task(reader)


class FairSemaphore:
    """A semaphore of `permits` with up to `most_waiting` waiters: keys take turns, each in order of arrival.

    When the queue is full, a newcomer replaces the last waiter of the key with the most waiters, unless its own key
    would then have as many. So no key can crowd out another one with many requests. `waiters` says who waits, in words.
    """

    def __init__(self, *, permits: int, most_waiting: int, waiters: str) -> None:
        self._named = waiters
        self._free = permits
        self._most_waiting = most_waiting
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def free(self) -> int:
        """The number of free permits."""
        return self._free

    @property
    def waiters(self) -> int:
        """The number of waiters."""
        return sum(map(len, self._queues.values()))

    @asynccontextmanager
    async def acquire(self, key: str) -> AsyncGenerator[None, None]:
        """Wait for a permit under `key` and hold it in the context.

        Raises:
            OverloadedError: the queue is full, or a newcomer took the place of this waiter.
        """
        await self._wait_for_permit(key)
        try:
            yield
        finally:
            self._release()

    async def _wait_for_permit(self, key: str) -> None:
        # No permit is free while there is a waiter, because a released permit goes to the next waiter.
        if self._free:
            self._free -= 1
            return
        if self.waiters >= self._most_waiting:
            self._make_room(key)
        permit: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(key, deque()).append(permit)
        try:
            await permit
        except asyncio.CancelledError:
            if not permit.cancelled() and permit.exception() is None:
                # The permit arrived at the moment of the cancellation.
                self._release()
            raise

    def _release(self) -> None:
        while self._queues:
            key, queue = self._queues.popitem(last=False)
            permit = queue.popleft()
            if queue:
                self._queues[key] = queue
            if not permit.done():
                permit.set_result(None)
                return
        self._free += 1

    def _make_room(self, key: str) -> None:
        longest = max(self._queues.values(), key=len)
        if len(longest) <= len(self._queues.get(key, ())) + 1:
            raise self._build_error()
        last = longest.pop()
        if not last.done():
            last.set_exception(self._build_error())

    def _build_error(self) -> OverloadedError:
        message = f"Too many {self._named}: {self._most_waiting} wait, which is the limit"
        return OverloadedError(message, remedy="Retry after the time given.")
