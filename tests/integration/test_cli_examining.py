"""The commands that examine the configuration and the machine, as a user runs them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reasond_server.cli.outcome import ExitCode
from tests.forking import run_forked

if TYPE_CHECKING:
    from collections.abc import Callable
    from subprocess import CompletedProcess

    Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def run() -> Run:
    """Return a function that runs a command; its output must never contain a traceback."""

    def run_one(
        *arguments: str, environ: dict[str, str] | None = None, folder: Path = Path(os.sep)
    ) -> CompletedProcess[str]:
        done = run_forked(*arguments, environ={**os.environ, **(environ or {})}, folder=folder)
        assert "Traceback" not in done.stderr + done.stdout
        return done

    return run_one


def test_config_check_and_show_answer(tmp_path: Path, run: Run) -> None:
    assert run("config", "check").returncode == 2
    assert run("config", "check", "--dev").returncode == 0
    (tmp_path / "config.toml").write_text("[server]\ndrain_delay_s = 1.5\n", "utf-8")
    shown = run("config", "show", "--origin", folder=tmp_path)
    assert "server.drain_delay_s = 1.5" in shown.stdout
    assert "# file config.toml" in shown.stdout
    assert json.loads(run("config", "show", "--json").stdout)["server.tls"] == "off"


def test_doctor_finds_nothing_wrong_here(run: Run) -> None:
    done = run("doctor")
    assert done.returncode == 0, done.stdout
    assert "ok    sqlite" in done.stdout


def test_serve_names_all_that_is_wrong_at_once(tmp_path: Path, run: Run) -> None:
    mistakes = {
        "REASOND__SERVER__TLS": "on",
        "REASOND__TOOLS__ENABLED": '["clock"]',
        "REASOND__LLM__PROVIDER": "openai",
    }
    for options in ((), ("--workers", "2")):
        done = run("serve", *options, environ=mistakes, folder=tmp_path)
        assert done.returncode == ExitCode.BAD_REQUEST
        for words in (
            "server.tls: must be one of",
            "'clock', which is not installed",
            "llm.model: is empty",
            "auth.keys: ",
        ):
            assert done.stderr.count(words) == 1
