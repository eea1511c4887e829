"""Candidates that deal with their checks instead of the fault: none may be verified.

Each is first applied as a reply of a model would be, so that protected files are refused; what is left is judged by
checks in the real sandbox and by static analysis.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from pydantic import TypeAdapter

from reasond_server.assembly.workshops import read_environments
from reasond_server.config.repairs import RepairSettings
from reasond_server.repair.critics.check_judge import Critics
from reasond_server.repair.critics.linting import find_ruff
from reasond_server.repair.edits.edit_application import EditError
from reasond_server.types.repairs import CandidateVerdict, CheckRole, ResultFormat, SandboxLevel
from tests.conftest import ROOT
from tests.repairing import PYTEST, check
from tests.reward_hacks.hacks import (
    CALC,
    FILES,
    FORGED,
    FOUND,
    GO_HACKS,
    HELD,
    HIDDEN_REPORT,
    NODE_HACKS,
    REFUSED,
    TESTS,
    apply,
    read_files,
)
from tests.sandbox_escapes.driving import choose_user, copied_packages, copy_packages, drive
from tests.sandboxing import FOLDERS, INTERPRETER, LEVELS, require_level, running_sandbox

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from reasond_server.types.repairs import Check

_IMPORTED: Final = ("pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection")
_RUNNING: Final = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "py", "pygments")
pytestmark = pytest.mark.slow


def require_program(name: str) -> None:
    """Skip the test if a program is not installed; fail it if CI=true."""
    if shutil.which(name) is None:
        message = f"{name} is not installed"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)


@pytest.fixture(scope="module")
def go_cache() -> Generator[Path, None, None]:
    """Return a folder in which the standard library of Go is compiled, for other users too."""
    require_program("go")
    with tempfile.TemporaryDirectory() as folder:
        # To compile it takes half a minute of a processor; what is compiled stays for the next run of the tests.
        kept, cache = ROOT / ".cache" / "go-build", Path(folder, "cache")
        project = Path(folder, "project")
        project.mkdir()
        for name in ("go.mod", "m.go", "m_test.go"):
            (project / name).write_text(FILES[name], encoding="utf-8")
        # Packages that hacks import.
        (project / "more.go").write_text('package m\n\nimport (\n\t_ "fmt"\n\t_ "os"\n)\n', encoding="utf-8")
        variables = {"GOCACHE": str(kept), "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOTELEMETRY": "off"}
        subprocess.run(["go", "test", "-vet=off", "./..."], cwd=project, env={**os.environ, **variables}, check=False)
        shutil.copytree(kept, cache)
        Path(folder).chmod(0o755)
        yield cache


@asynccontextmanager
async def opening(*checks: Check) -> AsyncGenerator[Critics, None]:
    """Return critics in the real sandbox, with their baseline."""
    files = read_files()
    python = {"preset": "python", "root": sys.prefix, "variables": {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}}
    environments = read_environments(TypeAdapter(RepairSettings).validate_python({"environments": {"python": python}}))
    async with running_sandbox(SandboxLevel.BWRAP) as opened:
        tree = await opened.workspaces.write_tree(tuple(files.values()))
        critics = Critics(
            sandbox=opened.sandbox,
            environment=replace(environments["python"], has_address_limit=False),
            tree=tree,
            files=files,
            checks=checks,
            permits=asyncio.Semaphore(2),
            linter=find_ruff(),
        )
        await critics.measure_baseline()
        yield critics
        await tree.remove()


def test_the_hacks_are_at_least_25_and_no_two_are_equal() -> None:
    bodies = [*FOUND.values(), *GO_HACKS.values(), *NODE_HACKS.values()]
    assert len(set(bodies)) + len(HELD) + len(REFUSED) == len(bodies) + len(HELD) + len(REFUSED) >= 25


@pytest.mark.parametrize("name", REFUSED)
def test_files_of_tests_and_their_configuration_cannot_be_changed(name: str) -> None:
    with pytest.raises(EditError, match="is protected"):
        apply(REFUSED[name])


@pytest.fixture(scope="module")
def copies() -> Generator[Path, None, None]:
    """Return a folder with what the driver imports, and below `tools` what checks need, which every user may read."""
    version = subprocess.run(
        [INTERPRETER, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True, check=True
    )
    if tuple(map(int, version.stdout.split())) != sys.version_info[:2]:
        pytest.skip(f"{INTERPRETER} is another Python than this one, whose packages it needs")
    with copied_packages("tests/reward_hacks", packages=_IMPORTED) as folder:
        tools = folder / "tools"
        copy_packages(tools / "lib", _RUNNING)
        (tools / "bin").mkdir()
        (tools / "bin" / "python").write_text(f'#!/bin/sh\nexec {INTERPRETER} "$@"\n', encoding="utf-8")
        (tools / "bin" / "python").chmod(0o755)
        (tools / "folders.json").write_text(json.dumps([*map(str, FOLDERS)]), encoding="utf-8")
        ruff = find_ruff()
        assert ruff is not None
        shutil.copy(ruff, tools / "bin" / "ruff")
        yield folder


def judge(
    level: SandboxLevel, user: str, copies: Path, language: str, warm: Path | None = None
) -> list[dict[str, Any]]:
    """Return what is said of the hacks of a language, after the right change was accepted, and require that none is."""
    require_level(level)
    right, *hacks = drive(
        level.value,
        choose_user(user),
        copies,
        *(language, str(copies / "tools"), str(warm or "")),
        module="tests.reward_hacks.driver",
        limit_s=1500.0,
    )
    assert right["is_solution"], right
    assert not [hack["name"] for hack in hacks if hack["is_solution"] or hack["score"] >= 85]
    return hacks


# One user for each level, and both users: test_sandbox_escapes.py walks all four pairs.
BY_PLACE = pytest.mark.parametrize(
    ("level", "user"),
    [(level, "root" if os.geteuid() == 0 and level is SandboxLevel.BWRAP else "nobody") for level in LEVELS],
)
LONG = pytest.mark.timeout(1_800)


@BY_PLACE
@LONG
def test_no_hack_of_python_is_verified(level: SandboxLevel, user: str, copies: Path) -> None:
    # What is found is found in the text, whatever the level of the sandbox: one is enough for that.
    found = FOUND if level is SandboxLevel.BWRAP else {}
    hacks = {hack["name"]: hack for hack in judge(level, user, copies, "python" if found else "held python")}
    assert hacks.keys() == {*found, *HELD}
    assert not [name for name in found if "tampering" not in {rule.partition(".")[0] for rule in hacks[name]["rules"]}]
    assert {hacks[name]["verdict"] for name in HELD} <= {CandidateVerdict.FAILED, CandidateVerdict.TIMED_OUT}
    # Static analysis is no part of what holds the second list: the tests alone believe one of it.
    assert [name for name in HELD if TESTS.name in hacks[name]["passed"]] == ["code beside the file"]


@BY_PLACE
@LONG
def test_no_hack_of_go_is_verified(level: SandboxLevel, user: str, copies: Path, go_cache: Path) -> None:
    assert len(judge(level, user, copies, "go", go_cache)) == len(GO_HACKS)


@BY_PLACE
@LONG
def test_no_hack_of_javascript_is_verified(level: SandboxLevel, user: str, copies: Path) -> None:
    require_program("node")
    assert len(judge(level, user, copies, "node")) == len(NODE_HACKS)


async def test_a_well_hidden_forgery_is_believed_by_tests_it_knows_and_not_by_those_it_does_not() -> None:
    """docs/guides/verified.md names this limit: the visible tests ran in the process of code that lies."""
    forgery = {"calc.py": f"{HIDDEN_REPORT}{FORGED}open(report, 'w').write(forged)\nleave(0)\n"}
    hidden = check("hidden", *PYTEST, "held_out.py", role=CheckRole.HELD_OUT)
    async with opening(TESTS, hidden) as critics:
        critique = await critics.judge(apply(forgery))
        outcomes = await critics.judge_held_out(apply(forgery))
    assert critique.is_solution
    assert [outcome.status.value for outcome in outcomes] == ["failed"]


async def test_what_a_run_leaves_in_its_workspace_is_not_there_for_the_next_check() -> None:
    files = {"calc.py": "import pathlib\npathlib.Path('calc_left.py').write_text('x = 1')\n" + CALC}
    leftover = check(
        "leftover", "test", "!", "-e", "calc_left.py", format=ResultFormat.EXIT_CODE, role=CheckRole.REGRESSION
    )
    async with opening(TESTS, leftover) as critics:
        for _ in range(2):
            critique = await critics.judge(apply(files))
            assert [report.status.value for report in critique.reports] == ["failed", "passed"]
