"""Keeps the right to write the logs of this process, and takes over those of processes that are gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from reasond_server.errors import ReasondError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from reasond_server.executions.store import ExecutionStore, Lease, Recovery

_log = logging.getLogger("reasond.executions")
_FORGOTTEN_AT_ONCE = 1000


class Upkeep:
    """Renews the leases of a process, looks for logs that nobody writes, and forgets what is past its time.

    It does so every third of a lease, and forgets 1,000 executions at a time.
    `fences` tells what is at work here, `on_lost` and `on_cancelled` hear which of it is not any more or shall not be,
    `on_kept` which of it goes on though nobody follows.
    `adopt` goes on with what is taken over, at most `room` executions at a time.
    """

    def __init__(
        self,
        *,
        store: ExecutionStore,
        lease: Lease,
        random: Callable[[], float],
        fences: Callable[[], Mapping[str, int]],
        room: Callable[[], int],
        adopt: Callable[[Recovery], None],
        on_lost: Callable[[str], None],
        on_cancelled: Callable[[str], None],
        on_kept: Callable[[str], None],
    ) -> None:
        self._store = store
        self._lease = lease
        self._random = random
        self._fences = fences
        self._room = room
        self._adopt = adopt
        self._on_lost = on_lost
        self._on_cancelled = on_cancelled
        self._on_kept = on_kept
        self._is_out_of_touch = False
        self._task: asyncio.Task[None] | None = None

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

    async def round(self) -> None:
        """Renew, recover and forget once.

        After a round that failed nothing is taken over yet: whoever is alive must have had the time to renew.

        Raises:
            StoreUnavailableError: the store cannot be reached.
        """
        was_out_of_touch, self._is_out_of_touch = self._is_out_of_touch, True
        await self._renew()
        if not was_out_of_touch:
            await self._recover()
        self._is_out_of_touch = False
        while await self._store.forget(limit=_FORGOTTEN_AT_ONCE) == _FORGOTTEN_AT_ONCE:
            # Forgetting much may take longer than a lease lasts.
            await self._renew()

    async def _work(self) -> None:
        third_s = self._lease.seconds / 3
        while True:
            try:
                await self.round()
            except ReasondError as error:
                _log.warning("the upkeep of executions failed and is tried again: %s", error.message)
            except Exception:  # noqa: BLE001 - a task of its own: nobody above could handle it
                _log.exception("the upkeep of executions failed and is tried again")
            # Processes that started together would otherwise look at the same logs at the same moment.
            await asyncio.sleep(third_s * (0.9 + self._random() / 10))

    async def _renew(self) -> None:
        fences = dict(self._fences())
        if not fences:
            return
        told = await self._store.renew(self._lease, fences)
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
        found = await self._store.recover(self._lease, limit=room)
        for recovery in found:
            _log.info("execution taken over", extra={"execution_id": recovery.execution.execution_id})
            self._adopt(recovery)
        if found:
            # It also tells which of them somebody wanted to stop meanwhile.
            await self._renew()
