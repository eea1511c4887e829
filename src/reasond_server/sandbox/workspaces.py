"""Workspaces: the files of one candidate in a folder of its own, cheap because unchanged files are shared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from reasond_server.types.snapshots import SourceFile


class SourceTree(Protocol):
    """The files of a snapshot on the disk, read-only, from which workspaces are made."""

    def open_workspace(
        self, changes: Mapping[str, bytes | None], *, is_writable: bool = False
    ) -> AbstractAsyncContextManager[Path]:
        """Return a context with a folder that holds the tree with `changes`: new contents, None for a deleted file.

        Unchanged files are hard links to the tree, which jobs cannot write; with `is_writable` they are copies. The
        folder is removed at the end.
        """
        ...

    async def remove(self) -> None:
        """Remove the tree from the disk."""
        ...


class Workspaces(Protocol):
    """Puts snapshots on the disk below one folder of the server, which is swept at the start."""

    @property
    def private(self) -> Path:
        """A folder in the same place for temporary files of the server, which no job reaches."""
        ...

    async def write_tree(self, files: Sequence[SourceFile]) -> SourceTree:
        """Write the files of a snapshot to the disk.

        Raises:
            SandboxFailedError: the disk refused it.
        """
        ...
