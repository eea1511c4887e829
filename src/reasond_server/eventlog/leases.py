"""Leases: renewing those of this process, taking logs over, and how long this process may act for a run.

A process that is cut off from its store does not learn that another process has taken its runs over. It therefore
measures the time itself: a renewed lease lasts at least `lease_s` seconds after the renewal was requested.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from reasond_server.base.asyncio_tasks import end_task
from reasond_server.errors.base import ReasondError

if TYPE_CHECKING:
    from reasond_server.eventlog.store import ExecutionStore, Lease, Recovery

_log = logging.getLogger("reasond.executions")
_FORGOTTEN_AT_ONCE = 1000
_SWEPT_AT_ONCE = 10
MARGIN_SHARE: Final = 0.1
_LOOKS_PER_MARGIN: Final = 16

Sweep = Callable[[int], Awaitable[int]]


async def sweep_nothing(_limit: int) -> int:
    """Return 0: nothing is stored beside the logs."""
    return 0


class LeasedRuns(Protocol):
    """The runs of this process, which write their logs under its leases."""

    def read_fences(self) -> Mapping[str, int]:
        """Return the fence of each log that this process writes, by execution id."""

    def prolong(self, fences: Mapping[str, int], since_s: float) -> None:
        """Record that a request that began at `since_s` renewed the leases of `fences`."""

    def lose(self, execution_id: str) -> None:
        """Leave an execution that another process has taken over."""

    def cancel(self, execution_id: str) -> None:
        """Stop an execution whose cancellation was requested."""

    def keep(self, execution_id: str) -> None:
        """Let an execution run although it has no subscriber."""


class RecoveryHandler(Protocol):
    """Resumes executions that other processes left behind."""

    def count_room(self) -> int:
        """Return how many executions may be taken over now."""

    def adopt(self, recovery: Recovery, since_s: float) -> None:
        """Resume an execution that was taken over by a request that began at `since_s`."""


@dataclass(eq=False, kw_only=True)
class LeaseKeeper:
    """Renews the leases of a process, takes over logs that nobody writes, and deletes what has expired.

    A round begins every third of a lease. It deletes expired executions in batches of 1,000, and then what `sweep`
    deletes, in batches of 10.

    Args:
        store: where the logs are.
        lease: the lease under which this process holds its executions.
        random: spreads the waits; returns a number in [0, 1).
        monotonic: the clock of the times that `runs` and `handler` receive, in seconds.
        runs: the runs whose leases are renewed.
        heir: resumes the executions that are taken over.
        sweep: deletes at most so many expired things that are stored beside the logs; returns how many it deleted.
    """

    store: ExecutionStore
    lease: Lease
    random: Callable[[], float]
    monotonic: Callable[[], float]
    runs: LeasedRuns
    handler: RecoveryHandler
    sweep: Sweep = sweep_nothing

    def __post_init__(self) -> None:
        self._is_out_of_touch = False
        self._renewed_s: float | None = None
        self._hurried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_cut_off(self) -> bool:
        """Whether other code cancelled its task: only an event loop that ends does that, and it cancels every task."""
        return self._task is not None and self._task.cancelling() > 0

    def begin(self) -> None:
        """Start the task that does a round at once and then one every third of a lease."""
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name="lease keeper")

    async def aclose(self) -> None:
        """Stop the task. The leases are not given back: they expire."""
        if self._task is not None:
            await end_task(self._task)
            self._task = None

    def hurry(self) -> None:
        """Renew the leases at once, before the next round."""
        self._hurried.set()

    async def round(self) -> None:
        """Renew leases, recover executions and delete expired ones, once.

        If the round before failed, or if this round is so late that leases have expired, it takes nothing over: the
        processes that are alive must first have the time to renew.

        Raises:
            StoreUnavailableError: the store cannot be reached.
        """
        was_out_of_touch, self._is_out_of_touch = self._is_out_of_touch or self._is_late(), True
        await self._renew()
        if not was_out_of_touch:
            await self._recover()
        self._is_out_of_touch = False
        while await self.store.forget(limit=_FORGOTTEN_AT_ONCE) == _FORGOTTEN_AT_ONCE:
            # Deleting many executions may take longer than a lease lasts.
            await self._renew()
        while await self.sweep(_SWEPT_AT_ONCE) == _SWEPT_AT_ONCE:
            await self._renew()

    def _is_late(self) -> bool:
        """Whether the last renewal is older than a lease: the whole machine may have slept, and other processes too."""
        return self._renewed_s is not None and self.monotonic() - self._renewed_s > self.lease.seconds

    async def _work(self) -> None:
        third_s, loop = self.lease.seconds / 3, asyncio.get_running_loop()
        while True:
            await self._try(self.round)
            # Without the random part, processes that started together would query the same logs at the same moment.
            next_s = loop.time() + third_s * (0.9 + self.random() / 10)
            while await self._is_hurried(until_s=next_s):
                await self._try(self._renew)

    async def _try(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except ReasondError as error:
            _log.warning("the upkeep of executions failed and is tried again: %s", error.message)
        except Exception:  # noqa: BLE001 - a task of its own: nobody above could handle it
            _log.exception("the upkeep of executions failed and is tried again")

    async def _is_hurried(self, *, until_s: float) -> bool:
        """Wait until the loop's time is `until_s` or `hurry` is called; return whether it was called."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until_s):
                await self._hurried.wait()
        return self._hurried.is_set()

    async def _renew(self) -> None:
        # Cleared first: this renewal cannot satisfy a request that comes after it has begun.
        self._hurried.clear()
        fences, since_s = dict(self.runs.read_fences()), self.monotonic()
        if fences:
            await self._renew_all(fences, since_s)
        self._renewed_s = since_s

    async def _renew_all(self, fences: Mapping[str, int], since_s: float) -> None:
        renewal = await self.store.renew(self.lease, fences)
        lost = frozenset(renewal.lost)
        self.runs.prolong({name: fence for name, fence in fences.items() if name not in lost}, since_s)
        for execution_id in renewal.lost:
            self.runs.lose(execution_id)
        for execution_id in renewal.cancel_requested:
            self.runs.cancel(execution_id)
        for execution_id in renewal.keep_requested:
            self.runs.keep(execution_id)

    async def _recover(self) -> None:
        room = self.handler.count_room()
        if room < 1:
            return
        since_s = self.monotonic()
        found = await self.store.recover(self.lease, limit=room)
        for recovery in found:
            _log.info("execution taken over", extra={"execution_id": recovery.execution.execution_id})
            self.handler.adopt(recovery, since_s)
        if found:
            # A renewal also reports which of them were asked to stop meanwhile.
            await self._renew()


