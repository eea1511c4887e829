"""Measures the delay of the event loop four times a second, and reads the gauges of server, process and store."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from reasond_server.base.asyncio_tasks import end_task
from reasond_server.errors.limits import StoreUnavailableError
from reasond_server.telemetry.observers import ProcessFacts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from reasond_server.telemetry.meters import Meters
    from reasond_server.telemetry.observers import ServerSnapshot

_INTERVAL_S: Final = 0.25
_PROCESS_EVERY: Final = 20
_COUNT_EVERY_S: Final = 5.0
_OWN_PROCESS: Final = Path("/proc/self")
_log = logging.getLogger("reasond.metrics")


class Sampler:
    """Feeds `metrics` with the snapshots of `look`, which must be quick and must not block.

    The facts of the process are read in a thread with every twentieth sample.
    """

    def __init__(self, *, metrics: Meters, look: Callable[[], ServerSnapshot], interval_s: float = _INTERVAL_S) -> None:
        self._metrics = metrics
        self._look = look
        self._interval_s = interval_s
        self._started_s = time.time()
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, *, count_awaiting: Callable[[], Awaitable[int]] | None = None) -> None:
        """Start to take samples until `aclose`; `count_awaiting` counts the waiting turns in the store."""
        if not self._tasks:
            self._tasks.append(asyncio.create_task(self._work(), name="samples of metrics"))
            if count_awaiting is not None:
                counting = self._count_turns(count_awaiting)
                self._tasks.append(asyncio.create_task(counting, name="count of waiting turns"))

    async def aclose(self) -> None:
        """Stop after a last sample, because other processes may still expose the counts of this one."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            await end_task(task)
        if tasks:
            self.sample()

    def sample(self) -> None:
        """Take one sample now, so that the exposed metrics are current."""
        self._metrics.sample(self._look())

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        rounds = 0
        while True:
            if rounds % _PROCESS_EVERY == 0:
                self._metrics.sample_process(await asyncio.to_thread(read_process_facts, self._started_s))
            rounds += 1
            try:
                self.sample()
            except Exception:  # noqa: BLE001 - the task has no caller that could handle it
                _log.exception("a sample of metrics could not be taken")
            due_s = loop.time() + self._interval_s
            await asyncio.sleep(self._interval_s)
            self._metrics.loop_lagged(max(0.0, loop.time() - due_s))

    async def _count_turns(self, count_awaiting: Callable[[], Awaitable[int]]) -> None:
        """Count again and again; while the store cannot be reached, the last number stands."""
        while True:
            try:
                self._metrics.set_awaiting(await count_awaiting())
            except StoreUnavailableError:
                _log.debug("the waiting turns could not be counted")
            except Exception:  # noqa: BLE001 - the task has no caller that could handle it
                _log.exception("the waiting turns could not be counted")
            await asyncio.sleep(_COUNT_EVERY_S)


def read_process_facts(started_s: float) -> ProcessFacts:
    """Return the current facts of a process that began at `started_s`. Blocks, because it reads /proc."""
    times = os.times()
    return ProcessFacts(
        cpu_s=times.user + times.system,
        resident_bytes=_resident_bytes(),
        open_files=_open_files(),
        most_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        started_s=started_s,
    )


def _resident_bytes() -> int | None:
    try:
        pages = int((_OWN_PROCESS / "statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _open_files() -> int | None:
    try:
        return len(os.listdir(_OWN_PROCESS / "fd"))  # noqa: PTH208 - only the number is needed, and there may be 100,000
    except OSError:
        return None
