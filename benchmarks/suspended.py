"""The memory that 10,000 suspended executions add to a server process, by store.

`python -m benchmarks.suspended [--count 10000]` prints a line for each store and exits with 1 over 10 MB.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import tempfile
import time
import tracemalloc
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count

from reasond_server.clock import Clock
from reasond_server.runs.runner import Runner, RunnerLimits
from reasond_server.stores import open_stores
from reasond_server.testing import ScriptedModel
from tests.napping import UNTIL_CALLED, NappingKind

MOST_BYTES = 10_000_000
_AT_ONCE = 200


def _now() -> datetime:
    return datetime.now(UTC)


async def measure(url: str, folder: str, wanted: int) -> int:
    """Return the bytes that so many suspended executions add to a process."""
    ids, kind = count(), NappingKind(now=_now)
    stores = await open_stores(
        url=url,
        data_dir=folder,
        now=_now,
        monotonic=time.monotonic,
        max_executions=2 * wanted,
        max_bytes=10**9,
        max_agents=1,
    )
    clock = Clock(now=_now, monotonic=time.monotonic, new_id=lambda: f"{next(ids):032x}")
    limits = RunnerLimits(max_concurrent=_AT_ONCE, retention_s=3600)
    runner = Runner(store=stores.executions, model=ScriptedModel([]), clock=clock, limits=limits, kinds=[kind])

    async def suspend(number: int) -> None:
        for _ in range(number):
            execution = await runner.start(kind.create([UNTIL_CALLED]))
            run = runner.find_live(execution.execution_id)
            if run is not None:
                await run.wait_for_end()

    await suspend(_AT_ONCE)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    await asyncio.gather(*(suspend(wanted // _AT_ONCE) for _ in range(_AT_ONCE)))
    gc.collect()
    added = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    await runner.stop()
    with suppress(asyncio.CancelledError):
        await stores.aclose()
    return added


def main() -> int:
    """Measure the memory store and the file store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=10_000, help="executions (%(default)s)")
    wanted = parser.parse_args().count
    most = 0
    with tempfile.TemporaryDirectory() as folder:
        for url in ("memory:", f"sqlite:///{folder}/log.db"):
            added = asyncio.run(measure(url, folder, wanted))
            most = max(most, added)
            each = added / wanted
            sys.stdout.write(
                f"{url.partition(':')[0]:8} {wanted} suspended add {added / 1e6:.1f} MB, {each:.0f} bytes each\n"
            )
    return 1 if most > MOST_BYTES else 0


if __name__ == "__main__":
    sys.exit(main())
