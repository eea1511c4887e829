"""How much a job has written: the blocks of what lies in its folders, and of deleted files that it holds open."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

_BLOCK = 512
# Each file and folder counts at least this, so that empty ones are bounded too.
_LEAST = 4096
_MAX_DEPTH = 128


def measure_folder(folder: str, *, limit: int) -> int:
    """Return the bytes in `folder`. Counting stops above `limit`; an unreadable folder counts as above it."""
    total = 0
    opened: list[int] = []
    waiting: list[tuple[int, str]] = [(0, folder)]
    try:
        while waiting:
            depth, name = waiting.pop()
            if depth >= _MAX_DEPTH:
                return limit + 1
            while len(opened) > depth:
                os.close(opened.pop())
            try:
                handle = _open_folder(name, opened[-1] if opened else None)
            except PermissionError:
                return limit + 1
            except OSError:
                continue
            opened.append(handle)
            with suppress(FileNotFoundError), os.scandir(handle) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        found = entry.stat(follow_symlinks=False)
                        total += max(_LEAST, found.st_blocks * _BLOCK)
                        if stat.S_ISDIR(found.st_mode):
                            waiting.append((depth + 1, entry.name))
                    if total > limit:
                        return total
    finally:
        for handle in opened:
            os.close(handle)
    return total


def _open_folder(name: str, parent: int | None) -> int:
    """Return a handle of the folder, whose owner is given the right to read it.

    Raises:
        OSError: it is gone, no folder, or unreadable all the same.
    """
    flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(PermissionError):
        return os.open(name, os.O_RDONLY | flags, dir_fd=parent)
    place = os.open(name, os.O_PATH | flags, dir_fd=parent)
    try:
        path = f"/proc/self/fd/{place}"
        os.chmod(path, 0o700)  # noqa: PTH101 - pathlib is slow to import, and a shepherd starts for each job
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(place)


def measure_deleted(pids: list[int]) -> int:
    """Return the bytes of the deleted files and memory files that `pids` hold open, each counted once."""
    files: dict[tuple[int, int], int] = {}
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        with suppress(OSError):
            for number in os.listdir(folder):  # noqa: PTH208 - pathlib is slow to import
                with suppress(OSError):
                    found = os.stat(f"{folder}/{number}")  # noqa: PTH116 - likewise
                    if found.st_nlink == 0 and stat.S_ISREG(found.st_mode):
                        files[found.st_dev, found.st_ino] = found.st_blocks * _BLOCK
    return sum(files.values())
