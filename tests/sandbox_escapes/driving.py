"""Runs the driver as root and as a user without rights, from copies of the packages that any user may read."""

from __future__ import annotations

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
    from collections.abc import Generator

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 280.0


@contextmanager
def copied_packages() -> Generator[Path, None, None]:
    """Return a folder with what the driver imports, which every user may read."""
    folder = Path(tempfile.mkdtemp(prefix="reasond-test-"))
    try:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "src" / "reasond_server", folder / "reasond_server", ignore=ignore)
        shutil.copytree(ROOT / "tests" / "sandbox_escapes", folder / "tests" / "sandbox_escapes", ignore=ignore)
        for place, folders, names in os.walk(folder):
            for name in (".", *folders, *names):
                path = Path(place, name)
                path.chmod(0o755 if path.is_dir() else 0o644)
        yield folder
    finally:
        shutil.rmtree(folder)


def drive(level: str, user: int | None, copies: Path, *arguments: str) -> list[dict[str, Any]]:
    """Run the driver as `user`, None: as this process, and return its lines."""
    own = Path(tempfile.mkdtemp(prefix="reasond-test-"))
    try:
        own.chmod(0o755)
        if user is not None:
            os.chown(own, user, user)
        done = subprocess.run(
            [INTERPRETER, "-S", "-B", "-m", "tests.sandbox_escapes.driver", level, str(own), *arguments],
            cwd=copies,
            env={"PYTHONPATH": str(copies), "PATH": os.environ.get("PATH", os.defpath)},
            user=user,
            group=user,
            extra_groups=None if user is None else [],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
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
