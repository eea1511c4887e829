"""Snapshots: the files of a client at one moment, addressed by their content."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from reasond_server.types.values import value


@value
class SourceFile:
    """A file with its content; `path` is relative, with slashes."""

    path: str
    content: bytes
    is_executable: bool = False


@value
class FileEntry:
    """A file of a manifest without its content; `digest` is the SHA-256 of the content in hexadecimal digits."""

    path: str
    digest: str
    size_bytes: int
    is_executable: bool = False


@value
class Snapshot:
    """A manifest that the server keeps; `snapshot_id` is derived from it, so equal manifests have one id.

    `missing` are the digests of the contents that the server does not have yet, each once.
    """

    snapshot_id: str
    entries: Sequence[FileEntry]
    create_time: datetime
    expire_time: datetime
    missing: Sequence[str] = ()

    @property
    def file_count(self) -> int:
        """The number of files."""
        return len(self.entries)

    @property
    def total_bytes(self) -> int:
        """The size of all files together."""
        return sum(entry.size_bytes for entry in self.entries)