def _do_nothing() -> None:
    """Do nothing."""


class Tenure:
    """The time in which no other process can have taken one run over.

    This time is nine tenths of `lease_s`, measured with `monotonic` from the start of the request that got or renewed
    the lease. The last tenth allows for clocks of different speed, and for the time between the check of the clock and
    the arrival of a call at the model's server. After that time `wait_for_lease` delays new calls. If the lease is not
    renewed within another tenth, `end` is called, and again after every further tenth until `close`. Before `begin` no
    other process knows of the run.
    """

    def __init__(self, *, lease_s: float, monotonic: Callable[[], float]) -> None:
        self._sure_s = lease_s * (1 - MARGIN_SHARE)
        self._margin_s = lease_s * MARGIN_SHARE
        self._monotonic = monotonic
        self._until_s = math.inf
        self._is_in_doubt = False
        self._moved = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._ask: Callable[[], None] = _do_nothing
        self._end: Callable[[], None] = _do_nothing

    @property
    def is_sure(self) -> bool:
        """Whether no other process can have taken the run over yet."""
        return self._monotonic() < self._until_s

    def begin(self, since_s: float, *, ask: Callable[[], None], end: Callable[[], None]) -> None:
        """Start at `since_s`, in seconds of `monotonic`; `ask` is called when a renewal is needed at once."""
        self._ask, self._end = ask, end
        self.prolong(since_s)
        self._look()

    def prolong(self, since_s: float) -> None:
        """Start again at `since_s`, the time at which a renewal was requested that has succeeded."""
        self._until_s = since_s + self._sure_s
        self._moved.set()

    async def wait_for_lease(self) -> None:
        """Wait until no other process can have taken the run over; the run may be stopped during the wait."""
        while not self.is_sure:
            self._ask()
            self._moved.clear()
            await self._moved.wait()

    def close(self) -> None:
        """Stop the timer: the run is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """Check the clock. The timer alone may be late, because the event loop may have stalled."""
        left_s = self._until_s - self._monotonic()
        if left_s > 0:
            self._is_in_doubt = False
        elif self._is_in_doubt:
            self._end()
        else:
            self._is_in_doubt = True
            self._ask()
        # The loop's clock may be faster than `monotonic`: without a lower bound many checks would come too early.
        wait_s = max(left_s, self._margin_s / _LOOKS_PER_MARGIN) if left_s > 0 else self._margin_s
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._look)
