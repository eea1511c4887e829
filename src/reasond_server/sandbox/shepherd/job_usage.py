"""What a job uses: its processes, as /proc tells them, and what they have written; and how all of them are ended."""

from __future__ import annotations

import os
import signal
import stat
import time
from contextlib import suppress
from typing import NamedTuple

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


_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_KIBI = 1024
# Fields of /proc/PID/stat behind the name in brackets.
_UTIME, _CHILDRENS_STIME, _THREADS = 11, 14, 17
_STOP_ROUNDS = 50
_PAUSE_S = 0.0005


class KinUsage(NamedTuple):
    """What processes use together: threads of all of them, seconds of processor time, and bytes of memory."""

    tasks: int
    cpu_s: float
    memory_bytes: int


def list_descendants(pid: int) -> list[int]:
    """Return the descendants of `pid` that can be seen now; one that just started or just ended may be missing."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        children = _list_children(waiting.pop())
        found.extend(children)
        waiting.extend(children)
    return found


def _list_children(pid: int) -> list[int]:
    folder = f"/proc/{pid}/task"
    children: list[int] = []
    with suppress(OSError):
        for task in os.listdir(folder):  # noqa: PTH208 - pathlib is slow to import, and a shepherd starts for each job
            with suppress(OSError):
                children.extend(map(int, _read(f"{folder}/{task}/children").split()))
    return children


def _read(path: str) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(handle, 65536):
            parts.append(part)
    finally:
        os.close(handle)
    return b"".join(parts)


def list_by_age(pid: int, *, without: int) -> list[list[int]]:
    """Return the descendants of `pid` but `without`, first those that have no children themselves."""
    found = [each for each in list_descendants(pid) if each != without]
    leaves = [each for each in found if not _list_children(each)]
    return [leaves, [each for each in found if each not in leaves]]


def ask_for_stacks(pids: list[int]) -> None:
    """Send each process the signal at which its runtime prints the stacks of its threads."""
    for pid in pids:
        with suppress(OSError):
            is_python = b"python" in _read(f"/proc/{pid}/cmdline").partition(b"\0")[0]
            os.kill(pid, signal.SIGABRT if is_python else signal.SIGQUIT)


def are_alive(pids: list[int]) -> bool:
    """Return whether one of `pids` goes on."""
    for pid in pids:
        with suppress(OSError):
            if _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[:1] not in ([b"Z"], []):
                return True
    return False


def measure_processes(pids: list[int], *, memory_limit: int) -> KinUsage:
    """Return what `pids` use. Memory is the resident one, and the proportional share where that is over the limit."""
    tasks, ticks, pages = 0, 0, 0
    for pid in pids:
        with suppress(OSError, ValueError, IndexError):
            fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
            ticks += sum(map(int, fields[_UTIME : _CHILDRENS_STIME + 1]))
            tasks += int(fields[_THREADS])
            pages += int(_read(f"/proc/{pid}/statm").split()[1])
    memory = pages * _PAGE
    if memory > memory_limit:
        memory = sum(map(_measure_share, pids))
    return KinUsage(tasks, ticks / _TICKS_PER_S, memory)


def _measure_share(pid: int) -> int:
    """Return the proportional set size of `pid`, in which shared pages are divided among their users."""
    try:
        for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * _KIBI
    except (ProcessLookupError, FileNotFoundError):
        return 0
    except OSError:
        # It may not be read: what is resident is never less.
        with suppress(OSError, ValueError, IndexError):
            return int(_read(f"/proc/{pid}/statm").split()[1]) * _PAGE
    return 0


def end_all(*, grace_s: float) -> None:
    """Wait until this process, a subreaper, has no descendants; kill those that are left after `grace_s`."""
    end = time.monotonic() + grace_s
    while has_children() and time.monotonic() < end:
        time.sleep(_PAUSE_S)
    while has_children():
        # What is stopped starts no others, so that killing wins against programs that start many.
        stopped: set[int] = set()
        for _ in range(_STOP_ROUNDS):
            new = set(list_descendants(os.getpid())) - stopped
            if not new:
                break
            _signal(new, signal.SIGSTOP)
            stopped |= new
        _signal(stopped, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def has_children() -> bool:
    """Reap what has ended, and return whether something is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
