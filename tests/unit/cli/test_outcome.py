from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reasond_server.cli.outcome import MEANINGS, CommandError, ExitCode, finish, warn
from reasond_server.errors.base import InternalError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable


GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "clients.md"


def raising(error: BaseException) -> Callable[[], ExitCode]:
    def command() -> ExitCode:
        raise error

    return command


def test_a_command_that_ends_well_gives_its_own_code() -> None:
    assert finish(lambda: ExitCode.LIMIT) == 5


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (
            CommandError("No server", remedy="Start one.", code=ExitCode.UNREACHABLE),
            7,
            "error: No server\n  Start one.\n",
        ),
        (SettingsError("Wrong key", remedy="Mend it."), 2, "error: Wrong key\n  Mend it.\n"),
        (InternalError("Odd"), 1, "error: Odd\n"),
        (KeyboardInterrupt(), 130, ""),
        (ModuleNotFoundError("no", name="grpc"), 1, "error: reasond cannot import grpc\n"),
        (ImportError("no"), 1, "error: reasond cannot import a module\n"),
        (KeyError("the password"), 1, "error: reasond met a fault of its own (KeyError)\n"),
    ],
)
def test_every_failure_is_a_code_and_words_without_a_traceback(
    error: BaseException, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert finish(raising(error)) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(words)
    assert "Traceback" not in err
    assert "the password" not in err


def test_whoever_asks_for_the_traceback_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REASOND_TRACEBACK", "1")
    with pytest.raises(KeyError):
        finish(raising(KeyError("x")))


def test_errors_and_warnings_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    finish(raising(CommandError("a\x1b[2J", remedy="b\x1b[2J")))
    warn("c\x1b[2J")
    assert "\x1b" not in capsys.readouterr().err


def test_codes_are_the_documented_ones() -> None:
    assert {code.name: code.value for code in ExitCode} == {
        "OK": 0,
        "FAILURE": 1,
        "BAD_REQUEST": 2,
        "NOT_ALLOWED": 3,
        "NOT_FOUND": 4,
        "LIMIT": 5,
        "MODEL": 6,
        "UNREACHABLE": 7,
        "NOT_ACCEPTED": 8,
        "NOT_APPLIED": 9,
        "NEEDS_REVIEW": 10,
        "INTERRUPTED": 130,
        "BROKEN_PIPE": 141,
    }


def test_help_and_guide_say_the_same_of_every_code() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [(str(code.value), MEANINGS[code]) for code in ExitCode]
