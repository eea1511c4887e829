"""The folder of a server process: its own, and swept when the process is dead."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from reasond_server.sandbox.sandbox import SandboxFailedError
from reasond_server.sandbox.scratch import Scratch, find_marked

if TYPE_CHECKING:
    from pathlib import Path


def test_what_a_living_process_has_is_kept_and_what_a_dead_one_left_is_removed(tmp_path: Path) -> None:
    living = Scratch(tmp_path, users=None)
    dead = Scratch(tmp_path, users=None)
    (dead.make_folder("workspaces") / "file").write_text("left", encoding="ascii")
    os.close(dead._lock)
    newest = Scratch(tmp_path, users=None)
    assert set(newest.path.parent.iterdir()) == {living.path, newest.path}
    living.close()
    newest.close()


def test_processes_of_a_dead_server_are_found_by_their_mark_and_ended(tmp_path: Path) -> None:
    dead = Scratch(tmp_path, users=None)
    mark, _ = dead.make_job()
    program = (
        "import os, resource, sys, time\n"
        f"resource.setrlimit(resource.RLIMIT_RTTIME, ({mark}, {mark}))\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid(); print('begun', flush=True); os.close(1)\n"
        "time.sleep(600)"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True, stdout=subprocess.PIPE)
    assert list(find_marked({str(mark)}))
    os.close(dead._lock)
    Scratch(tmp_path, users=None).close()
    assert not [pid for pid in find_marked({str(mark)}) if not is_zombie(pid)]


def is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:  # noqa: PTH123 - no path of ours
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    home = tmp_path / f"reasond-sandbox-{os.geteuid()}"
    home.mkdir()
    home.chmod(0o777)
    with pytest.raises(SandboxFailedError, match="others may write it"):
        Scratch(tmp_path, users=None)
