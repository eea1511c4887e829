"""The circumstances of the figures, and pinning a process to one processor: shared by the benchmarks."""

from __future__ import annotations

import asyncio
import json
import os
import platform
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


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


def make_goal(what: str, bound: str, goal: float, measured: float) -> dict[str, Any]:
    """Return a goal with what was measured; `bound` is "at least" or "at most"."""
    is_met = measured >= goal if bound == "at least" else measured <= goal
    return {"what": what, "bound": bound, "goal": goal, "measured": measured, "is_met": is_met}


def write_report(file: Path, packages: Sequence[str], **parts: Any) -> None:  # noqa: ANN401 - any JSON
    """Write the `parts` of a report and its circumstances as JSON; print those of its goals that `make_goal` made."""
    for goal in parts.get("goals", ()):
        if "bound" in goal:
            verdict = "met" if goal["is_met"] else "MISSED"
            print(f"goal: {goal['what']} {goal['bound']} {goal['goal']:g}: {goal['measured']:.4g}, {verdict}")
    file.write_text(f"{json.dumps({'circumstances': circumstances(packages), **parts}, indent=2)}\n", encoding="utf-8")


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
