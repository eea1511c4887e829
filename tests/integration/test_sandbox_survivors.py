"""Of jobs that hang, multiply and flood nothing is left, at their end and after the SIGKILL of the server."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reasond_server.sandbox.scratch import Scratch, find_marked
from tests.sandbox_escapes.bad_programs import BAD_PROGRAMS
from tests.sandbox_escapes.driving import choose_user, copied_packages, drive
from tests.sandboxing import INTERPRETER, LEVELS, require_level

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from reasond_server.types.repairs import SandboxLevel

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 120.0


@pytest.fixture(scope="module")
def copies() -> Generator[Path, None, None]:
    with copied_packages() as folder:
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize("user", ["root", "nobody"])
@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.value)
def test_bad_programs_are_ended_by_a_limit_and_nothing_of_them_is_left(
    level: SandboxLevel, user: str, copies: Path
) -> None:
    require_level(level)
    *outcomes, left = drive(level.value, choose_user(user), copies, "bad")
    assert [outcome["name"] for outcome in outcomes] == list(BAD_PROGRAMS)
    for outcome in outcomes:
        assert outcome["exceeded"] in BAD_PROGRAMS[outcome["name"]][1], outcome
        assert outcome["size"] <= outcome["most"]
        assert outcome["survivors"] == []
    assert left == {"left": []}


@pytest.fixture
def place() -> Generator[Path, None, None]:
    """Return a folder that other users may go through, with the packages that the driver imports."""
    folder = Path(tempfile.mkdtemp(prefix="reasond-test-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.value)
@pytest.mark.parametrize("name", ["double_fork", "fork_bomb"])
def test_nothing_lives_on_when_the_server_is_killed(level: SandboxLevel, name: str, place: Path) -> None:
    require_level(level)
    begun = "open('begun', 'w').close()\n"
    (place / "job.py").write_text(begun + BAD_PROGRAMS[name][0], encoding="utf-8")
    server = subprocess.Popen(
        [INTERPRETER, "-S", "-B", "-m", "tests.sandbox_escapes.driver", level.value, str(place), "serve"],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": os.environ.get("PATH", os.defpath)},
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None
    workspace, mark = (server.stdout.readline().decode().strip() for _ in range(2))
    try:
        wait_until(lambda: Path(workspace, "begun").exists() and bool(list(find_marked({mark}))))
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()
        server.stdout.close()
    wait_until(lambda: not list(find_marked({mark})))
    # The next server removes what the killed one left on the disk.
    left = next(path for path in place.iterdir() if path.name.startswith("reasond-sandbox"))
    assert list(left.iterdir())
    Scratch(place, users=None).close()
    assert not list(left.iterdir())


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for another process."""
    end = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)
