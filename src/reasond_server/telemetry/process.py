"""What the operating system says of this process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_OWN: Final = Path("/proc/self")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """CPU seconds, resident bytes, open files, start in seconds since 1970; None where the system has no /proc."""

    cpu_s: float
    resident_bytes: int | None
    open_files: int | None
    started_s: float


def process_facts(started_s: float) -> ProcessFacts:
    """Return what holds now, of a process that began at `started_s`; reads /proc, so not on the event loop."""
    times = os.times()
    return ProcessFacts(
        cpu_s=times.user + times.system,
        resident_bytes=_resident_bytes(),
        open_files=_open_files(),
        started_s=started_s,
    )


def _resident_bytes() -> int | None:
    try:
        pages = int((_OWN / "statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _open_files() -> int | None:
    try:
        return len(os.listdir(_OWN / "fd"))  # noqa: PTH208 - only their number is wanted, a hundred thousand perhaps
    except OSError:
        return None
