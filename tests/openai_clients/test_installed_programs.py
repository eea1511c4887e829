"""What `reasond install` prints is enough for the programs themselves, where they are installed.

By hand, because they are some 800 MB: `npm install @openai/codex @anthropic-ai/claude-code cline`, then with
`node_modules/.bin` on PATH `pytest -n0 tests/openai_clients/test_installed_programs.py`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from reasond_server.cli.commands.install import install
from reasond_server.testing import running_server_in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from reasond_server.base.addresses import Listening

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

QUESTION = "What is 15% of 240?"
LIMIT_S = 240
ASKED = {
    "codex": ("codex", "exec", "--skip-git-repo-check", QUESTION),
    "claude": ("claude", "-p", QUESTION),
    "cline": ("cline", "--data-dir", "data", QUESTION),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Listening]:
    with running_server_in_thread() as listening:
        yield listening


def find(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed here")
    return path


def run(words: Sequence[str], folder: Path, environ: Mapping[str, str]) -> str:
    """Run a program in `folder`, which is its home as well, and return what it prints."""
    told = {"PATH": os.environ["PATH"], "HOME": str(folder), **environ}
    done = subprocess.run(
        [find(words[0]), *words[1:]],
        cwd=folder,
        env=told,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def read_exports(text: str, environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables that the lines of a shell set."""
    rows = [shlex.split(line)[1].partition("=") for line in text.splitlines() if line.startswith("export ")]
    return {name: environ.get(value.removeprefix("$"), value) for name, _, value in rows}


@pytest.mark.parametrize("client", ASKED)
def test_a_client_that_is_set_up_as_told_gets_an_answer(
    client: str, server: Listening, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    find(client)
    environ = {"REASOND_TOKEN": server.token}
    install(client, url=server.http, model="reasond", home=tmp_path, environ=environ)
    told = capsys.readouterr().out
    if client == "claude":
        environ |= read_exports(told, environ)
    if client == "cline":
        words = shlex.split(told.partition("\n")[0].replace("$REASOND_TOKEN", server.token))
        run([*words, "--data-dir", "data"], tmp_path, environ)
    assert "36" in run(ASKED[client], tmp_path, environ)
