"""Keeps the right to write the logs of this process, and takes over those of processes that are gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from reasond_server.errors import ReasondError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from reasond_server.logs.store import ExecutionStore, Lease, Recovery

_log = logging.getLogger("reasond.executions")
_FORGOTTEN_AT_ONCE = 1000


class Upkeep:
    """Renews the leases of a process, looks for logs that nobody writes, and forgets what is past its time.

    It does so every third of a lease, and forgets 1,000 executions at a time.

    Args:
        store: where the logs are.
        lease: what this process holds its executions by.
        random: spreads the waits.
        monotonic: the clock of the times that are handed on, in seconds.
        fences: tells what is at work here, by execution.
        room: how many executions may be taken over now.
        adopt: goes on with one that was taken over; it is told when that was asked for.
        on_renewed: hears which leases were prolonged, and when that was asked for.
        on_lost: hears which execution another process has taken over.
        on_cancelled: hears which one somebody wants stopped.
        on_kept: hears which one goes on though nobody follows it.
    """

    def __init__(
        self,
        *,
        store: ExecutionStore,
        lease: Lease,
        random: Callable[[], float],
        monotonic: Callable[[], float],
        fences: Callable[[], Mapping[str, int]],
        room: Callable[[], int],
        adopt: Callable[[Recovery, float], None],
        on_renewed: Callable[[Mapping[str, int], float], None],
        on_lost: Callable[[str], None],
        on_cancelled: Callable[[str], None],
        on_kept: Callable[[str], None],
    ) -> None:
        self._store = store
        self._lease = lease
        self._random = random
        self._monotonic = monotonic
        self._on_renewed = on_renewed
        self._fences = fences
        self._room = room
        self._adopt = adopt
        self._on_lost = on_lost
        self._on_cancelled = on_cancelled
        self._on_kept = on_kept
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
            await self._tried(self.round)
            # Processes that started together would otherwise look at the same logs at the same moment.
            next_s = loop.time() + third_s * (0.9 + self._random() / 10)
            while await self._is_hurried(until_s=next_s):
                await self._tried(self._renew)

    async def _tried(self, work: Callable[[], Awaitable[None]]) -> None:
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
        fences, since_s = dict(self._fences()), self._monotonic()
        if fences:
            await self._renew_all(fences, since_s)
        self._renewed_s = since_s

    async def _renew_all(self, fences: Mapping[str, int], since_s: float) -> None:
        told = await self._store.renew(self._lease, fences)
        lost = frozenset(told.lost)
        self._on_renewed({name: fence for name, fence in fences.items() if name not in lost}, since_s)
        for execution_id in told.lost:
            self._on_lost(execution_id)
        for execution_id in told.cancelled:
            self._on_cancelled(execution_id)
        for execution_id in told.kept:
            self._on_kept(execution_id)

    async def _recover(self) -> None:
        room = self._room()
        if room < 1:
            return
        since_s = self._monotonic()
        found = await self._store.recover(self._lease, limit=room)
        for recovery in found:
            _log.info("execution taken over", extra={"execution_id": recovery.execution.execution_id})
            self._adopt(recovery, since_s)
        if found:
            # It also tells which of them somebody wanted to stop meanwhile.
            await self._renew()
