"""The checks of `reasond repair`: commands as the user types them, with the option that makes them report."""

from __future__ import annotations

import shlex
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from reasond import Check, CheckRole, ResultFormat
from reasond_server.cli.outcome import usage_error

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

REPORT: Final = "{report}"
"""Stands in a command for the path of its report, which the server chooses."""

FORMATS: Final = {
    "junit": ResultFormat.RESULT_FORMAT_JUNIT,
    "go_json": ResultFormat.RESULT_FORMAT_GO_JSON,
    "tap": ResultFormat.RESULT_FORMAT_TAP,
    "exit_code": ResultFormat.RESULT_FORMAT_EXIT_CODE,
}
_ROLES: Final = {
    "test": CheckRole.CHECK_ROLE_REPRODUCE,
    "regression": CheckRole.CHECK_ROLE_REGRESSION,
    "held-out": CheckRole.CHECK_ROLE_HELD_OUT,
}


def list_checks(
    tests: Sequence[str],
    *,
    regressions: Sequence[str] = (),
    held_out: Sequence[str] = (),
    known: Collection[str] = (),
) -> Sequence[Check]:
    """Return the checks in this order; a command of one word that is in `known` is one of the server.

    A command may begin with how it reports: `tap:prove -v`. Else that is told by its program.

    Raises:
        CommandError: a command has no words or an open quote.
    """
    commands = {"test": tests, "regression": regressions, "held-out": held_out}
    return [
        _make_check(name if number == 1 else f"{name}-{number}", _ROLES[name], text, known=known)
        for name, texts in commands.items()
        for number, text in enumerate(texts, start=1)
    ]


def describe_checks(checks: Sequence[Check]) -> Iterator[str]:
    """Yield a line for each check: its name, and the command that the server will run."""
    for check in checks:
        yield f"{check.name}: {shlex.join(check.argv) if check.argv else f'{check.command} (of the server)'}"


def _make_check(name: str, role: CheckRole.ValueType, text: str, *, known: Collection[str]) -> Check:
    form, colon, rest = text.partition(":")
    has_form = bool(colon) and form in FORMATS
    try:
        words = shlex.split(rest if has_form else text)
    except ValueError as error:
        raise usage_error(f"the command {text[:80]!r} cannot be read: {error}", "Quote it as in a shell.") from None
    if not words:
        raise usage_error(f"--{name} is empty", 'Such as --test "pytest -q".')
    if len(words) == 1 and words[0] in known:
        check = Check(name=name, role=role, command=words[0])
    else:
        argv, result_format = (words, FORMATS[form]) if has_form else _add_report(words)
        check = Check(name=name, role=role, argv=argv, format=result_format)
    if has_form:
        check.format = FORMATS[form]
    return check


def _add_report(words: list[str]) -> tuple[list[str], ResultFormat.ValueType]:
    """Return the command with the option that makes a known runner report its tests, and the form of the report."""
    program = PurePath(words[0]).name
    is_module = program.startswith("python") and "-m" in words
    if any(REPORT in word for word in words):
        return words, FORMATS["junit"]
    if program in {"pytest", "py.test"} or (is_module and words[words.index("-m") + 1 :][:1] == ["pytest"]):
        return [*words, f"--junitxml={REPORT}"], FORMATS["junit"]
    if program == "go" and words[1:2] == ["test"]:
        return words if "-json" in words else [*words[:2], "-json", *words[2:]], FORMATS["go_json"]
    if program == "node" and "--test" in words:
        place = words.index("--test") + 1
        has_reporter = any(word.startswith("--test-reporter") for word in words)
        return words if has_reporter else [*words[:place], "--test-reporter=tap", *words[place:]], FORMATS["tap"]
    return words, FORMATS["exit_code"]
