"""The folder of one server process for workspaces and jobs, and the end of what dead processes left behind.

What untrusted code has filled is removed whatever its depth and rights, and nothing outside is changed. Workspaces are
farms of hard links: unchanged files are those of a tree that no job can write.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import signal
import stat
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from reasond_server.base.asyncio_tasks import finish_though_cancelled
from reasond_server.sandbox.sandbox import SandboxFailedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence

    from reasond_server.types.repairs import SourceFile


def remove_folder(folder: Path) -> None:
    """Remove `folder` with all that it holds; nothing may run in it any more.

    Folders inside are moved to the top first, so that no path gets long and nothing is called by itself.

    Raises:
        OSError: something cannot be removed.
    """
    try:
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        _remove_content(top)
    finally:
        os.close(top)
    folder.rmdir()


def _remove_content(top: int) -> None:
    names = iter(range(1 << 62))
    waiting = _empty(".", top, names)
    while waiting:
        name = waiting.pop()
        waiting.extend(_empty(name, top, names))
        os.rmdir(name, dir_fd=top)


def _empty(name: str, top: int, names: Iterator[int]) -> list[str]:
    """Remove the files of a folder of `top`, move its folders into `top`, and return their new names."""
    with suppress(OSError):
        # No link is followed: nothing runs here any more, and `name` was seen to be a folder.
        os.chmod(name, stat.S_IRWXU, dir_fd=top)
    place = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
    moved = []
    try:
        with os.scandir(place) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for entry, is_folder in found:
            if not is_folder:
                os.unlink(entry, dir_fd=place)
                continue
            # To move a folder takes the right to write it, because its parent is noted in it.
            with suppress(OSError):
                os.chmod(entry, stat.S_IRWXU, dir_fd=place)
            moved.append(f"{next(names)}.removed")
            os.rename(entry, moved[-1], src_dir_fd=place, dst_dir_fd=top)
    finally:
        os.close(place)
    return moved


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


_FILES = "files"
SIZE_FILE = "size"
_BLOCK = 4096
_READABLE, _EXECUTABLE, _OWNERS_WRITE = 0o444, 0o555, 0o200


class LinkedWorkspaces:
    """Workspaces below a scratch folder."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        self.private = scratch.private

    async def write_tree(self, files: Sequence[SourceFile]) -> LinkedTree:
        """Write the files of a snapshot to the disk; see the port."""
        try:
            return await asyncio.to_thread(self._write_tree, tuple(files))
        except OSError as error:
            raise SandboxFailedError(f"the code could not be written to the disk: {error.strerror}") from error

    def _write_tree(self, files: Sequence[SourceFile]) -> LinkedTree:
        folder = self._scratch.make_folder("trees")
        try:
            root = folder / _FILES
            root.mkdir()
            _make_folders(root, [file.path for file in files], lambda _: None)
            for file in files:
                _write(root / file.path, file.content, is_executable=file.is_executable, is_writable=False)
        except BaseException:
            remove_folder(folder)
            raise
        executable = frozenset(file.path for file in files if file.is_executable)
        sizes = {file.path: _round(len(file.content)) for file in files}
        return LinkedTree(scratch=self._scratch, folder=folder, sizes=sizes, executable=executable)


@dataclass(eq=False, kw_only=True)
class LinkedTree:
    """The files of a snapshot on the disk; `sizes` are rounded up to blocks of the disk."""

    scratch: Scratch
    folder: Path
    sizes: Mapping[str, int]
    executable: Collection[str]

    @asynccontextmanager
    async def open_workspace(
        self, changes: Mapping[str, bytes | None], *, is_writable: bool = False
    ) -> AsyncIterator[Path]:
        """Return a context with a folder that holds the tree with `changes`; see the port."""
        folder = self.scratch.make_folder("workspaces")
        try:
            # A thread cannot be stopped, so a cancelled caller waits for it before the folder is removed.
            await _finish(self._fill, folder, dict(changes), is_writable)
            yield folder / _FILES
        finally:
            await _finish(remove_folder, folder)

    def _fill(self, folder: Path, changes: Mapping[str, bytes | None], is_writable: bool) -> None:  # noqa: FBT001 - passed by place through a thread
        root, base = folder / _FILES, self.folder / _FILES
        root.mkdir()
        user = self.scratch.choose_user()
        give = partial(self.scratch.give, user=user)
        give(root)
        kept = [path for path in self.sizes if path not in changes]
        written = {path: content for path, content in changes.items() if content is not None}
        count = _make_folders(root, [*kept, *written], give)
        for path in kept:
            target = root / path
            if is_writable:
                written[path] = (base / path).read_bytes()
            else:
                os.link(base / path, target, follow_symlinks=False)
        for path, content in written.items():
            _write(root / path, content, is_executable=path in self.executable, is_writable=is_writable)
            if is_writable:
                give(root / path)
        total = sum(self.sizes[path] for path in kept) + sum(_round(len(content)) for content in written.values())
        # How much may be taken before the job takes anything; the job cannot see this file.
        (folder / SIZE_FILE).write_text(str(total + _BLOCK * count), encoding="ascii")

    async def remove(self) -> None:
        """Remove the tree from the disk."""
        await _finish(remove_folder, self.folder)


async def _finish(work: Callable[..., None], *arguments: object) -> None:
    """Run blocking `work` in a thread to its end, also if the caller is cancelled meanwhile.

    Raises:
        SandboxFailedError: the disk refused it.
    """
    try:
        await finish_though_cancelled(asyncio.to_thread(work, *arguments), name="work on a workspace")
    except OSError as error:
        raise SandboxFailedError(f"a workspace could not be used: {error.strerror}") from error


def _make_folders(root: Path, paths: Sequence[str], give: Callable[[Path], None]) -> int:
    """Make the folders of the files `paths` and return how many there are, `root` among them."""
    folders = {parent for path in paths for parent in Path(path).parents}
    for folder in sorted(folders, key=lambda folder: len(folder.parts)):
        if folder.parts:
            (root / folder).mkdir()
            give(root / folder)
    return max(1, len(folders))


def _write(path: Path, content: bytes, *, is_executable: bool, is_writable: bool) -> None:
    mode = (_EXECUTABLE if is_executable else _READABLE) | (_OWNERS_WRITE if is_writable else 0)
    path.write_bytes(content)
    path.chmod(mode)


def _round(size: int) -> int:
    return max(_BLOCK, -(-size // _BLOCK) * _BLOCK)
