"""The clients in `examples/turns` against a real server, with the demo model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reasond_server.testing import running_server_in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "turns"
LIMIT_S = 180.0


@pytest.fixture(scope="module")
def environ() -> Iterator[Mapping[str, str]]:
    """What leads a client to a server that wants an approval for `current_time`."""
    with running_server_in_thread(environ={"REASOND__TURNS__NEEDS_APPROVAL": '["current_time"]'}) as server:
        yield {**os.environ, "REASOND_TARGET": server.grpc, "REASOND_TOKEN": server.token}


def run(environ: Mapping[str, str], name: str, *arguments: str, said: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", FOLDER / name, *arguments],
        env=environ,
        input=said,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_person_approves_or_refuses(environ: Mapping[str, str]) -> None:
    request = "Tell the current time."
    assert 'current_time says: {"time"' in run(environ, "approval.py", request, said="y\n")
    refused = run(environ, "approval.py", request, said="not before noon\n")
    assert "gave no result: a person refused the call: not before noon" in refused


def test_files_are_read_and_written_in_the_folder_and_nowhere_else(environ: Mapping[str, str], tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "secret.txt").write_text("secret", "utf-8")
    (home / "list.txt").write_text("Bring bread.", "utf-8")
    request = (
        'Read the file "list.txt". Write the file "copy.txt" with "Bring two." List the files. '
        'Read the file "../secret.txt".'
    )
    assert run(environ, "file_tools.py", str(home), request).splitlines() == [
        "read_file says: Bring bread.",
        'write_file says: {"characters": 10}',
        'list_files says: ["copy.txt", "list.txt"]',
        "read_file gave no result: ValueError: ../secret.txt is outside the folder",
    ]
    assert (home / "copy.txt").read_text("utf-8") == "Bring two."


def test_another_process_finishes_what_one_has_started(environ: Mapping[str, str]) -> None:
    turn_id = run(environ, "resume.py", "start").strip()
    assert run(environ, "resume.py", "start").strip() == turn_id
    for _ in range(2):
        assert run(environ, "resume.py", "finish", turn_id) == "stock_level says: 40\n"
