"""Runs the driver as root and as a user without rights, from copies of the packages that any user may read."""

from __future__ import annotations

import compileall
import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.sandbox.scratch import NOBODY
from tests.sandboxing import INTERPRETER

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 280.0


@contextmanager
def copied_packages(
    driver: str = "tests/sandbox_escapes", *, packages: Sequence[str] = ()
) -> Generator[Path, None, None]:
    """Return a folder with a driver and what it imports, installed `packages` too, which every user may read."""
    folder = Path(tempfile.mkdtemp(prefix="reasond-test-"))
    try:
        shutil.copytree(ROOT / "src" / "reasond_server", folder / "reasond_server")
        shutil.copytree(ROOT / driver, folder / driver)
        copy_packages(folder, packages)
        for place, folders, names in os.walk(folder):
            for name in (".", *folders, *names):
                path = Path(place, name)
                path.chmod(0o755 if path.is_dir() else 0o644)
        yield folder
    finally:
        shutil.rmtree(folder)


def copy_packages(folder: Path, names: Sequence[str]) -> None:
    """Copy installed packages into a folder, which is made if it is missing; every user may read them there.

    They are compiled, else each program that imports them would compile them once more.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        found = importlib.util.find_spec(name)
        assert found is not None
        assert found.origin is not None
        if found.submodule_search_locations:
            shutil.copytree(Path(found.origin).parent, folder / name)
        else:
            shutil.copy2(found.origin, folder)
    compileall.compile_dir(folder, quiet=1)


def drive(
    level: str,
    user: int | None,
    copies: Path,
    *arguments: str,
    module: str = "tests.sandbox_escapes.driver",
    limit_s: float = LIMIT_S,
) -> list[dict[str, Any]]:
    """Run a driver as `user`, None: as this process, and return its lines."""
    own = Path(tempfile.mkdtemp(prefix="reasond-test-"))
    try:
        own.chmod(0o755)
        if user is not None:
            os.chown(own, user, user)
        done = subprocess.run(
            [INTERPRETER, "-S", "-B", "-m", module, level, str(own), *arguments],
            cwd=copies,
            env={"PYTHONPATH": str(copies), "PATH": os.environ.get("PATH", os.defpath)},
            user=user,
            group=user,
            extra_groups=None if user is None else [],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    finally:
        shutil.rmtree(own, ignore_errors=True)
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.decode().splitlines()]


def choose_user(name: str) -> int | None:
    """Return the user to change to, None if this process is it already; skip what cannot be done."""
    is_root = os.geteuid() == 0
    if name == "root" and not is_root:
        pytest.skip("these tests do not run as root")
    return NOBODY if name == "nobody" and is_root else None
