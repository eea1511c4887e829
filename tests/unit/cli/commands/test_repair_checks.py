from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reasond import CheckRole, Finding, Repair, ResultFormat, Verification
from reasond_server.cli.commands.repair import RepairOptions, conclude, describe_checks, list_checks, set_limits
from reasond_server.cli.outcome import CommandError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


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


def test_limits_are_those_of_a_check_or_of_all() -> None:
    checks = list_checks(["pytest", "true"], held_out=["true"])
    set_limits(checks, ["30", "test-2=1.5"])
    assert [check.timeout.ToMilliseconds() for check in checks] == [30_000, 1_500, 30_000]


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("soon", "has no seconds"),
        ("test=0", "has no seconds"),
        ("inf", "has no seconds"),
        ("", "has no seconds"),
        ("unit=3", "names no check"),
    ],
)
def test_a_limit_that_cannot_be_read_is_refused(limit: str, message: str) -> None:
    with pytest.raises(CommandError, match=message):
        set_limits(list_checks(["pytest"]), [limit])


@pytest.mark.parametrize(
    ("allowed", "code"),
    [
        ((), ExitCode.NEEDS_REVIEW),
        (("calc.py:3",), ExitCode.NEEDS_REVIEW),
        (("calc.py:3", "test_files"), ExitCode.OK),
        (("calc.py",), ExitCode.OK),
        (("tampering.arguments", "tampering.test_files"), ExitCode.OK),
        (("calc.py:4", "other.py"), ExitCode.NEEDS_REVIEW),
    ],
)
def test_lines_that_need_review_have_an_exit_code_until_each_is_allowed(
    allowed: Sequence[str], code: ExitCode, tmp_path: Path
) -> None:
    lines = [
        Finding(rule_id="tampering.arguments", path="calc.py", line=3, message="uses sys.argv"),
        Finding(rule_id="tampering.test_files", path="calc.py", line=9, message="names a file of the tests"),
    ]
    (tmp_path / "calc.py").write_text("a\n")
    patch = "diff --git a/calc.py b/calc.py\n--- a/calc.py\n+++ b/calc.py\n@@ -1 +1 @@\n-a\n+b\n"
    checked = Verification.VERIFICATION_VISIBLE_ONLY
    result = Repair(execution_id="r-1", is_accepted=True, patch=patch, suspect_lines=lines, verification=checked)
    options = RepairOptions(root=tmp_path, allowed=allowed, is_applied=True)
    assert conclude(options, tmp_path, result) is code
    assert (tmp_path / "calc.py").read_text() == ("b\n" if code is ExitCode.OK else "a\n")


@pytest.mark.parametrize(("allowed", "code"), [((), ExitCode.NEEDS_REVIEW), (("unchecked",), ExitCode.OK)])
def test_a_patch_of_which_nothing_was_run_needs_review(allowed: Sequence[str], code: ExitCode, tmp_path: Path) -> None:
    result = Repair(is_accepted=True, patch="x", verification=Verification.VERIFICATION_NONE)
    assert conclude(RepairOptions(root=tmp_path, allowed=allowed), tmp_path, result) is code
