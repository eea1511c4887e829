"""The commands by name: listed without an import, imported when one of them is resolved."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest
from typer.main import get_group
from typer.testing import CliRunner

from reasond_server.cli.program import COMMANDS, app

LISTED = """
import sys
from typer.testing import CliRunner
from reasond_server.cli.program import app
print(CliRunner().invoke(app, {words!r}, prog_name="reasond").output)
print(sorted(name.removeprefix("reasond_server.cli.commands.") for name in sys.modules if "cli.commands" in name))
"""


def run(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("words", [["--help"], ["nonsense"], ["--version"]])
def test_no_command_is_imported_before_one_is_named(words: list[str]) -> None:
    assert run(LISTED.format(words=words))[-1] == "[]"


def test_a_command_imports_its_own_module_alone() -> None:
    assert run(LISTED.format(words=["migrate", "--help"]))[-1] == "['migrate', 'reasond_server.cli.commands']"


def test_every_command_is_in_its_module_and_every_module_has_no_other() -> None:
    for module in {module for module, _ in COMMANDS.values()}:
        named = {name for name, (place, _) in COMMANDS.items() if place == module}
        assert set(get_group(import_module(f"reasond_server.cli.commands.{module}").app).commands) == named


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_group_has_a_help(name: str) -> None:
    done = CliRunner().invoke(app, [name, "--help"], prog_name="reasond")
    assert done.exit_code == 0
    assert done.output.startswith(f"Usage: reasond {name} ")
    assert done.output.splitlines()[2].strip()


def test_a_typing_error_still_gets_the_nearest_command() -> None:
    done = CliRunner().invoke(app, ["executons"], prog_name="reasond")
    assert done.exit_code == 2
    assert "Did you mean 'executions'?" in done.output


def test_a_command_that_cannot_be_imported_says_what_is_missing() -> None:
    code = "import sys; sys.modules['grpc'] = None; from reasond_server.cli import main; main()"
    words = ["strategies", "--help"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[0] == "error: reasond cannot import grpc"
    assert "Install reasond-server again" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        *(["ask", "--timeout", seconds, "Why?"] for seconds in ("-1", "0", "nan", "-inf", "soon")),
        ["repair", "--timeout", "-1", "."],
        ["eval", "--timeout", "0", "questions.jsonl"],
        ["turn", "--timeout", "-0.5", "Why?"],
        ["ask", "--max-output-tokens", "0", "Why?"],
        ["ask", "--max-output-tokens", str(10**10), "Why?"],
        ["executions", "follow", "abc", "--after", str(10**10)],
        ["executions", "follow", "abc", "--after", "-1"],
        ["eval", "--item-tokens", str(10**10), "questions.jsonl"],
        ["serve", "--workers", "0"],
        ["serve", "--workers", "65"],
    ],
    ids=" ".join,
)
def test_a_number_that_an_option_cannot_take_is_refused_by_the_name_of_the_option(words: list[str]) -> None:
    done = CliRunner().invoke(app, words, prog_name="reasond")
    option = next(word for word in words if word.startswith("--"))
    assert (done.exit_code, f"Invalid value for '{option}'" in done.output) == (2, True), done.output
