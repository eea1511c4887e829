"""Measures the delay of the event loop four times a second, and reads the gauges of the server and the process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from reasond_server.telemetry.observers import ProcessFacts

if TYPE_CHECKING:
    from collections.abc import Callable

    from reasond_server.telemetry.meters import Meters
    from reasond_server.telemetry.observers import Snapshot

_INTERVAL_S: Final = 0.25
_PROCESS_EVERY: Final = 20
_OWN_PROCESS: Final = Path("/proc/self")
_log = logging.getLogger("reasond.metrics")


class Sampler:
    """Feeds `metrics` with the snapshots of `look`, which must be quick and must not block.

    The facts of the process are read in a thread with every twentieth sample.
    """

    def __init__(self, *, metrics: Meters, look: Callable[[], Snapshot], interval_s: float = _INTERVAL_S) -> None:
        self._metrics = metrics
        self._look = look
        self._interval_s = interval_s
        self._started_s = time.time()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start a task that takes samples until `aclose`."""
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name="samples of metrics")

    async def aclose(self) -> None:
        """Stop after a last sample, because other processes may still expose the counts of this one."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
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
