"""The files of a folder as a snapshot: which are sent, which are left out and why, and their digests.

In a git repository the files are those that git knows, and new ones that it does not ignore; elsewhere all files. In
both, folders of tools, secrets, links, large files and names that no server takes are left out.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import subprocess
from dataclasses import dataclass
from fnmatch import fnmatch, fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final

from reasond.v1.repairs_pb2 import FileEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from reasond.v1.repairs_pb2 import Snapshot

MAX_FILE_BYTES: Final = 1024 * 1024
"""Larger files are left out: no server edits them."""
BATCH_BYTES: Final = 3 * 1024 * 1024
"""The most that is sent in one request."""
FOLDERS_OF_TOOLS: Final = frozenset(
    {
        *("node_modules", "__pycache__", ".venv", "venv", ".tox", ".nox", ".hg", ".svn"),
        *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis"),
    }
)
"""Folders of these names are left out whole, and so is one with a `pyvenv.cfg`."""

_SECRETS: Final = (
    *(".env*", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk"),
    *("id_rsa", "id_dsa", "id_ecdsa*", "id_ed25519*", ".netrc", "_netrc", ".npmrc", ".pypirc", ".htpasswd"),
    *(".git-credentials", ".dockercfg", ".pgpass"),
)
_PUBLIC: Final = "*.pub"
_SENSITIVE: Final = "it may hold a secret"
_OF_GIT: Final = "servers take no name that begins with .git"
_SECRET_FOLDERS: Final = frozenset({".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker"})
_PRIVATE_KEY: Final = re.compile(rb"\s*-----BEGIN [A-Z ]*PRIVATE KEY")
_BEGINNING: Final = 128
_BATCH_FILES: Final = 1000
_UNFIT: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\\]|[. ](?:/|$)")
# Hooks have these variables; they would name another repository.
_PLACES_OF_GIT: Final = frozenset(
    {
        *("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY"),
        *("GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE", "GIT_PREFIX"),
    }
)
_MAX_PATH_BYTES: Final = 1024
_MAX_PART_BYTES: Final = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A file or folder that is not sent; `path` is relative to the folder of the snapshot."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadedSnapshot:
    """A snapshot that the server has whole.

    Attributes:
        snapshot: As the server keeps it; `snapshot_id` is what a repair needs.
        sent_contents: How many contents were uploaded; 0 if the server had all of them.
        sent_bytes: Their size.
        left_out: What is not in it, by path.
    """

    snapshot: Snapshot
    sent_contents: int
    sent_bytes: int
    left_out: Sequence[LeftOut]

    @property
    def snapshot_id(self) -> str:
        """Id of the snapshot."""
        return self.snapshot.snapshot_id


class FolderFiles:
    """The files of one folder as they were when `read_folder` read them."""

    def __init__(self, root: Path, manifest: Sequence[FileEntry], left_out: Sequence[LeftOut]) -> None:
        self.manifest = manifest
        self.left_out = left_out
        self._root = root
        self._by_digest: Mapping[str, FileEntry] = {entry.digest: entry for entry in manifest}

    def split(self, digests: Iterable[str]) -> Iterator[Sequence[FileEntry]]:
        """Yield a file for each of the digests, in batches that fit into one request."""
        batch: list[FileEntry] = []
        size = 0
        for digest in digests:
            entry = self._by_digest[digest]
            if batch and (size + entry.size_bytes > BATCH_BYTES or len(batch) == _BATCH_FILES):
                yield batch
                batch, size = [], 0
            batch.append(entry)
            size += entry.size_bytes
        if batch:
            yield batch

    def read_contents(self, entries: Sequence[FileEntry]) -> Sequence[bytes]:
        """Return the contents of files.

        Raises:
            ValueError: a file has changed since the folder was read.
        """
        contents: list[bytes] = []
        for entry in entries:
            content = _read(self._root / entry.path)
            if content is None or hashlib.sha256(content).hexdigest() != entry.digest:
                message = f"{entry.path!r} changed while it was uploaded; upload the folder again"
                raise ValueError(message)
            contents.append(content)
        return contents


def read_folder(path: str | os.PathLike[str], *, only: Sequence[str] = ()) -> FolderFiles:
    """Read which files of a folder are sent, with their digests; one content at a time is in memory.

    With `only` these are folders and glob patterns of paths, and nothing else is sent.

    Raises:
        ValueError: the folder has no file to send, or git does not answer in a repository of its own.
        OSError: the folder or a file cannot be read.
    """
    root = Path(path)
    if not root.is_dir():
        message = f"{str(path)!r} is not a folder"
        raise ValueError(message)
    sieve = _Sieve(root)
    names = _list_by_git(root) if _is_in_repository(root) else _walk(root, sieve)
    if only:
        names = [name for name in names if any(_is_named(name, pattern.removeprefix("./")) for pattern in only)]
        if not names:
            message = f"{str(path)!r} has no file that {', '.join(only)} names"
            raise ValueError(message)
    manifest = [entry for name in names if (entry := sieve.take(name)) is not None]
    if not manifest:
        message = f"{str(path)!r} has no file to send: what git ignores, secrets and large files are left out"
        raise ValueError(message)
    left_out = [LeftOut(path=_printable(name), reason=reason) for name, reason in sorted(sieve.left_out.items())]
    return FolderFiles(root, manifest, left_out)


def _is_named(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or name.startswith(f"{pattern.rstrip('/')}/")


class _Sieve:
    """Decides which files below `root` are sent; `left_out` has the reasons for the others, and for whole folders."""

    def __init__(self, root: Path) -> None:
        self.left_out: dict[str, str] = {}
        self._root = root
        self._folders: dict[str, str] = {}

    def take(self, name: str) -> FileEntry | None:
        """Return the entry of a file; None if it is left out or there no more."""
        parents = name.rstrip("/").split("/")[:-1]
        if any(self.leaves_out("/".join(parents[: depth + 1])) for depth in range(len(parents))):
            return None
        try:
            status = (self._root / name).lstat()
        except FileNotFoundError:
            # Deleted, and git still has it.
            return None
        reason = _find_reason(name) or _find_reason_of_kind(status)
        content = None if reason else _read(self._root / name)
        if content is None:
            self.left_out[name] = reason or "it changed while it was read"
            return None
        if _PRIVATE_KEY.match(content[:_BEGINNING]):
            self.left_out[name] = "a private key"
            return None
        digest = hashlib.sha256(content).hexdigest()
        is_executable = bool(status.st_mode & stat.S_IXUSR)
        return FileEntry(path=name, digest=digest, size_bytes=len(content), is_executable=is_executable)

    def leaves_out(self, folder: str) -> bool:
        """Return whether a folder is left out whole; each is looked at once."""
        if folder not in self._folders:
            reason = self._folders[folder] = _find_reason_of_folder(self._root / folder)
            if reason:
                self.left_out[f"{folder}/"] = reason
        return bool(self._folders[folder])


def _is_in_repository(root: Path) -> bool:
    resolved = root.resolve()
    return any((folder / ".git").exists() for folder in (resolved, *resolved.parents))


def _list_by_git(root: Path) -> Iterable[str]:
    environ = {name: value for name, value in os.environ.items() if name not in _PLACES_OF_GIT}
    command = ("git", "-c", "core.fsmonitor=false", "ls-files", "-co", "--exclude-standard", "-z")
    try:
        done = subprocess.run(command, cwd=root, env=environ, capture_output=True, check=True)  # noqa: S603 - constants
    except (OSError, subprocess.CalledProcessError) as error:
        # To walk instead would send what git ignores.
        message = f"git does not list the files of {str(root)!r}: install it, or let it trust the folder"
        raise ValueError(message) from error
    # A file with conflicts is listed several times.
    return sorted({os.fsdecode(name) for name in done.stdout.split(b"\0") if name})


def _walk(root: Path, sieve: _Sieve) -> Iterator[str]:
    for place, folders, files in os.walk(root, onerror=_raise):
        prefix = Path(place).relative_to(root)
        folders[:] = sorted(each for each in folders if not sieve.leaves_out((prefix / each).as_posix()))
        yield from ((prefix / each).as_posix() for each in sorted(files))


def _raise(error: OSError) -> None:
    raise error


def _find_reason_of_folder(folder: Path) -> str:
    """Return why a folder is left out with all that is in it; empty if it is not."""
    if folder.is_symlink():
        return "a symbolic link"
    name = folder.name.lower()
    if name.startswith(".git"):
        return _OF_GIT
    if name in FOLDERS_OF_TOOLS or (folder / "pyvenv.cfg").exists():
        return "a folder of tools"
    return _SENSITIVE if name in _SECRET_FOLDERS else ""


def _find_reason(path: str) -> str:
    """Return why a file of this name is left out; empty if it is not."""
    parts = path.split("/")
    name = parts[-1].lower()
    if any(fnmatch(name, each) for each in _SECRETS) and not fnmatch(name, _PUBLIC):
        return _SENSITIVE
    if name.startswith(".git"):
        return _OF_GIT
    try:
        lengths = [len(part.encode()) for part in parts]
    except UnicodeEncodeError:
        return "its name is no Unicode"
    if sum(lengths) + len(parts) > _MAX_PATH_BYTES or max(lengths) > _MAX_PART_BYTES:
        return "its name is too long"
    return "its name has a character that no server takes" if _UNFIT.search(path) else ""


def _find_reason_of_kind(status: os.stat_result) -> str:
    if stat.S_ISLNK(status.st_mode):
        return "a symbolic link"
    if stat.S_ISDIR(status.st_mode):
        return "a repository of its own"
    if not stat.S_ISREG(status.st_mode):
        return "no regular file"
    return f"larger than {MAX_FILE_BYTES} bytes" if status.st_size > MAX_FILE_BYTES else ""


def _read(file: Path) -> bytes | None:
    """Return the content of a file; None if by now it is a link, too large, or gone."""
    try:
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    except OSError:
        if file.is_symlink() or not file.exists():
            return None
        raise
    with os.fdopen(descriptor, "rb") as opened:
        content = opened.read(MAX_FILE_BYTES + 1)
    return content if len(content) <= MAX_FILE_BYTES else None


def _printable(name: str) -> str:
    """Return a name that can be shown and sent, whatever bytes it has."""
    return name.encode(errors="backslashreplace").decode()
