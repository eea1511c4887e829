"""Ruff as a critic: severities, what it does not believe, and what is no Python."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.repair.critics.linting import LintCritic, find_ruff, rate_rule
from reasond_server.sandbox.sandbox import SandboxFailedError
from reasond_server.types.repairs import Severity
from tests.repairing import FolderTree, LocalRunner, ScriptedRunner, end_job, source_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.types.repairs import Finding


async def lint(
    changes: Mapping[str, str | None], sandbox: LocalRunner | ScriptedRunner | None = None
) -> Sequence[Finding]:
    program = find_ruff()
    assert program is not None
    tree = FolderTree(source_files({"pyproject.toml": "[tool.ruff.lint]\nselect = []\n"}))
    critic = LintCritic(program=program, sandbox=sandbox or LocalRunner(), tree=tree, permits=asyncio.Semaphore(1))
    contents = {path: None if text is None else text.encode() for path, text in changes.items()}
    return await critic.review({}, contents)


@pytest.mark.parametrize(
    ("rule_id", "severity"),
    [
        ("E902", Severity.HIGH),
        ("invalid-syntax", Severity.HIGH),
        ("F632", Severity.HIGH),
        ("F706", Severity.HIGH),
        ("F821", Severity.HIGH),
        ("F401", Severity.MEDIUM),
        ("B006", Severity.MEDIUM),
        ("S102", Severity.MEDIUM),
        ("E501", Severity.LOW),
        ("W291", Severity.LOW),
        ("SIM102", Severity.LOW),
        ("FBT001", Severity.LOW),
    ],
)
def test_rules_are_rated_as_the_design_says(rule_id: str, severity: Severity) -> None:
    assert rate_rule(rule_id) is severity


async def test_findings_have_rule_file_and_line() -> None:
    found = await lint({"pkg/a.py": "import os\n\n\ndef f(x=[]):\n    return undefined\n"})
    assert {(one.rule_id, one.path, one.line) for one in found} == {
        ("F401", "pkg/a.py", 1),
        ("B006", "pkg/a.py", 4),
        ("F821", "pkg/a.py", 5),
    }


@pytest.mark.parametrize(
    "text",
    [
        "x = undefined  # noqa\n",
        "# ruff: noqa\nx = undefined\n",
        "# flake8: noqa\nx = undefined\n",
        "# ruff: disable[F821]\nx = undefined\n# ruff: enable[F821]\n",
    ],
)
async def test_neither_comments_nor_settings_of_the_candidate_switch_a_rule_off(text: str) -> None:
    assert [one.rule_id for one in await lint({"a.py": text, "ruff.toml": "lint.ignore = ['F821']\n"})] == ["F821"]


async def test_what_is_no_python_of_any_version_is_high_and_new_syntax_is_not() -> None:
    assert all(one.severity is Severity.HIGH for one in await lint({"a.py": "def f(:\n"}))
    assert not await lint({"a.py": "type Pair[T] = tuple[T, T]\nx = t'{1}'\n"})


async def test_names_that_look_like_options_are_names_of_files() -> None:
    (found,) = await lint({"--fix.py": "x = undefined\n"})
    assert found.path == "--fix.py"


async def test_only_changed_python_files_that_are_still_there_are_given_to_it() -> None:
    sandbox = LocalRunner()
    assert not await lint({"a.go": "package a", "gone.py": None}, sandbox)
    assert not sandbox.jobs
    await lint({"a.py": "x = 1\n", "b.js": "x"}, sandbox)
    assert sandbox.jobs[0].argv[-2:] == ("--", "a.py")


@pytest.mark.parametrize("report", ["{}", "[1]", "no json", '[{"code": "F821"}]', "[" * 100_000])
async def test_a_report_that_cannot_be_read_is_a_failure_of_the_critic(report: str) -> None:
    if report == "{}":
        assert not await lint({"a.py": "x"}, ScriptedRunner(end_job(0, report=report)))
        return
    with pytest.raises(SandboxFailedError):
        await lint({"a.py": "x"}, ScriptedRunner(end_job(0, report=report)))
    with pytest.raises(SandboxFailedError):
        await lint({"a.py": "x"}, ScriptedRunner(end_job(2, report="[]")))


@pytest.mark.parametrize("outcome", [end_job(0), end_job(137, exceeded="wall_s"), end_job(1, exceeded="memory_bytes")])
async def test_a_file_that_ruff_cannot_judge_is_a_high_finding_and_no_failure_of_the_critic(outcome: Any) -> None:
    (found,) = await lint({"a.py": "x"}, ScriptedRunner(outcome))
    assert (found.severity, found.path, found.line) == (Severity.HIGH, "a.py", 0)


async def test_more_findings_than_are_read_are_such_a_file() -> None:
    (found,) = await lint({"a.py": "x = [" + "undefined,\n" * 60_000 + "]\n"})
    assert "within its limits" in found.message


def test_ruff_is_found_beside_this_interpreter() -> None:
    program = find_ruff()
    assert program is not None
    assert Path(program).is_absolute()
