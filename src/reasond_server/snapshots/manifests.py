"""Manifests: what is refused, the id that follows from one, and the digests of contents."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

from reasond_server.errors.base import Violation, show
from reasond_server.errors.request import InvalidRequestError
from reasond_server.snapshots.paths import find_collisions, find_problems
from reasond_server.types.snapshots import FileEntry
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.types.snapshots import SourceFile

MAX_UPLOAD_BYTES: Final = 3 * 1024 * 1024
"""The most that one request carries: inline files together, or contents together. So no file is larger."""
MAX_VIOLATIONS: Final = 100
"""How many problems one error lists; the last violation says how many more there are."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
# What the databases need for an entry besides its path: the digest in three tables, and their indexes.
_ENTRY_BYTES: Final = 512
# Part of the id, so that another canonical form gives other ids.
_FORM: Final = b"reasond.snapshot.1\n"


@value
class SnapshotLimits:
    """What one snapshot may have, and for how many seconds after its last use it is kept."""

    max_bytes: int = 32 * 1024 * 1024
    max_files: int = 5000
    retention_s: float = 86_400.0


def check_manifest(entries: Sequence[FileEntry], *, limits: SnapshotLimits, field: str = "manifest") -> None:
    """Refuse a manifest that cannot be kept; `field` is its name in the request.

    Raises:
        InvalidRequestError: with one violation for each problem, at most MAX_VIOLATIONS.
    """
    found = _Findings(field)
    found.check_number(len(entries), limits.max_files)
    entries = entries[: limits.max_files]
    found.check_paths([entry.path for entry in entries])
    sizes: dict[str, tuple[int, int]] = {}
    for index, entry in enumerate(entries):
        if not _DIGEST.fullmatch(entry.digest):
            found.add(f"[{index}].digest", f"must be 64 hexadecimal digits in lower case, got {show(entry.digest)}")
        if not 0 <= entry.size_bytes <= MAX_UPLOAD_BYTES:
            allowed = f"must be 0 to {MAX_UPLOAD_BYTES}, got {entry.size_bytes}; leave larger files out"
            found.add(f"[{index}].size_bytes", allowed)
        size, other = sizes.setdefault(entry.digest, (entry.size_bytes, index))
        if size != entry.size_bytes:
            same = f"must be {size} as that of {field}[{other}], which has the same digest, got {entry.size_bytes}"
            found.add(f"[{index}].size_bytes", same)
    total = sum(max(0, entry.size_bytes) for entry in entries)
    if total > limits.max_bytes:
        remedy = "leave files out, or have the operator raise [repair] max_snapshot_bytes"
        found.add("", f"must have at most {limits.max_bytes} bytes in all, got {total}; {remedy}")
    if violations := found.list_all():
        raise InvalidRequestError.of(*violations)


def find_in_files(files: Sequence[SourceFile], *, limits: SnapshotLimits, field: str = "files") -> Sequence[Violation]:
    """Return why inline files cannot be kept, at most MAX_VIOLATIONS; `field` is their name in the request."""
    found = _Findings(field)
    found.check_number(len(files), limits.max_files)
    found.check_paths([file.path for file in files[: limits.max_files]])
    total, most = sum(len(file.content) for file in files), min(MAX_UPLOAD_BYTES, limits.max_bytes)
    if total > most:
        found.add("", f"must have at most {most} bytes in all, got {total}; upload a snapshot and send its id")
    return found.list_all()


def build_entries(files: Sequence[SourceFile]) -> Sequence[FileEntry]:
    """Return the manifest of files; reads all their contents."""
    return [
        FileEntry(
            path=file.path,
            digest=digest_content(file.content),
            size_bytes=len(file.content),
            is_executable=file.is_executable,
        )
        for file in files
    ]


def digest_content(content: bytes) -> str:
    """Return the SHA-256 of a content, as manifests have it."""
    return hashlib.sha256(content).hexdigest()


def derive_snapshot_id(entries: Sequence[FileEntry]) -> str:
    """Return the id of a checked manifest: equal files have one id, in whatever order they are given."""
    digest = hashlib.sha256(_FORM)
    for entry in sorted(entries, key=lambda entry: entry.path):
        digest.update(f"{entry.path}\0{entry.digest}\0{entry.size_bytes}\0{entry.is_executable:d}\n".encode())
    return digest.hexdigest()


def measure_manifest(entries: Sequence[FileEntry]) -> int:
    """Return the bytes that count for a manifest itself."""
    return sum(_ENTRY_BYTES + len(entry.path.encode()) for entry in entries)


def is_snapshot_id(text: str) -> bool:
    """Return whether a manifest could have this id."""
    return _DIGEST.fullmatch(text) is not None


class _Findings:
    """The problems of one request: the first MAX_VIOLATIONS, and how many more there are."""

    def __init__(self, field: str) -> None:
        self._field = field
        self._violations: list[Violation] = []
        self._more = 0

    def add(self, place: str, description: str) -> None:
        """Note a problem; `place` is what follows the name of the field."""
        if len(self._violations) == MAX_VIOLATIONS:
            self._more += 1
        else:
            self._violations.append(Violation(field=f"{self._field}{place}", description=description))

    def check_number(self, files: int, most: int) -> None:
        """Note whether there are no files, or more than `most`."""
        if not files:
            self.add("", "must have at least one file")
        if files > most:
            remedy = "send a part (--only GLOB), or have the operator raise [repair] max_snapshot_files"
            self.add(
                "", f"must have at most {most} files, got {files}, of which the first {most} were checked; {remedy}"
            )

    def check_paths(self, paths: Sequence[str]) -> None:
        """Note every problem of the paths."""
        for index, path in enumerate(paths):
            for problem in find_problems(path):
                self.add(f"[{index}].path", problem)
        for index, other, why in find_collisions(paths):
            name = f"{self._field}[{other}].path {show(paths[other])}"
            self.add(f"[{index}].path", f"{why}, see {name}, got {show(paths[index])}; rename one, or leave one out")

    def list_all(self) -> Sequence[Violation]:
        """Return the problems, and how many more there are."""
        if not self._more:
            return self._violations
        more = f"has {self._more} more problems; the first {MAX_VIOLATIONS} are listed"
        return [*self._violations, Violation(field=self._field, description=more)]
