"""What a job sees of an image, and what holds it on kernels with an older Landlock."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from reasond_server.sandbox.confinement import _SYSTEM_FOLDERS, Landlock
from reasond_server.sandbox.levels import _run_probe
from reasond_server.sandbox.sandbox import ExecutionEnvironment, Job, SandboxFailedError
from reasond_server.sandbox.shepherded import ShepherdedSandbox
from reasond_server.types.repairs import SandboxLevel, SourceFile
from tests.sandboxing import ENVIRONMENT, LIMITS, running_sandbox

# Not every system has both.
LARGE = tuple(folder for folder in _SYSTEM_FOLDERS if Path(folder).is_dir())
LIBRARY = f"lib/python{sys.version_info.major}.{sys.version_info.minor}"
# What Python needs besides its own frozen modules, and what the program below imports.
MODULES = (
    *("encodings", "collections", "json", "re", "os.py", "enum.py", "functools.py", "keyword.py", "operator.py"),
    *("reprlib.py", "types.py", "copyreg.py"),
)
PROGRAM = """
import json, os, sys

def is_refused(path):
    try:
        open(path, "w").close()
    except OSError:
        return True
    return False

print(json.dumps({
    "top": sorted(os.listdir("/")),
    "name": open("/etc/image").read(),
    "prefix": sys.prefix,
    "linked": os.listdir("/bin"),
    "hidden": os.path.exists("/tmp/of_the_image"),
    "refused": [is_refused(path) for path in ("/new", "/etc/image", "/opt/python/new", "/program")],
}))
"""
EXPECTED = (
    '{"top": ["bin", "dev", "etc", "lib", "lib64", "opt", "proc", "tmp", "workspace"], "name": "an image", '
    '"prefix": "/opt/python", "linked": ["python"], "hidden": false, "refused": [true, true, true, true]}\n'
)


def make_image(root: Path) -> None:
    """Unpack an image of Python and the libraries that it is linked with, as they are on this machine."""
    interpreter = Path(sys.executable).resolve()
    listed = subprocess.run(["ldd", interpreter], check=True, capture_output=True, text=True).stdout
    libraries = [Path(word) for line in listed.splitlines() for word in line.split() if word.startswith("/")]
    # In the folder of their names, or beside the interpreter if they are neither the system's nor the loader.
    for path in libraries:
        folder = path.parent if path.is_relative_to("/lib") or path.is_relative_to("/lib64") else Path("/lib")
        target = root / folder.relative_to("/") / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    library = root / "opt" / "python" / LIBRARY
    (library / "lib-dynload").mkdir(parents=True)
    for name in MODULES:
        source = Path(sys.base_prefix, LIBRARY, name)
        if source.is_dir():
            shutil.copytree(source, library / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, library / name)
    (root / "opt" / "python" / "bin").mkdir()
    shutil.copy(interpreter, root / "opt" / "python" / "bin" / "python")
    for name in ("etc", "tmp", "proc"):
        (root / name).mkdir()
    (root / "etc" / "image").write_text("an image", encoding="ascii")
    (root / "tmp" / "of_the_image").touch()
    (root / "bin").symlink_to("opt/python/bin")


async def run_in_image(level: SandboxLevel, root: Path) -> tuple[int, str]:
    """Return the exit code and the output of the program in an image."""
    environment = ExecutionEnvironment(name="image", root=root, is_image=True, search_path=("/opt/python/bin",))
    async with running_sandbox(level) as opened:
        tree = await opened.workspaces.write_tree([SourceFile(path="program.py", content=PROGRAM.encode())])
        async with tree.open_workspace({}) as folder:
            argv = ("python", "-I", "-S", "program.py")
            outcome = await opened.sandbox.run(Job(argv=argv, folder=folder, environment=environment, limits=LIMITS))
        await tree.remove()
    return outcome.exit_code, outcome.output.decode()


async def test_a_job_in_an_image_sees_the_image_and_nothing_of_the_machine(tmp_path: Path) -> None:
    make_image(tmp_path / "image")
    assert await run_in_image(SandboxLevel.BWRAP, tmp_path / "image") == (0, EXPECTED)


async def test_a_job_sees_the_large_folders_of_the_system_which_are_mounted_and_not_copied() -> None:
    async with running_sandbox(SandboxLevel.BWRAP) as opened:
        copied = [path for path in (opened._scratch.path / "etc").rglob("*") if path.is_file()]
        tree = await opened.workspaces.write_tree([SourceFile(path="program.py", content=b"")])
        async with tree.open_workspace({}) as folder:
            argv = ("ls", "-A", *LARGE)
            outcome = await opened.sandbox.run(Job(argv=argv, folder=folder, environment=ENVIRONMENT, limits=LIMITS))
        await tree.remove()
    assert set(outcome.output.decode().split()) == {*(f"{name}:" for name in LARGE), *chain(*map(os.listdir, LARGE))}
    assert not [path for path in copied for large in ("alternatives", "certs") if large in path.parts]


async def test_an_image_needs_bubblewrap(tmp_path: Path) -> None:
    with pytest.raises(SandboxFailedError, match="image is an image, which needs bubblewrap"):
        await run_in_image(SandboxLevel.LANDLOCK, tmp_path)


@pytest.mark.parametrize("abi", [3, 5])
async def test_an_older_landlock_passes_the_self_test_with_the_filter_that_refuses_signals(abi: int) -> None:
    async with running_sandbox(SandboxLevel.LANDLOCK) as opened:
        scratch = opened._scratch
        confiner = Landlock(has_users=scratch.users is not None, abi=abi)
        older = ShepherdedSandbox(confiner=confiner, scratch=scratch)
        await _run_probe(older, scratch)
        older.close()
        folder = scratch.make_folder("workspaces")
        scratch.give(folder, scratch.choose_user())
        confinement = confiner.confine(
            Job(argv=(), folder=folder, environment=ExecutionEnvironment(name="none"), limits=LIMITS), scratch.private
        )
    assert confinement["is_scoped"] is False
    assert Path(confinement["filter"]).name.startswith("landlock_unscoped.")


@pytest.mark.parametrize(("abi", "reason"), [(0, "has no Landlock"), (2, "has version 2 of Landlock; version 3")])
def test_a_landlock_that_is_too_old_is_refused(abi: int, reason: str) -> None:
    with pytest.raises(SandboxFailedError, match=reason):
        Landlock(has_users=os.geteuid() == 0, abi=abi)
