"""Applies a patch to a folder: whole or not at all.

git checks and applies it to copies of the files in a folder of its own, where no configuration and no repository of the
user has a say. Only then are the files replaced; if one of them cannot be, those before it get their contents back.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from reasond_server.cli.outcome import CommandError, ExitCode
from reasond_server.repair.edits.patch_parser import check_patch
from reasond_server.sandbox.sandbox import SandboxFailedError
from reasond_server.sandbox.scratch import open_private_folder
from reasond_server.types.values import value

_LIMIT_S: Final = 60
_MOST_SHOWN: Final = 500


@value
class _Change:
    """A file before and after the patch; None where there is no file."""

    path: Path
    before: bytes | None
    after: bytes | None
    mode: int


def apply_patch(patch: str, root: Path) -> Sequence[str]:
    """Apply a unified diff to the files below `root`, and return the paths of the changed files.

    Raises:
        CommandError: it cannot be applied; nothing was changed.
    """
    if problem := check_patch(patch):
        raise _refuse(f"The patch was not applied: {problem}")
    if shutil.which("git") is None:
        raise _refuse("git is not installed, so the patch cannot be checked and was not applied")
    with _open_folder() as folder:
        # The empty path follows the last one, and a path has two figures before it.
        listed = _run_git(["--numstat", "-z"], patch, folder).split("\0")[:-1]
        paths = [entry.split("\t", 2)[2] for entry in listed]
        for path in paths:
            _copy_file(root, folder, path)
        _run_git(["--check"], patch, folder)
        _run_git([], patch, folder)
        changes = [_compare(root / path, folder / path) for path in paths]
    _write_changes(changes)
    return paths


@contextlib.contextmanager
def _open_folder() -> Iterator[Path]:
    """Yield an empty folder, and remove what commands left that were killed."""
    try:
        with open_private_folder(Path(tempfile.gettempdir()).resolve() / f"reasond-patches-{os.geteuid()}") as scratch:
            folder = scratch / "files"
            folder.mkdir()
            yield folder
    except SandboxFailedError as error:
        raise _refuse(f"The patch was not applied: {error}") from None


def _copy_file(root: Path, folder: Path, path: str) -> None:
    source = root / path
    if source.parent.resolve() != (root.resolve() / path).parent or source.is_symlink():
        raise _refuse(f"The patch was not applied: {path} is a symbolic link, or is behind one")
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    if source.exists():
        shutil.copy2(source, folder / path)


def _compare(place: Path, copy: Path) -> _Change:
    before = place.read_bytes() if place.exists() else None
    after = copy.read_bytes() if copy.exists() else None
    mode = (place if place.exists() else copy).stat().st_mode & 0o777
    return _Change(path=place, before=before, after=after, mode=mode)


def _write_changes(changes: Sequence[_Change]) -> None:
    """Replace the files; after a failure give those that were replaced their contents back."""
    done: list[_Change] = []
    try:
        for change in changes:
            _replace(change.path, change.after, change.mode)
            done.append(change)
    except OSError as error:
        for change in done:
            with contextlib.suppress(OSError):
                _replace(change.path, change.before, change.mode)
        raise _refuse(f"The patch was not applied: {error.filename or 'a file'}: {error.strerror}") from None


def _replace(path: Path, content: bytes | None, mode: int) -> None:
    if content is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with _make_empty_file(path) as temporary:
        temporary.write_bytes(content)
        temporary.chmod(mode)
        temporary.replace(path)


@contextlib.contextmanager
def _make_empty_file(path: Path) -> Iterator[Path]:
    """Yield the path of an empty file beside `path`, which is gone at the end."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _run_git(options: Sequence[str], patch: str, folder: Path) -> str:
    environ = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(folder),
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CEILING_DIRECTORIES": str(folder.parent),
    }
    try:
        ended = subprocess.run(  # noqa: S603 - git, with fixed options
            ["git", "apply", "--whitespace=nowarn", *options, "-"],  # noqa: S607 - the user's own git
            input=patch.encode(),
            capture_output=True,
            cwd=folder,
            env=environ,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _refuse(f"git did not answer in {_LIMIT_S} s; the patch was not applied") from None
    if ended.returncode:
        message = ended.stderr.decode(errors="replace").strip()[:_MOST_SHOWN]
        raise _refuse(f"The patch does not apply to these files, which may have changed meanwhile: {message}")
    return ended.stdout.decode(errors="surrogateescape")


def _refuse(message: str) -> CommandError:
    return CommandError(message, remedy="Nothing was changed.", code=ExitCode.NOT_APPLIED)
