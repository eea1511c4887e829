"""Leases: renewing those of this process, taking logs over, and how long this process may act for a run.

A process that is cut off from its store is not told that another one has taken its runs over. It counts instead: a
lease that was renewed lasts `lease_s` seconds from some moment after the renewal was asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from typing import TYPE_CHECKING, Final, Protocol

from reasond_server.errors import ReasondError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from reasond_server.logs.store import ExecutionStore, Lease, Recovery

_log = logging.getLogger("reasond.executions")
_FORGOTTEN_AT_ONCE = 1000
MARGIN_SHARE: Final = 0.1
_LOOKS_PER_MARGIN: Final = 16


class LeasedRuns(Protocol):
    """The runs of this process, which write logs by its leases."""

    def read_fences(self) -> Mapping[str, int]:
        """Return the fence of each log that is written here, by execution id."""
        ...

    def prolong(self, fences: Mapping[str, int], since_s: float) -> None:
        """Note which leases were renewed by a request that began at `since_s`."""
        ...

    def lose(self, execution_id: str) -> None:
        """Leave an execution that another process has taken over."""
        ...

    def cancel(self, execution_id: str) -> None:
        """Stop an execution that somebody wants stopped."""
        ...

    def keep(self, execution_id: str) -> None:
        """Let an execution go on though nobody follows it."""
        ...


class Heir(Protocol):
    """Who goes on with what other processes left behind."""

    def count_room(self) -> int:
        """Return how many executions may be taken over now."""
        ...

    def adopt(self, recovery: Recovery, since_s: float) -> None:
        """Go on with an execution that was taken over by a request that began at `since_s`."""
        ...


class Upkeep:
    """Renews the leases of a process, looks for logs that nobody writes, and forgets what is past its time.

    It does so every third of a lease, and forgets 1,000 executions at a time.

    Args:
        store: where the logs are.
        lease: what this process holds its executions by.
        random: spreads the waits.
        monotonic: the clock of the times that are handed on, in seconds.
        runs: whose leases are renewed.
        heir: goes on with what is taken over.
    """

    def __init__(
        self,
        *,
        store: ExecutionStore,
        lease: Lease,
        random: Callable[[], float],
        monotonic: Callable[[], float],
        runs: LeasedRuns,
        heir: Heir,
    ) -> None:
        self._store = store
        self._lease = lease
        self._random = random
        self._monotonic = monotonic
        self._runs = runs
        self._heir = heir
        self._is_out_of_touch = False
        self._renewed_s: float | None = None
        self._hurried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_cut_off(self) -> bool:
        """Whether it was cancelled by somebody else: only an event loop that ends does that, with every task."""
        return self._task is not None and self._task.cancelling() > 0

    def begin(self) -> None:
        """Begin with a round at once, then go on in a task of its own."""
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name="upkeep of executions")

    async def aclose(self) -> None:
        """Stop; leases that are held run out by themselves."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def hurry(self) -> None:
        """Renew at once, instead of when the next round comes."""
        self._hurried.set()

    async def round(self) -> None:
        """Renew, recover and forget once.

        After a round that failed, or that came so late that leases ran out, nothing is taken over yet: whoever is
        alive must have had the time to renew.

        Raises:
            StoreUnavailableError: the store cannot be reached.
        """
        was_out_of_touch, self._is_out_of_touch = self._is_out_of_touch or self._is_late(), True
        await self._renew()
        if not was_out_of_touch:
            await self._recover()
        self._is_out_of_touch = False
        while await self._store.forget(limit=_FORGOTTEN_AT_ONCE) == _FORGOTTEN_AT_ONCE:
            # Forgetting much may take longer than a lease lasts.
            await self._renew()

    def _is_late(self) -> bool:
        """Whether this process stood still for so long that others may have, too: a machine that slept, say."""
        return self._renewed_s is not None and self._monotonic() - self._renewed_s > self._lease.seconds

    async def _work(self) -> None:
        third_s, loop = self._lease.seconds / 3, asyncio.get_running_loop()
        while True:
            await self._try(self.round)
            # Processes that started together would otherwise look at the same logs at the same moment.
            next_s = loop.time() + third_s * (0.9 + self._random() / 10)
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
        """Wait until the loop's time is `until_s`, or a renewal is wanted before that; return whether it is."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until_s):
                await self._hurried.wait()
        return self._hurried.is_set()

    async def _renew(self) -> None:
        # Whoever asks from now on asks for another one: this may come too early, or too late, or not at all for them.
        self._hurried.clear()
        fences, since_s = dict(self._runs.read_fences()), self._monotonic()
        if fences:
            await self._renew_all(fences, since_s)
        self._renewed_s = since_s

    async def _renew_all(self, fences: Mapping[str, int], since_s: float) -> None:
        renewal = await self._store.renew(self._lease, fences)
        lost = frozenset(renewal.lost)
        self._runs.prolong({name: fence for name, fence in fences.items() if name not in lost}, since_s)
        for execution_id in renewal.lost:
            self._runs.lose(execution_id)
        for execution_id in renewal.cancel_requested:
            self._runs.cancel(execution_id)
        for execution_id in renewal.keep_requested:
            self._runs.keep(execution_id)

    async def _recover(self) -> None:
        room = self._heir.count_room()
        if room < 1:
            return
        since_s = self._monotonic()
        found = await self._store.recover(self._lease, limit=room)
        for recovery in found:
            _log.info("execution taken over", extra={"execution_id": recovery.execution.execution_id})
            self._heir.adopt(recovery, since_s)
        if found:
            # It also tells which of them somebody wanted to stop meanwhile.
            await self._renew()


def _do_nothing() -> None:
    """Do nothing."""


class Tenure:
    """How long one run is surely at work here alone.

    It is for `lease_s` less a tenth, counted on `monotonic` from the start of the request that got or renewed the
    lease. The tenth is for clocks that do not run alike, and for the way from the last look at the clock to the
    model's server. From then on `wait_for_lease` keeps new calls waiting; a tenth of a lease later, if nothing was
    renewed meanwhile, `end` is called, again and again until `close`. Before `begin` nobody else knows of the run.
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
        """Count from `since_s` on; `ask` is called when a renewal is wanted at once."""
        self._ask, self._end = ask, end
        self.prolong(since_s)
        self._look()

    def prolong(self, since_s: float) -> None:
        """Count from `since_s` on: then a renewal was asked for that is known to have succeeded."""
        self._until_s = since_s + self._sure_s
        self._moved.set()

    async def wait_for_lease(self) -> None:
        """Wait until no other process can have taken the run over; the run may be stopped meanwhile."""
        while not self.is_sure:
            self._ask()
            self._moved.clear()
            await self._moved.wait()

    def close(self) -> None:
        """Stop counting: the run is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """Look at the clock, which may have gone further than the timer: the event loop may have stood still."""
        left_s = self._until_s - self._monotonic()
        if left_s > 0:
            self._is_in_doubt = False
        elif self._is_in_doubt:
            self._end()
        else:
            self._is_in_doubt = True
            self._ask()
        # The loop's clock may be the faster one: looking again too soon would come to nothing, many times.
        wait_s = max(left_s, self._margin_s / _LOOKS_PER_MARGIN) if left_s > 0 else self._margin_s
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._look)
