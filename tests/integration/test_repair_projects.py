"""The projects in `tests/projects` are really repaired: a server, the sandbox of this machine, scripted replies."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reasond import AsyncClient, Check, CheckRole, SandboxLevel, Verification, repair_task
from reasond_server.testing import ScriptedModel, running_server
from tests.conftest import IN_CI

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from reasond.v1.repair_service_pb2 import RepairStepsResponse

FOLDER = Path(__file__).resolve().parents[1] / "projects"
GO_CACHE = FOLDER.parents[1] / ".cache" / "go-build"
LIMIT_S = 600.0
NO_EDIT = "I would have to think about it."


@dataclass(frozen=True, kw_only=True)
class Project:
    """A failing project: the programs that it needs, its environment, its checks, and a line with its two edits."""

    programs: Sequence[str]
    environment: Mapping[str, str]
    test: Sequence[str]
    held_out: Sequence[str]
    path: str
    line: str
    wrong: str
    right: str

    def write_edit(self, line: str) -> str:
        """Return a reply that replaces the faulty line."""
        return f"It is this line.\n\n{self.path}\n<<<<<<< SEARCH\n{self.line}\n=======\n{line}\n>>>>>>> REPLACE\n"


# Compiling the standard library takes half a minute: the operator prepares what that gives; go must write there, too.
_GO = f"cp -rs {GO_CACHE} $GOCACHE && go test -json -run"
# The compiler of two files ends before better machine code of it pays.
_JAVAC = "javac -J-XX:TieredStopAtLevel=1 -proc:none -d $TMPDIR/out Range.java RangeTest.java"
_JAVA = f"mkdir $TMPDIR/out && {_JAVAC} && java -cp $TMPDIR/out RangeTest {{report}}"
# Plugins that happen to be installed here took two thirds of the processor time of a check.
_PYTEST = ("python", "-m", "pytest", "-q", "--disable-plugin-autoload", "--junitxml={report}")
PROJECTS = {
    "python": Project(
        programs=(),
        environment={"preset": "python", "root": sys.prefix},
        test=[*_PYTEST, "tests/test_prices.py"],
        held_out=[*_PYTEST, "tests/test_more_prices.py"],
        path="prices.py",
        line="    return price * percent // 100",
        wrong="    return price - percent",
        right="    return price * (100 - percent) // 100",
    ),
    "node": Project(
        programs=("node",),
        environment={"preset": "node"},
        test=["node", "--test", "--test-reporter=tap", "slug.test.js"],
        held_out=["node", "--test", "--test-reporter=tap", "more.test.js"],
        path="slug.js",
        line='  return title.toLowerCase().replace(/[^a-z0-9]+/, "-").replace(/^-|-$/g, "");',
        wrong='  return title.toLowerCase().replace(/ /, "-");',
        right='  return title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");',
    ),
    "go": Project(
        programs=("go",),
        environment={"preset": "go", "root": str(GO_CACHE)},
        test=["sh", "-c", f"{_GO} TestThe ."],
        held_out=["sh", "-c", f"{_GO} TestAll ."],
        path="window.go",
        line="\tfor start := 0; start+size < len(values); start++ {",
        wrong="\tfor start := 0; start < len(values); start++ {",
        right="\tfor start := 0; start+size <= len(values); start++ {",
    ),
    "java": Project(
        programs=("javac", "java"),
        environment={"preset": "java"},
        test=["sh", "-c", _JAVA],
        held_out=["sh", "-c", f"{_JAVA} held-out"],
        path="Range.java",
        line="        return low <= value && value < high;",
        wrong="        return low < value && value <= high;",
        right="        return low <= value && value <= high;",
    ),
}


def read_files(name: str) -> dict[str, bytes]:
    """Return the files of a project; those that tools would take for ours have `.txt` behind their names."""
    root = FOLDER / name
    return {
        str(path.relative_to(root)).removesuffix(".txt"): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


async def work_out(name: str, files: Mapping[str, bytes], replies: Sequence[str]) -> list[RepairStepsResponse]:
    """Return the events of a repair of `files` in the environment of a project, whose model answers with `replies`."""
    project = PROJECTS[name]
    environ = {
        "REASOND__REPAIR__ENABLED": "true",
        **{f"REASOND__REPAIR__ENVIRONMENTS__{name}__{key}".upper(): text for key, text in project.environment.items()},
    }
    task = repair_task(
        files=files,
        environment=name,
        checks=[
            Check(name="unit", role=CheckRole.CHECK_ROLE_REPRODUCE, argv=project.test),
            Check(name="more", role=CheckRole.CHECK_ROLE_HELD_OUT, argv=project.held_out),
        ],
        config={"search": "greedy", "max_reflection_depth": 10},
    )
    with ScriptedModel(replies) as model:
        async with (
            running_server(model=model, environ=environ) as server,
            AsyncClient(server.grpc, token=server.token, timeout_s=LIMIT_S) as client,
        ):
            if (await client.list_environments()).level == SandboxLevel.SANDBOX_LEVEL_OFF:
                message = "no sandbox works here: install bubblewrap"
                pytest.fail(message) if IN_CI else pytest.skip(message)
            return [event async for event in client.repair_steps(task)]


def _fill_go_cache(go: str) -> None:
    GO_CACHE.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, "GOCACHE": str(GO_CACHE), "CGO_ENABLED": "0", "GOFLAGS": ""}
    command = [go, "test", "-json", "-run", "none", "."]
    subprocess.run(command, cwd=FOLDER / "go", env=environ, check=True, capture_output=True, timeout=LIMIT_S)


@pytest.mark.timeout(1_800)  # go compiles its library, unless the cache holds it
@pytest.mark.parametrize("name", PROJECTS)
async def test_a_project_is_repaired(name: str, required_program: Callable[[str], str]) -> None:
    project = PROJECTS[name]
    programs = [required_program(program) for program in project.programs]
    if name == "go":
        await asyncio.to_thread(_fill_go_cache, programs[0])
    replies = [project.write_edit(project.wrong), NO_EDIT, project.write_edit(project.right)]
    events = await work_out(name, read_files(name), replies)
    result = events[-1].completed
    assert result.is_accepted, result
    assert result.verification == Verification.VERIFICATION_HELD_OUT
    assert f"\n-{project.line}\n+{project.right}\n" in result.patch
    kinds = [kind for event in events if (kind := event.WhichOneof("event")) != "heartbeat"]
    assert kinds[:2] == ["started", "baseline"]
    reports = {report.name: report for event in events for report in event.baseline.reports}
    assert reports["unit"].failed
    scores = [event.critique.score for event in events if event.HasField("critique")]
    assert scores[0] <= 84 < scores[-1]


async def test_a_change_whose_patch_would_be_too_large_is_an_invalid_candidate() -> None:
    project, large = PROJECTS["python"], b"words\n" * 100_000
    reply = "large.txt\n<<<<<<< DELETE\n\nlarger.txt\n<<<<<<< DELETE\n"
    files = {**read_files("python"), "large.txt": large, "larger.txt": large}
    events = await work_out("python", files, [reply, project.write_edit(project.right)])
    first, *_ = [event.candidate for event in events if event.HasField("candidate")]
    assert "the limit is 1048576" in first.problem
    assert events[-1].completed.is_accepted
