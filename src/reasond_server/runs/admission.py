"""Admission of runs: a bounded number runs at once, a bounded queue waits, and all others are refused."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

from reasond_server.errors.limits import DrainingError, OverloadedError
from reasond_server.telemetry.observers import UNOBSERVED, Observer


class Releasable(Protocol):
    """A permit that is released once."""

    def release(self) -> None:
        """Release it; a second call does nothing."""


class Place:
    """The right to run. It is released once: by the run that took it, otherwise at the end of its context."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._is_released = False
        self._is_taken = False
        self._permit: Releasable | None = None

    def keep(self, permit: Releasable | None) -> None:
        """Release `permit` together with the place; at once if the place was released already."""
        self._permit = permit
        if self._is_released and permit is not None:
            permit.release()

    def take(self) -> None:
        """Keep the place after the end of its context: a run uses it now and releases it."""
        self._is_taken = True

    def release(self) -> None:
        """Release it; a second call does nothing."""
        if not self._is_released:
            self._is_released = True
            self._admission.free()
            if self._permit is not None:
                self._permit.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Release the place, unless a run took it."""
        if not self._is_taken:
            self.release()


@dataclass(eq=False, kw_only=True)
class Admission:
    """At most `max_running` requests hold a place, and `max_queued` wait for one, `queue_timeout_s` seconds at most.

    Tenants take turns; the requests of one tenant are served in the order of their arrival.
    """

    max_running: int
    max_queued: int = 0
    queue_timeout_s: float = 0.0
    observer: Observer = UNOBSERVED
    monotonic: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._running = 0
        self._busy_s = 0.0
        self._counted_s = self.monotonic()
        self.begun = 0
        """How many requests got a place."""
        self.refused = 0
        """How many requests were refused because the server was full."""
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self.is_draining = False

    @property
    def running(self) -> int:
        """The number of places in use."""
        return self._running

    @property
    def busy_s(self) -> float:
        """The seconds for which places were in use, over all places."""
        return self._busy_s + self._running * (self.monotonic() - self._counted_s)

    @property
    def queued(self) -> int:
        """The number of requests that wait for a place."""
        return sum(map(len, self._queues.values()))

    @property
    def free_places(self) -> int:
        """The number of free places, less the requests that wait for one."""
        return max(0, self.max_running - self._running - self.queued)

    async def enter(self, tenant: str, *, within_s: float | None = None) -> Place:
        """Return a place, if necessary after a wait; `within_s` (seconds) can shorten the wait in the queue.

        Raises:
            DrainingError: the server is shutting down.
            OverloadedError: all places are in use, and the queue is full or no place became free in time.
        """
        self.require_open()
        if self._running < self.max_running and not self._queues:
            return self.force()
        if self.queued >= self.max_queued:
            raise self._refuse(f"and {self.queued} more wait" if self.max_queued else "")
        timeout_s = self.queue_timeout_s if within_s is None else min(within_s, self.queue_timeout_s)
        return await self._wait(tenant, timeout_s)

    def force(self) -> Place:
        """Return a place even if none is free: executions that are taken over were admitted before."""
        self._give()
        return Place(self)

    def require_open(self) -> None:
        """Refuse new work while the server shuts down.

        Raises:
            DrainingError: the server is shutting down.
        """
        if self.is_draining:
            raise build_draining_error()

    def drain(self) -> None:
        """Admit no further request, and refuse those that wait."""
        self.is_draining = True
        for queue in self._queues.values():
            for waiter in queue:
                if not waiter.done():
                    waiter.set_exception(build_draining_error())

    def free(self) -> None:
        """Record that a place was released, and give it to the next request in the queue."""
        self._count(-1)
        while self._running < self.max_running and self._queues:
            waiter = self._take_next()
            if not waiter.done():
                self._give()
                waiter.set_result(None)

    def _give(self) -> None:
        self._count(1)
        self.begun += 1

    def _count(self, by: int) -> None:
        """Change the number of places in use."""
        self._busy_s, self._counted_s = self.busy_s, self.monotonic()
        self._running += by

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
            # After a stall of the event loop, the timeout and the place may arrive together.
            if not _has_come(waiter):
                outcome = "timeout"
                raise self._refuse(f"and no place became free within {timeout_s:g} s") from None
            outcome = "admitted"
        except DrainingError:
            outcome = "draining"
            raise
        except BaseException:
            self._give_up(waiter)
            raise
        finally:
            self._leave_queue(tenant, waiter)
            self.observer.queue_left(outcome, loop.time() - since_s)
        return Place(self)

    def _give_up(self, waiter: asyncio.Future[None]) -> None:
        """Release a place that was given to `waiter` at the same moment at which it was cancelled."""
        if _has_come(waiter):
            self.free()

    def _leave_queue(self, tenant: str, waiter: asyncio.Future[None]) -> None:
        queue = self._queues.get(tenant)
        if queue is not None and waiter in queue:
            queue.remove(waiter)
            if not queue:
                del self._queues[tenant]

    def _take_next(self) -> asyncio.Future[None]:
        """Remove and return the first request of the next tenant; the tenant moves to the end of the queue."""
        tenant, queue = next(iter(self._queues.items()))
        waiter = queue.popleft()
        if queue:
            self._queues.move_to_end(tenant)
        else:
            del self._queues[tenant]
        return waiter

    def _refuse(self, waiting: str) -> OverloadedError:
        """Count a refusal, and return its error."""
        self.refused += 1
        text = f"{self._running} executions are running, as many as max_concurrent_requests allows"
        return OverloadedError(
            f"{text}, {waiting}" if waiting else text,
            remedy="Retry after the time given, or raise [reasoning.performance] max_concurrent_requests.",
            metadata={"max_concurrent_requests": str(self.max_running)},
        )


def _has_come(waiter: asyncio.Future[None]) -> bool:
    """Return whether the waiter was given a place."""
    return waiter.done() and not waiter.cancelled() and waiter.exception() is None


def build_draining_error() -> DrainingError:
    """Make the error that sends a caller to another instance."""
    return DrainingError("The server is shutting down", remedy="Retry; another instance answers.")
