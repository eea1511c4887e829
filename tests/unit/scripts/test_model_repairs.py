"""Projects with a fault: what counts as a fix of the plain question, and of a repair."""

from __future__ import annotations

import ast
import json
from argparse import Namespace
from typing import TYPE_CHECKING

import pytest

from benchmarks.model_repairs import CHECK, PROJECTS, Figures, Project, ask_plainly, repair
from benchmarks.prompts import RecordedModel
from reasond_server.testing import FunctionModel
from tests.repairing import ScriptedRunner, build_critics, end_job, junit, source_files

if TYPE_CHECKING:
    from reasond_server.sandbox.sandbox import Job, JobOutcome

RIGHT = "def double(x):\n    return 2 * x\n"
FILES = {
    "double.py": "def double(x):\n    return x\n",
    "test_double.py": "from double import double\n\n\ndef test_double():\n    assert double(2) == 4\n",
}


def test_each_project_has_a_file_and_tests_of_it() -> None:
    rows = [json.loads(line) for line in PROJECTS.read_text("utf-8").splitlines()]
    assert len({row["name"] for row in rows}) == len(rows) == 20
    for row in rows:
        code, tests = ast.parse(row["code"]), ast.parse(row["tests"])
        assert ast.get_docstring(code)
        assert row["name"] in {each.name for each in code.body if isinstance(each, ast.FunctionDef)}
        assert sum(isinstance(each, ast.FunctionDef) for each in tests.body) >= 5


def run(job: Job) -> JobOutcome:
    """Say what the test would say of the file."""
    is_right = (job.folder / "double.py").read_text("utf-8").rstrip().endswith("return 2 * x")
    return end_job(int(not is_right), report=junit(test_double="passed" if is_right else "failed"))(job)


@pytest.mark.parametrize(
    ("reply", "plainly", "repaired"),
    [
        (f"double.py\n```python\n{RIGHT}```\n", (1, 0, 0), (1, 0, 0)),
        (f"twice.py\n```python\n{RIGHT}```\n", (1, 0, 0), (0, 0, 1)),
        (f"double.py\n```python\n{RIGHT}```\nNot:\n```python\ndef double(x): return x\n```\n", (0, 0, 1), (1, 0, 0)),
        ("Return twice x.", (0, 1, 0), (0, 1, 0)),
    ],
)
async def test_replies_are_counted_by_what_they_hold_and_by_what_was_read_of_them(
    reply: str, plainly: tuple[int, int, int], repaired: tuple[int, int, int]
) -> None:
    options = Namespace(max_tokens=500, temperature=0.0, calls=3)
    critics = build_critics(FILES, [CHECK], sandbox=ScriptedRunner(run))
    await critics.measure_baseline()
    project = Project(path="double.py", files=source_files(FILES), critics=critics, evidence="assert 2 == 4")
    for work, wanted in ((ask_plainly, plainly), (repair, repaired)):
        model, figures = FunctionModel(lambda _: reply), Figures(way="", projects=1)
        await work(project, RecordedModel(model=model, record={}, path=None), figures, options)
        assert (figures.fixed, figures.unusable, figures.not_taken) == wanted
