"""Workspaces as farms of hard links: unchanged files are those of a tree that no job can write."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from reasond_server.sandbox.removal import remove_folder
from reasond_server.sandbox.sandbox import SandboxFailedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence

    from reasond_server.sandbox.scratch import Scratch
    from reasond_server.types.snapshots import SourceFile

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
    running = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        await asyncio.shield(running)
    except OSError as error:
        raise SandboxFailedError(f"a workspace could not be used: {error.strerror}") from error
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


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
