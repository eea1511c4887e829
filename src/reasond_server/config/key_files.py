"""Reads the small files that hold keys, without waiting for pipes and without reading files of any size."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class KeyFileError(Exception):
    """A file cannot be used; `description` continues a sentence that begins with its setting."""

    def __init__(self, description: str) -> None:
        super().__init__(description)
        self.description = description


def read_key_file(path: Path, *, most: int) -> bytes:
    """Return the content of a regular file of at most `most` bytes.

    Raises:
        KeyFileError: the file is missing, may not be read, is larger, or is no regular file.
    """
    try:
        # A plain open of a pipe would wait for its writer, possibly for ever.
        with open(path, "rb", opener=_open_at_once) as file:
            is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            content = file.read(most + 1) if is_regular else b""
    except (OSError, ValueError):
        message = "names a file that cannot be read; it must exist and be readable for the server"
        raise KeyFileError(message) from None
    if not is_regular:
        raise KeyFileError("names no regular file, but a pipe or a device")
    if len(content) > most:
        raise KeyFileError(f"names a file of more than {most} bytes, which is no key")
    return content


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
