"""The folder of one server process for workspaces and jobs, and the end of what dead processes left behind."""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from reasond_server.sandbox.removal import remove_folder
from reasond_server.sandbox.sandbox import SandboxFailedError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

# Others may pass through, because jobs of another user must reach what is theirs, but may not list.
_PASSABLE = 0o711
_OWN = 0o700
_MARK_BITS = 40
_LIMIT_LINE = "Max realtime timeout"
_SWEEP_ROUNDS = 100
NOBODY = 65534
# Of no distribution, and of none of systemd's ranges: a user for each workspace. Jobs of one user would share the limit
# of processes, and could reach each other where no namespace parts them.
_UNUSED_USERS = range(1_879_048_192, 2_147_352_576)


def find_users() -> range | None:
    """Return the users for jobs: none of root's, and all of them this process's own if it is not root's."""
    if os.geteuid() != 0:
        return None
    for line in Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines():
        first, _, count = map(int, line.split())
        if first <= _UNUSED_USERS.start and _UNUSED_USERS.stop <= first + count:
            return _UNUSED_USERS
    return range(NOBODY, NOBODY + 1)


class Scratch:
    """A folder that belongs to this process alone while it lives.

    Args:
        parent: the operator's folder.
        users: the ids of users that jobs run as; None: they run as this process does.

    Attributes:
        private: a folder for what no job may reach.

    Raises:
        SandboxFailedError: the folder cannot be made.
    """

    def __init__(self, parent: Path, *, users: range | None) -> None:
        self.users = users
        home = parent / f"reasond-sandbox-{os.geteuid()}"
        try:
            _make_own(home)
            sweep(home)
            self.path = home / secrets.token_hex(16)
            self._lock = _make_locked(self.path)
            for name in ("trees", "workspaces", "jobs"):
                self._make(self.path / name)
            self.private = self.path / "private"
            self.private.mkdir(mode=_OWN)
        except OSError as error:
            raise SandboxFailedError(f"the folder {home} cannot be made: {error.strerror}") from error

    @staticmethod
    def _make(folder: Path) -> None:
        folder.mkdir()
        folder.chmod(_PASSABLE)

    def make_folder(self, kind: str) -> Path:
        """Return a new folder for a tree or a workspace, which only this process can list."""
        folder = self.path / kind / secrets.token_hex(16)
        self._make(folder)
        return folder

    def make_job(self) -> tuple[int, Path]:
        """Return the mark of a new job and the folder for what it needs besides its workspace."""
        mark = secrets.randbits(_MARK_BITS) | 1 << _MARK_BITS
        folder = self.path / "jobs" / str(mark)
        self._make(folder)
        return mark, folder

    def choose_user(self) -> int | None:
        """Return a user for the jobs of a new workspace, which no other one has if there are many; None: this one."""
        return None if self.users is None else self.users[secrets.randbelow(len(self.users))]

    @staticmethod
    def give(path: Path, user: int | None) -> None:
        """Make a folder or file of this process one that jobs of `user` may write."""
        if user is not None:
            os.chown(path, user, user)

    def close(self) -> None:
        """Remove everything; no job may run any more."""
        with suppress(OSError):
            remove_folder(self.path)
        os.close(self._lock)


@contextmanager
def open_private_folder(home: Path) -> Iterator[Path]:
    """Yield a new folder below `home` for this process alone; what dead processes left in `home` is removed before.

    Raises:
        SandboxFailedError: somebody else made `home`, or may write it.
    """
    _make_own(home)
    sweep(home)
    path = home / secrets.token_hex(16)
    lock = _make_locked(path)
    try:
        path.chmod(_OWN)
        yield path
    finally:
        with suppress(OSError):
            remove_folder(path)
        os.close(lock)


def _make_own(home: Path) -> None:
    """Make a folder for the processes of this user, which nobody else may have made.

    Raises:
        SandboxFailedError: somebody else made it, or may write it.
    """
    with suppress(FileExistsError):
        home.mkdir(parents=True)
        home.chmod(_PASSABLE)
    found = home.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise SandboxFailedError(f"{home} belongs to somebody else, or others may write it; remove it")


def _make_locked(folder: Path) -> int:
    """Make the folder and return the lock that says that its process lives."""
    # The name is hidden until the lock is held, so that no other process sweeps it.
    hidden = folder.with_name(f".{folder.name}")
    hidden.mkdir()
    hidden.chmod(_PASSABLE)
    lock = os.open(hidden / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    hidden.rename(folder)
    return lock


def sweep(home: Path) -> None:
    """End the processes and remove the folders that processes left which do not live any more."""
    for folder in home.iterdir():
        if folder.name.startswith("."):
            continue
        with suppress(OSError):
            lock = os.open(folder / "lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                end_marked({job.name for job in folder.glob("jobs/*") if job.name.isdecimal()})
                remove_folder(folder)
            finally:
                os.close(lock)


def end_marked(marks: Collection[str]) -> None:
    """Kill the processes that carry one of `marks`, however they were started, until none is found."""
    if not marks:
        return
    for _ in range(_SWEEP_ROUNDS):
        found = list(find_marked(marks))
        if not found:
            return
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)


def find_marked(marks: Collection[str]) -> Iterator[int]:
    """Yield the processes that carry one of `marks`."""
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with suppress(OSError):
                for line in (process / "limits").read_text(encoding="ascii").splitlines():
                    if line.startswith(_LIMIT_LINE) and line[len(_LIMIT_LINE) :].split()[0] in marks:
                        yield int(process.name)
