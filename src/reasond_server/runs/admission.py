"""Who may start now, who waits, and who is refused: a bounded number of runs, and a bounded queue before them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Protocol

from reasond_server.errors import DrainingError, OverloadedError
from reasond_server.telemetry.observers import UNOBSERVED

if TYPE_CHECKING:
    from typing import Self

    from reasond_server.telemetry.observers import RunObserver


class Leavable(Protocol):
    """A right that is given back once."""

    def leave(self) -> None:
        """Give it back; a second time does nothing."""
        ...


class Place:
    """The right to run; given back once, by whoever holds it last: at the end of its context, or by a run."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._is_left = False
        self._is_taken = False
        self._permit: Leavable | None = None

    def keep(self, permit: Leavable | None) -> None:
        """Leave `permit` together with the place, at once if that was left already."""
        self._permit = permit
        if self._is_left and permit is not None:
            permit.leave()

    def take(self) -> None:
        """Keep it beyond its context: a run works in it now and leaves it."""
        self._is_taken = True

    def leave(self) -> None:
        """Give it back; a second time does nothing."""
        if not self._is_left:
            self._is_left = True
            self._admission.free()
            if self._permit is not None:
                self._permit.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Give the place back, unless a run took it."""
        if not self._is_taken:
            self.leave()


class Admission:
    """At most `max_running` hold a place, and `max_queued` wait for one, `queue_timeout_s` seconds at most.

    Tenants take turns; those of one tenant come in the order in which they asked.
    """

    def __init__(
        self,
        *,
        max_running: int,
        max_queued: int = 0,
        queue_timeout_s: float = 0.0,
        observer: RunObserver = UNOBSERVED,
    ) -> None:
        self._observer = observer
        self._max_running = max_running
        self._max_queued = max_queued
        self._queue_timeout_s = queue_timeout_s
        self._running = 0
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self.is_draining = False

    @property
    def running(self) -> int:
        """Places that are held."""
        return self._running

    @property
    def queued(self) -> int:
        """Those who wait for a place."""
        return sum(map(len, self._queues.values()))

    @property
    def free_places(self) -> int:
        """Places that nobody has or waits for."""
        return max(0, self._max_running - self._running - self.queued)

    async def enter(self, tenant: str, *, within_s: float | None = None) -> Place:
        """Return a place, after a wait if need be; `within_s` bounds it further than the queue does.

        Raises:
            DrainingError: the server is shutting down.
            OverloadedError: there is no place, and none in the queue, or none became free in time.
        """
        self.require_open()
        if self._running < self._max_running and not self._queues:
            return self.force()
        if self.queued >= self._max_queued:
            raise self._overload_error(f"and {self.queued} more wait" if self._max_queued else "")
        timeout_s = self._queue_timeout_s if within_s is None else min(within_s, self._queue_timeout_s)
        return await self._wait(tenant, timeout_s)

    def force(self) -> Place:
        """Return a place, whether there is one or not: what a process left behind was admitted before."""
        self._running += 1
        return Place(self)

    def require_open(self) -> None:
        """Refuse new work while the server shuts down.

        Raises:
            DrainingError: it does.
        """
        if self.is_draining:
            raise draining()

    def drain(self) -> None:
        """Admit nobody any more, and refuse those who wait."""
        self.is_draining = True
        for queue in self._queues.values():
            for waiter in queue:
                if not waiter.done():
                    waiter.set_exception(draining())

    def free(self) -> None:
        """Take note that a place was left, and give it to who is next."""
        self._running -= 1
        while self._running < self._max_running and self._queues:
            waiter = self._next()
            if not waiter.done():
                self._running += 1
                waiter.set_result(None)

    async def _wait(self, tenant: str, timeout_s: float) -> Place:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._queues.setdefault(tenant, deque()).append(waiter)
        outcome, since_s = "gone", loop.time()
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
            outcome = "admitted"
        except TimeoutError:
            # A loop that stood still hears of both at once.
            if not _has_come(waiter):
                outcome = "timeout"
                raise self._overload_error(f"and no place became free within {timeout_s:g} s") from None
            outcome = "admitted"
        except DrainingError:
            outcome = "draining"
            raise
        except BaseException:
            self._give_up(waiter)
            raise
        finally:
            self._leave_queue(tenant, waiter)
            self._observer.queue_left(outcome, loop.time() - since_s)
        return Place(self)

    def _give_up(self, waiter: asyncio.Future[None]) -> None:
        """Pass on a place that came at the very moment in which nobody waited for it any more."""
        if _has_come(waiter):
            self.free()

    def _leave_queue(self, tenant: str, waiter: asyncio.Future[None]) -> None:
        queue = self._queues.get(tenant)
        if queue is not None and waiter in queue:
            queue.remove(waiter)
            if not queue:
                del self._queues[tenant]

    def _next(self) -> asyncio.Future[None]:
        """Take the first of the tenant whose turn it is out of the queue; the tenant goes to the end."""
        tenant, queue = next(iter(self._queues.items()))
        waiter = queue.popleft()
        if queue:
            self._queues.move_to_end(tenant)
        else:
            del self._queues[tenant]
        return waiter

    def _overload_error(self, waiting: str) -> OverloadedError:
        text = f"{self._running} executions are running, as many as max_concurrent_requests allows"
        return OverloadedError(
            f"{text}, {waiting}" if waiting else text,
            remedy="Retry after the time given, or raise [reasoning.performance] max_concurrent_requests.",
            metadata={"max_concurrent_requests": str(self._max_running)},
        )


def _has_come(waiter: asyncio.Future[None]) -> bool:
    """Return whether the waiter was given a place."""
    return waiter.done() and not waiter.cancelled() and waiter.exception() is None


def draining() -> DrainingError:
    """Make the error that tells a caller to ask another instance."""
    return DrainingError("The server is shutting down", remedy="Retry; another instance answers.")
