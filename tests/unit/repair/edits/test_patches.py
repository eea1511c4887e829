from __future__ import annotations

import asyncio
import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from reasond_server.errors.repairs import SandboxUnavailableError
from reasond_server.repair.edits import patches
from reasond_server.repair.edits.patches import PatchError, make_patch, validate_patch
from reasond_server.types.repairs import SourceFile
from tests.repairing import install_slow_git

if TYPE_CHECKING:
    from collections.abc import Mapping

FILES = {
    "a.txt": SourceFile(path="a.txt", content=b"a\n"),
    "run.sh": SourceFile(path="run.sh", content=b"one\n", is_executable=True),
}

START: Final = asyncio.create_subprocess_exec


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which all temporary folders of the test are made."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def list_leftovers(folder: Path) -> list[Path]:
    return list(folder.glob("reasond-patch-*"))


def init_repository(folder: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    subprocess.run(["git", "init", "-q", str(folder)], check=True, env=environment)


def run_git(*arguments: str, folder: Path) -> None:
    subprocess.run(["git", *arguments], check=False, cwd=folder, capture_output=True)


async def make_valid_patch(files: Mapping[str, SourceFile], changes: Mapping[str, bytes | None]) -> str:
    patch = await make_patch(files, changes)
    assert await validate_patch(files, changes, patch) == ""
    return patch


async def test_a_patch_is_a_plain_unified_diff(folders: Path) -> None:
    patch = await make_valid_patch(FILES, {"a.txt": b"b\n", "neu/ä ö.txt": b"x\r\ny", "run.sh": None})
    assert patch == (
        "diff --git a/a.txt b/a.txt\nindex 7898192..6178079 100644\n--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-a\n+b\n"
        "diff --git a/neu/ä ö.txt b/neu/ä ö.txt\nnew file mode 100644\nindex 0000000..9d91271\n--- /dev/null\n"
        "+++ b/neu/ä ö.txt\t\n@@ -0,0 +1,2 @@\n+x\r\n+y\n\\ No newline at end of file\n"
        "diff --git a/run.sh b/run.sh\ndeleted file mode 100755\nindex 5626abf..0000000\n--- a/run.sh\n+++ /dev/null\n"
        "@@ -1 +0,0 @@\n-one\n"
    )
    assert not list_leftovers(folders)


@pytest.mark.parametrize(
    "changes",
    [
        {"run.sh": b"two\n"},
        {"empty.txt": b""},
        {"a.txt": b""},
        {"q\"uo'te.txt": b"x\n", "tab-less \\".replace("\\", "b"): b"y\n"},
        {"日本/語.txt": b"\xe6\x97\xa5\n", "a.txt": None},
        {"a.txt": b"diff --git a/x b/x\n--- a\n+++ b\n"},
        {"a.txt": b"\\ No newline at end of file"},
    ],
)
async def test_patches_apply(changes: Mapping[str, bytes | None]) -> None:
    await make_valid_patch(FILES, changes)


async def test_no_change_is_no_patch() -> None:
    assert not await make_patch(FILES, {})
    assert not await make_patch(FILES, {"a.txt": b"a\n", "none.txt": None})
    assert "empty" in await validate_patch(FILES, {}, "")


@pytest.mark.parametrize(
    "changes",
    [
        {"../x": b""},
        {".gitattributes": b""},
        {"/x": b""},
        {"a.txt": b"\0"},
        {"a.txt": b"\xff"},
        {"a.txt": b"x\n" * 2**20},
    ],
)
async def test_what_cannot_be_in_a_patch_is_refused(changes: Mapping[str, bytes | None]) -> None:
    with pytest.raises(PatchError):
        await make_patch(FILES, changes)
    assert await validate_patch(FILES, changes, "diff --git a/a.txt b/a.txt\n")


async def test_a_patch_that_does_something_else_is_refused() -> None:
    patch = await make_patch(FILES, {"a.txt": b"b\n"})
    assert "another content" in await validate_patch(FILES, {"a.txt": b"c\n"}, patch)
    assert "'run.sh'" in await validate_patch(FILES, {"a.txt": b"b\n", "run.sh": None}, patch)
    assert "refuses" in await validate_patch({}, {"a.txt": b"b\n"}, patch)
    assert "refuses" in await validate_patch(FILES, {"a.txt": b"b\n"}, patch.replace("-a", "-x"))
    new = await make_patch({}, {"run.sh": b"one\n"})
    assert "another mode" in await validate_patch({}, {"run.sh": b"one\n"}, new.replace("100644", "100755"))
    mode = await make_patch(FILES, {"run.sh": b"two\n"})
    assert "refused" in await validate_patch(FILES, {}, f"{mode}{mode.splitlines()[0]}\nnew mode 100755\n")


async def test_git_runs_no_command_of_anybody(folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A canary in every configuration that git could find: those of the user, of the system and of a repository."""
    canary, home = tmp_path / "canary", tmp_path / "home"
    home.mkdir()
    program = tmp_path / "touch.sh"
    program.write_text(f"#!/bin/sh\necho ran >> {canary}\ncat\n")
    program.chmod(0o755)
    settings = f"""
[core]
    fsmonitor = {program}
    hooksPath = {tmp_path}
    pager = {program}
    attributesFile = {home / "attributes"}
[diff]
    external = {program}
[diff "x"]
    textconv = {program}
    command = {program}
[filter "x"]
    clean = {program}
    smudge = {program}
    process = {program}
"""
    (home / ".gitconfig").write_text(settings)
    (home / "attributes").write_text("* filter=x diff=x\n")
    init_repository(folders)
    (folders / ".git" / "config").write_text(settings)
    (folders / ".gitattributes").write_text("* filter=x diff=x\n")
    variables = {
        "HOME": str(home), "GIT_CONFIG_GLOBAL": str(home / ".gitconfig"), "GIT_EXTERNAL_DIFF": str(program),
        "GIT_DIR": str(folders / ".git"), "GIT_WORK_TREE": str(folders), "GIT_PAGER": str(program),
        "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.fsmonitor", "GIT_CONFIG_VALUE_0": str(program),
    }  # fmt: skip
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    await make_valid_patch(FILES, {"a.txt": b"b\n", "c.txt": b"c\n"})
    assert not canary.exists()
    # The canary sings where git runs without the clean room.
    run_git("--no-pager", "diff", "--no-index", str(home / "attributes"), str(program), folder=tmp_path)
    assert canary.exists()


async def test_a_repository_around_the_folder_is_not_found(folders: Path) -> None:
    """Inside a repository `git apply` leaves out files outside the folder and says that all is well."""
    init_repository(folders)
    patch = await make_valid_patch(FILES, {"a.txt": b"b\n"})
    assert "refuses" in await validate_patch({}, {"a.txt": b"b\n"}, patch)


@pytest.mark.parametrize("is_starting", [False, True])
async def test_git_is_ended_when_the_caller_is_cancelled(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_starting: bool
) -> None:
    """Also where git already runs, but the call that starts it has not returned."""
    started = install_slow_git(tmp_path, monkeypatch)
    if is_starting:
        monkeypatch.setattr(asyncio, "create_subprocess_exec", _start_slowly)
    task = asyncio.create_task(make_patch(FILES, {"a.txt": b"b\n"}))
    await asyncio.to_thread(_wait_for_file, started)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for process in started.read_text().split():
        await asyncio.to_thread(_wait_until_ended, int(process))
    assert not list_leftovers(folders)


async def test_a_caller_that_is_cancelled_while_files_are_written_leaves_no_folder(folders: Path) -> None:
    files = {f"{number}.txt": b"x\n" for number in range(200)}
    for delay in range(6):
        task = asyncio.create_task(make_patch({}, files))
        for _ in range(2**delay):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(_wait_until_gone, folders)


def test_files_that_cannot_be_written_are_told(folders: Path) -> None:
    with pytest.raises(SandboxUnavailableError, match="ENAMETOOLONG"):
        patches._write_files(folders / "a", {}, {"x" * 300: b""})


async def test_git_that_does_not_end_or_is_missing_is_told(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_slow_git(tmp_path, monkeypatch)
    monkeypatch.setattr(patches, "_TIMEOUT_S", 0.2)
    with pytest.raises(SandboxUnavailableError, match=r"within 0\.2 s"):
        await make_patch(FILES, {"a.txt": b"b\n"})
    program = folders / "bin" / "git"
    program.write_text("no program")
    with pytest.raises(SandboxUnavailableError, match="git cannot be started: ENOEXEC"):
        await make_patch(FILES, {"a.txt": b"b\n"})
    monkeypatch.setattr(patches, "_SEARCH_PATH", str(folders / "none"))
    with pytest.raises(SandboxUnavailableError, match="patches are made and tried with it"):
        await make_patch(FILES, {"a.txt": b"b\n"})


def _wait_until_gone(folder: Path) -> None:
    while list_leftovers(folder):
        time.sleep(0.01)


def _wait_for_file(file: Path) -> None:
    while not file.exists():
        time.sleep(0.01)


async def _start_slowly(*arguments: str, **options: Any) -> asyncio.subprocess.Process:
    """Start a process, and return it a second later."""
    process = await START(*arguments, **options)
    await asyncio.sleep(1.0)
    return process


def _wait_until_ended(process: int) -> None:
    """Wait for the end of a process; one that nobody has waited for yet has ended too."""
    with suppress(FileNotFoundError, ProcessLookupError):
        while Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)
