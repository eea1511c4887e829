"""Completion of the shell: what bash offers after the script of `reasond` was read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed here")

SCRIPT = """
eval "$(_REASOND_COMPLETE=source_bash reasond)"
complete -p reasond >&2
COMP_WORDS=(reasond $LINE)
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_reasond_completion reasond
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("line", "offered"),
    [("exec", ["executions"]), ("keys cr", ["create"]), ("ask --str", ["--strategy"]), ("turns can", ["cancel"])],
)
def test_bash_completes_commands_and_options(line: str, offered: list[str], tmp_path: Path) -> None:
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "LINE": line}
    done = subprocess.run(
        ["bash", "--norc", "-eo", "pipefail", "-c", SCRIPT],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (0, offered), done.stderr
    assert "_reasond_completion" in done.stderr
