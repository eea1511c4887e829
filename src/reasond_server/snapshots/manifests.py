"""Manifests: what is refused, the id that follows from one, the digests of contents, and the faults of their paths."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Final

from reasond_server.errors.base import Violation, show
from reasond_server.errors.request import InvalidRequestError
from reasond_server.types.repairs import FileEntry, SourceFile
from reasond_server.types.values import value

MAX_PATH_BYTES: Final = 1024
"""The longest path, in bytes of UTF-8."""
MAX_PART_BYTES: Final = 255
"""The longest name of a file or folder, in bytes of UTF-8: what common file systems allow."""
MAX_PARTS: Final = 64
"""The deepest path: folders and the file together."""

_LEAVE_OUT: Final = "rename the file, or leave it out"
_DRIVE: Final = re.compile(r"[A-Za-z]:")
# Windows gives `.git` such a short name, and git refuses it, too.
_SHORT_GIT: Final = re.compile(r"git~\d+")
# What an ASCII path has that has a bad part: most paths are passed over at once.
_SUSPECT: Final = re.compile(r"(?:^|/)(?:[./]|$)|[. ](?:/|$)|~\d|[^/]{256}")
_NO_TEXT: Final = frozenset({"Cc", "Zl", "Zp"})
_IGNORED: Final = "Cf"


def find_problems(path: str) -> Iterator[str]:
    """Yield what is wrong with `path`, each kind of problem once, as the end of a sentence; nothing if it is good."""
    if not path:
        yield "must not be empty"
        return
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        yield f"must be valid Unicode, got {show(path)}; {_LEAVE_OUT}"
        return
    if size > MAX_PATH_BYTES:
        # Nothing else is looked for: the work for one path stays bounded.
        yield f"must have at most {MAX_PATH_BYTES} bytes, got {size}; {_LEAVE_OUT}"
        return
    if path[0] == "/" or _DRIVE.match(path):
        yield f"must be relative to the root of the snapshot, got {show(path)}"
    if "\\" in path:
        yield f"must have / between its parts and no \\, got {show(path)}"
    if not (path.isascii() and path.isprintable()) and any(unicodedata.category(each) in _NO_TEXT for each in path):
        yield f"must have no control characters, got {show(path)}; {_LEAVE_OUT}"
    parts = path.removeprefix("/").split("/")
    if len(parts) > MAX_PARTS:
        yield f"must have at most {MAX_PARTS} parts, got {len(parts)}; {_LEAVE_OUT}"
    if not path.isascii() or _SUSPECT.search(path):
        yield from _find_bad_parts(path, parts)


def fold_path(path: str) -> str:
    """Return a text that is the same for paths that some file systems take for one: by case or by normal form."""
    if path.isascii():
        return path.lower()
    visible = "".join(each for each in path if unicodedata.category(each) != _IGNORED)
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", visible).casefold())


def find_collisions(paths: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Yield (index, index of another path, why they exclude each other) for paths that cannot exist together.

    Each index comes at most twice: as a file that another file is, and as a file that is a folder of another. Paths
    that are empty or longer than MAX_PATH_BYTES are passed over.
    """
    files: dict[str, int] = {}
    folders: dict[str, int] = {}
    for index, path in enumerate(paths):
        if not path or len(path) > MAX_PATH_BYTES:
            continue
        folded = fold_path(path)
        other = files.setdefault(folded, index)
        if other != index:
            is_same = paths[other] == path
            yield index, other, "is given twice" if is_same else "differs only in case or in its normal form"
        end = folded.rfind("/")
        while end > 0 and folded[:end] not in folders:
            folders[folded[:end]] = index
            end = folded.rfind("/", 0, end)
    for folded, index in files.items():
        if folded in folders:
            yield index, folders[folded], "is a folder of another path"


def _find_bad_parts(path: str, parts: Sequence[str]) -> Iterator[str]:
    if not all(parts):
        yield f"must have no empty part, got {show(path)}"
    if any(part in {".", ".."} for part in parts):
        yield f"must have no part . or .., got {show(path)}"
    if any(_is_of_git(part) for part in parts):
        yield f"must have no part that begins with .git, got {show(path)}; leave the file out"
    if any(part[-1:] in {".", " "} and part not in {".", ".."} for part in parts):
        yield f"must have no part that ends with a dot or a space, got {show(path)}; {_LEAVE_OUT}"
    longest = max(len(part.encode()) for part in parts)
    if longest > MAX_PART_BYTES:
        yield f"must have parts of at most {MAX_PART_BYTES} bytes, got one of {longest}; {_LEAVE_OUT}"


def _is_of_git(part: str) -> bool:
    """Return whether git, on some file system, reads the part as its own file or folder."""
    # Compatibility forms too, such as letters of full width: what a program of the checks makes of them is unknown.
    folded = unicodedata.normalize("NFKC", fold_path(part)).casefold()
    return folded.startswith(".git") or _SHORT_GIT.fullmatch(folded) is not None


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
