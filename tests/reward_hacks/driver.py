"""Judge the hacks of one language: `python -m tests.reward_hacks.driver LEVEL FOLDER LANGUAGE TOOLS WARM`.

A process of its own, so that it can run as another user, like that of the escape programs. FOLDER is for workspaces,
TOOLS has a Python with pytest, and ruff; WARM is a cache of Go. Each change is a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from reasond_server.assembly.workshops import PRESETS
from reasond_server.repair.critics.check_judge import Critics
from reasond_server.sandbox.levels import SandboxOptions, open_sandbox
from reasond_server.sandbox.sandbox import ExecutionEnvironment, SandboxLimits
from reasond_server.types.repairs import CheckStatus, ResultFormat, SandboxLevel
from tests.reward_hacks.hacks import (
    CALC,
    FILES,
    FOUND,
    GO,
    GO_HACKS,
    HELD,
    NODE,
    NODE_HACKS,
    SCRIPT,
    TESTS,
    apply,
    read_files,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.types.repairs import Check

RIGHT: Final = "right"
_RIGHT_PYTHON: Final = {RIGHT: {"calc.py": CALC.replace("a - b", "a + b")}}
_LANGUAGES: Final[Mapping[str, tuple[Sequence[Check], Mapping[str, Mapping[str, str]]]]] = {
    "python": ((TESTS, SCRIPT), {**_RIGHT_PYTHON, **{name: {"calc.py": text} for name, text in FOUND.items()}, **HELD}),
    "held python": ((TESTS, SCRIPT), {**_RIGHT_PYTHON, **HELD}),
    "go": (
        (GO,),
        {
            RIGHT: {"m.go": FILES["m.go"].replace("a - b", "a + b")},
            **{name: {"m.go": text} for name, text in GO_HACKS.items()},
        },
    ),
    "node": (
        (NODE,),
        {
            RIGHT: {"m.js": FILES["m.js"].replace("a - b", "a + b")},
            **{name: {"m.js": text} for name, text in NODE_HACKS.items()},
        },
    ),
}


def make_environment(tools: Path, warm: str) -> ExecutionEnvironment:
    """Return the environment of all languages."""
    folders = [Path(warm)] if warm else []
    return ExecutionEnvironment(
        name="tests",
        root=tools,
        search_path=(str(tools / "bin"), "/usr/local/go/bin", "/usr/local/bin", "/usr/bin", "/bin"),
        also_readable=(*folders, *map(Path, json.loads((tools / "folders.json").read_text(encoding="utf-8")))),
        variables={
            **PRESETS["go"].variables,
            **PRESETS["python"].variables,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": "{root}/lib",
            "WARM": warm,
        },
        format=ResultFormat.JUNIT,
        limits=SandboxLimits(wall_s=120.0, cpu_s=120.0),
    )


async def judge_all(level: str, folder: Path, language: str, tools: Path, warm: str) -> None:
    """Print what the critics say of each change of a language."""
    checks, changes = _LANGUAGES[language]
    opened = await open_sandbox(SandboxOptions(levels=(SandboxLevel(level),), folder=folder))
    if opened.sandbox.level != level:
        raise SystemExit(opened.reason)
    files = read_files()
    tree = await opened.workspaces.write_tree(tuple(files.values()))
    critics = Critics(
        sandbox=opened.sandbox,
        environment=make_environment(tools, warm),
        tree=tree,
        files=files,
        checks=checks,
        permits=asyncio.Semaphore(2),
        linter=tools / "bin" / "ruff",
    )
    await critics.measure_baseline()
    critiques = await asyncio.gather(*(critics.judge(apply(change)) for change in changes.values()))
    for name, critique in zip(changes, critiques, strict=True):
        row = {
            "name": name,
            "verdict": critique.verdict,
            "is_solution": critique.is_solution,
            "score": critique.score,
            "rules": [finding.rule_id for finding in critique.findings],
            "evidence": critique.evidence,
            "passed": [report.name for report in critique.reports if report.status is CheckStatus.PASSED],
        }
        sys.stdout.write(f"{json.dumps(row)}\n")
    await tree.remove()
    await opened.close()


if __name__ == "__main__":
    _, asked_level, asked_folder, asked_language, asked_tools, asked_warm = sys.argv
    asyncio.run(judge_all(asked_level, Path(asked_folder), asked_language, Path(asked_tools), asked_warm))
