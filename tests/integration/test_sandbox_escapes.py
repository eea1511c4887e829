"""Programs that try to get out of the sandbox do not, at either level, as root and as a user without rights.

Each combination runs in a process of its own, from copies of the packages that any user may read.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.sandbox.scratch import NOBODY
from tests.sandbox_escapes import files, processes
from tests.sandbox_escapes.driver import NOT_PLAINLY
from tests.sandboxing import INTERPRETER, LEVELS, require_level

if TYPE_CHECKING:
    from collections.abc import Generator

    from reasond_server.types.repairs import SandboxLevel

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = {**files.PROGRAMS, **processes.PROGRAMS}
LIMIT_S = 280.0
# As many get out where nothing holds them; the others fail for want of rights, of IPv6 or of a name server.
LEAST_PLAIN = 70


@pytest.fixture(scope="module")
def copies() -> Generator[Path, None, None]:
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


def drive(level: str, user: int | None, copies: Path) -> list[dict[str, Any]]:
    """Run the driver as `user`, None: as this process, and return its lines."""
    own = Path(tempfile.mkdtemp(prefix="reasond-test-"))
    try:
        own.chmod(0o755)
        if user is not None:
            os.chown(own, user, user)
        done = subprocess.run(
            [INTERPRETER, "-S", "-B", "-m", "tests.sandbox_escapes.driver", level, str(own)],
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


@pytest.mark.slow
@pytest.mark.parametrize("user", ["root", "nobody"])
@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.value)
def test_no_program_gets_out_harms_anything_or_lives_on(level: SandboxLevel, user: str, copies: Path) -> None:
    require_level(level)
    *outcomes, end = drive(level.value, choose_user(user), copies)
    assert "failure" not in end, end
    assert sorted(outcome["name"] for outcome in outcomes) == sorted(PROGRAMS)
    assert not [outcome for outcome in outcomes if "ESCAPED" in outcome["output"]]
    assert end == {"damage": [], "survivors": []}
    # A program that does not compile proves nothing.
    assert not [
        outcome for outcome in outcomes if "SyntaxError" in outcome["output"] or "NameError" in outcome["output"]
    ]


@pytest.mark.slow
def test_the_programs_are_worth_something_where_nothing_holds_them(copies: Path) -> None:
    outcomes = drive("none", choose_user("nobody"), copies)
    assert sorted(outcome["name"] for outcome in outcomes) == sorted(PROGRAMS.keys() - NOT_PLAINLY)
    out = [outcome["name"] for outcome in outcomes if "ESCAPED" in outcome["output"] or outcome["damage"]]
    assert len(out) >= LEAST_PLAIN, sorted(PROGRAMS.keys() - NOT_PLAINLY - set(out))
