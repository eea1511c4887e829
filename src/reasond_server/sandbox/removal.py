"""Removes folders that untrusted code has filled: of any depth, without rights, and changing nothing outside."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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
