from __future__ import annotations

import pytest

from reasond import CheckRole, ResultFormat
from reasond_server.cli.commands.repair import describe_checks, list_checks
from reasond_server.cli.outcome import CommandError, ExitCode


@pytest.mark.parametrize(
    ("command", "argv", "form"),
    [
        ("pytest -q", ["pytest", "-q", "--junitxml={report}"], "JUNIT"),
        ("python3.12 -m pytest -q", ["python3.12", "-m", "pytest", "-q", "--junitxml={report}"], "JUNIT"),
        (".venv/bin/pytest 'a b'", [".venv/bin/pytest", "a b", "--junitxml={report}"], "JUNIT"),
        ("pytest --junitxml={report}", ["pytest", "--junitxml={report}"], "JUNIT"),
        ("python -m unittest -v", ["python", "-m", "unittest", "-v"], "EXIT_CODE"),
        ("go test ./...", ["go", "test", "-json", "./..."], "GO_JSON"),
        ("go test -json ./...", ["go", "test", "-json", "./..."], "GO_JSON"),
        ("go vet ./...", ["go", "vet", "./..."], "EXIT_CODE"),
        ("node --test tests/", ["node", "--test", "--test-reporter=tap", "tests/"], "TAP"),
        ("node --test --test-reporter=tap", ["node", "--test", "--test-reporter=tap"], "TAP"),
        ("make check", ["make", "check"], "EXIT_CODE"),
    ],
)
def test_known_runners_get_the_option_that_makes_them_report(command: str, argv: list[str], form: str) -> None:
    (check,) = list_checks([command])
    assert check.argv == argv
    assert ResultFormat.Name(check.format) == f"RESULT_FORMAT_{form}"
    assert check.role == CheckRole.CHECK_ROLE_REPRODUCE


def test_checks_have_names_and_roles_in_order() -> None:
    checks = list_checks(["a", "b"], regressions=["c"], held_out=["d", "fast"], known=["fast"])
    assert [check.name for check in checks] == ["test", "test-2", "regression", "held-out", "held-out-2"]
    assert checks[2].role == CheckRole.CHECK_ROLE_REGRESSION
    assert checks[3].role == CheckRole.CHECK_ROLE_HELD_OUT
    assert (checks[4].command, list(checks[4].argv)) == ("fast", [])
    assert [*describe_checks(checks)][3:] == ["held-out: d", "held-out-2: fast (of the server)"]


def test_a_form_that_is_named_leaves_the_commands_as_they_are() -> None:
    check, other, third = list_checks(["exit_code:pytest -q", "tap:unit", "other:x y"], known=["unit"])
    assert list(check.argv) == ["pytest", "-q"]
    assert check.format == ResultFormat.RESULT_FORMAT_EXIT_CODE
    assert (other.command, other.format) == ("unit", ResultFormat.RESULT_FORMAT_TAP)
    assert list(third.argv) == ["other:x", "y"]


@pytest.mark.parametrize(
    ("command", "message"),
    [("pytest 'open", "cannot be read"), ("  ", "--test is empty"), ("tap:", "--test is empty")],
)
def test_a_command_that_cannot_be_read_is_refused(command: str, message: str) -> None:
    with pytest.raises(CommandError) as caught:
        list_checks([command])
    assert message in caught.value.message
    assert caught.value.code is ExitCode.BAD_REQUEST
