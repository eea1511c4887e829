"""The circumstances of the figures, and pinning a process to one processor: shared by the benchmarks."""

from __future__ import annotations

import asyncio
import os
import platform
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def circumstances(packages: Sequence[str]) -> dict[str, Any]:
    """Return machine, system and versions of `packages`; no name of the machine and no path."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": platform.system(),
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "packages": {name: version(name) for name in packages},
        "event_loop": "uvloop" if find_spec("uvloop") else "asyncio",
    }


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop of the kind that the server uses."""
    if find_spec("uvloop"):
        loop: asyncio.AbstractEventLoop = import_module("uvloop").new_event_loop()
        return loop
    return asyncio.new_event_loop()


def processors() -> list[int]:
    """Return the processors that this process may use; empty if the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def pin(core: int) -> None:
    """Keep this process to the processor `core`; a negative one, or a system without affinities, changes nothing."""
    if core >= 0 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


def two_processors() -> tuple[int, int]:
    """Return one processor to measure on and another for the rest; the same twice, or -1, if there are fewer."""
    found = processors() or [-1]
    return found[0], found[-1]
