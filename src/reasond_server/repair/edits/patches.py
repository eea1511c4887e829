"""Makes the patch of a candidate, and shows that it applies: by git, in a folder that holds nothing else.

git runs without the variables, the home and the configuration of this process, so that no filter, hook or monitor of
anybody is run, and never finds a repository around its folder. Everything that blocks is done in threads.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import signal
import tempfile
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from reasond_server.base.asyncio_tasks import finish_though_cancelled, limit_awake_time
from reasond_server.errors.base import show
from reasond_server.errors.repairs import SandboxUnavailableError
from reasond_server.repair.edits.patch_parser import PatchError, check_patch
from reasond_server.snapshots.manifests import find_problems

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from reasond_server.types.repairs import SourceFile

__all__ = ["PatchError", "check_patch", "find_git", "make_patch", "validate_patch"]

_log = logging.getLogger("reasond.repair")
_REMEDY: Final = "Have the operator see that git runs on the server and that its disk has room, then send it again."
_TIMEOUT_S: Final = 60.0
_FOLDER_PREFIX: Final = "reasond-patch-"
_SEARCH_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_EXIT_DIFFERS: Final = 1
_FIRST_ERROR_BYTES: Final = 300


def find_git() -> str | None:
    """Return the path of git; None if it is not installed."""
    return shutil.which("git", path=_SEARCH_PATH)


async def make_patch(
    files: Mapping[str, SourceFile], changes: Mapping[str, bytes | None], *, parent: Path | None = None
) -> str:
    """Return a unified diff of `files` to `changes` with the prefixes a/ and b/; empty if nothing differs.

    `parent` is the folder for temporary files; None: that of the system.

    Raises:
        PatchError: a path, a mode or a content cannot be in a patch.
        SandboxUnavailableError: git cannot be run, or its files not be written.
    """
    _require_texts(files, changes)
    old = {path: files[path].content for path in changes if path in files}
    new = {path: content for path, content in changes.items() if content is not None}
    async with _open_folder(parent) as folder:
        await _run_to_end(partial(_write_files, folder / "a", files, old))
        await _run_to_end(partial(_write_files, folder / "b", files, new))
        options = ("--no-prefix", "--no-renames", "--no-color", "--no-ext-diff", "--no-textconv", "--text")
        status, output, errors = await _run_git(
            ("-c", "core.quotePath=false", "diff", "--no-index", *options, "a", "b"), folder
        )
    if status not in {0, _EXIT_DIFFERS}:
        raise PatchError(f"git made no diff (status {status}): {_show_output(errors, folder)}")
    patch = _fix_headers(output.decode())
    if problem := patch and check_patch(patch):
        raise PatchError(problem)
    return patch


async def validate_patch(
    files: Mapping[str, SourceFile], changes: Mapping[str, bytes | None], patch: str, *, parent: Path | None = None
) -> str:
    """Return why `patch` does not make exactly `changes` of `files`; empty if it does. `parent` as in `make_patch`.

    Raises:
        SandboxUnavailableError: git cannot be run, or its files not be written.
    """
    if problem := check_patch(patch):
        return problem
    try:
        _require_texts(files, changes)
    except PatchError as error:
        return str(error)
    async with _open_folder(parent) as folder:
        old = {path: files[path].content for path in changes if path in files}
        tree = folder / "tree"
        await _run_to_end(partial(_write_files, tree, files, old))
        await _run_to_end(partial(_write_files, folder / "input", {}, {"patch": patch.encode()}))
        for options in (("--check",), ()):
            command = ("apply", *options, "--whitespace=nowarn", "../input/patch")
            status, _, errors = await _run_git(command, tree)
            if status:
                return f"git apply refuses the patch: {_show_output(errors, folder)}"
        wanted = {path: content for path, content in {**old, **changes}.items() if content is not None}
        return await asyncio.to_thread(_compare_files, tree, files, wanted)


def _require_texts(files: Mapping[str, SourceFile], changes: Mapping[str, bytes | None]) -> None:
    """Check that nothing but regular texts at safe paths takes part.

    Raises:
        PatchError: something else does.
    """
    for path, content in changes.items():
        for problem in find_problems(path):
            raise PatchError(f"the path {show(path)} {problem}")
        for each in (content, files[path].content if path in files else None):
            if each is not None and not _is_text(each):
                raise PatchError(f"{show(path)} is not a text in UTF-8")


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in content


@asynccontextmanager
async def _open_folder(parent: Path | None) -> AsyncGenerator[Path, None]:
    """Make a temporary folder, and remove it even if the caller is cancelled."""
    folder = tempfile.mkdtemp(prefix=_FOLDER_PREFIX, dir=parent)
    try:
        yield Path(folder)
    finally:
        await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))


async def _run_to_end(call: Callable[[], None]) -> None:
    """Run `call` in a thread; a cancellation waits for its end, so that it writes nothing into a removed folder."""
    await finish_though_cancelled(asyncio.to_thread(call), name="work on a folder")


def _write_files(root: Path, files: Mapping[str, SourceFile], contents: Mapping[str, bytes]) -> None:
    """Write files below `root` with the modes that they have in the snapshot.

    Raises:
        SandboxUnavailableError: they cannot be written.
    """
    try:
        root.mkdir()
        for path, content in contents.items():
            place = root / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
            place.chmod(_find_mode(files, path))
    except OSError as error:
        problem = errno.errorcode.get(error.errno or 0, "an error")
        raise _refuse(f"The files of a patch cannot be written to the temporary folder: {problem}") from error


def _find_mode(files: Mapping[str, SourceFile], path: str) -> int:
    return 0o755 if path in files and files[path].is_executable else 0o644


def _compare_files(root: Path, files: Mapping[str, SourceFile], wanted: Mapping[str, bytes]) -> str:
    """Return how the tree below `root` differs from the `wanted` contents; empty if it does not."""
    present = {str(place.relative_to(root)) for place in root.rglob("*") if not place.is_dir() or place.is_symlink()}
    if other := present ^ wanted.keys():
        return f"the patch makes or leaves out {show(min(other))}"
    for path, content in wanted.items():
        place = root / path
        if place.is_symlink() or place.read_bytes() != content:
            return f"the patch makes another content of {show(path)}"
        if (place.stat().st_mode & 0o100) != (_find_mode(files, path) & 0o100):
            return f"the patch makes another mode of {show(path)}"
    return ""


async def _run_git(arguments: Sequence[str], folder: Path) -> tuple[int, bytes, bytes]:
    """Return the exit status, the output and the errors of git in `folder`.

    Raises:
        SandboxUnavailableError: it cannot be run, or did not end in time.
    """
    program = find_git()
    if program is None:
        raise _refuse(f"git is in none of {_SEARCH_PATH}, and patches are made and tried with it")
    variables = {
        "PATH": _SEARCH_PATH,
        "HOME": "/nonexistent",
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(folder.parent),
        "GIT_TERMINAL_PROMPT": "0",
    }
    pipe = asyncio.subprocess.PIPE
    start = asyncio.create_subprocess_exec(
        program,
        *arguments,
        cwd=folder,
        env=variables,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        start_new_session=True,
    )
    # A start that is cancelled in its midst would end git, but not what git has started.
    starting = asyncio.create_task(start)
    try:
        async with limit_awake_time(_TIMEOUT_S):
            process = await asyncio.shield(starting)
            output, errors = await process.communicate()
    except TimeoutError:
        raise _refuse(f"git did not end within {_TIMEOUT_S:g} s, so no patch was made or tried") from None
    except OSError as error:
        problem = errno.errorcode.get(error.errno or 0, "an error")
        raise _refuse(f"git cannot be started: {problem}") from error
    finally:
        await asyncio.wait([starting])
        if starting.exception() is None:
            await _end(starting.result())
    return process.returncode or 0, output, errors


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a process that still runs, and all of its group."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # To the end of its output, or the pipes are open for longer than the process lives.
        await process.communicate()


def _refuse(problem: str) -> SandboxUnavailableError:
    """Return the error of a server that cannot make patches; it says nothing about the code."""
    _log.error("patches cannot be made: %s", problem)
    return SandboxUnavailableError(problem, remedy=_REMEDY)


def _fix_headers(diff: str) -> str:
    """Return a diff whose sections begin with `diff --git a/… b/…`; git repeats one name for new and deleted files."""
    lines = diff.split("\n")
    for place, line in enumerate(lines):
        if line.startswith("diff --git "):
            rest = line.removeprefix("diff --git ")
            middle = len(rest) // 2
            lines[place] = f"diff --git {_set_side(rest[:middle], 'a')} {_set_side(rest[middle + 1 :], 'b')}"
    return "\n".join(lines)


def _set_side(name: str, side: str) -> str:
    return f'"{side}{name[2:]}' if name.startswith('"') else f"{side}{name[1:]}"


def _show_output(output: bytes, folder: Path) -> str:
    return show(output[:_FIRST_ERROR_BYTES].decode(errors="replace").replace(str(folder), "").strip())
