"""Real sandboxes for tests: both levels, in a folder that the user of the jobs can reach too."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reasond_server.sandbox.levels import SandboxOptions, find_interpreter, open_sandbox
from reasond_server.sandbox.sandbox import ExecutionEnvironment, Job, SandboxLimits
from reasond_server.sandbox.scratch import find_marked
from reasond_server.types.repairs import SandboxLevel, SourceFile

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence

    from reasond_server.sandbox.levels import OpenedSandbox
    from reasond_server.sandbox.sandbox import JobOutcome

LEVELS = (SandboxLevel.BWRAP, SandboxLevel.LANDLOCK)
# Generous: the limits end what hangs, and a machine may be busy.
LIMITS = SandboxLimits(wall_s=120.0, cpu_s=120.0)
INTERPRETER, FOLDERS = find_interpreter(has_all=os.geteuid() != 0)
ENVIRONMENT = ExecutionEnvironment(name="python", also_readable=FOLDERS)


PROGRAMS = {
    "REASOND__REASONING__PROGRAM_ENVIRONMENT": "python",
    "REASOND__REPAIR__ENVIRONMENTS__PYTHON__PRESET": "python",
    "REASOND__REPAIR__ENVIRONMENTS__PYTHON__ROOT": sys.prefix,
}
"""Settings of a server that runs programs of models."""


def require_level(level: SandboxLevel) -> None:
    """Skip the test if bubblewrap is not installed; fail it if CI=true."""
    if level is SandboxLevel.BWRAP and shutil.which("bwrap") is None:
        message = "bwrap is not installed"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)


def _make_parent() -> Path:
    parent = Path(tempfile.mkdtemp(prefix="reasond-test-"))
    parent.chmod(0o711)
    return parent


@asynccontextmanager
async def running_sandbox(level: SandboxLevel) -> AsyncGenerator[OpenedSandbox, None]:
    """Open a sandbox of `level` while the context lasts."""
    require_level(level)
    # Folders of pytest are closed to other users, such as the one that jobs of root become.
    parent = _make_parent()
    try:
        opened = await open_sandbox(SandboxOptions(levels=(level,), folder=parent))
        try:
            assert opened.sandbox.level is level, opened.reason
            _note_marks(opened)
            yield opened
        finally:
            await opened.close()
    finally:
        shutil.rmtree(parent)


MARKS: dict[int, set[str]] = {}


def _note_marks(opened: OpenedSandbox) -> None:
    """Keep the marks of all jobs of `opened`, by which their processes are found even after they lost their parents."""
    make_job = opened._scratch.make_job
    marks = MARKS[id(opened)] = set()

    def note() -> tuple[int, Path]:
        mark, folder = make_job()
        marks.add(str(mark))
        return mark, folder

    opened._scratch.make_job = note  # type: ignore[method-assign] # one object of a test


def find_survivors(opened: OpenedSandbox) -> Iterator[int]:
    """Yield the processes of all jobs of `opened`, running ones and those that got away."""
    return find_marked(MARKS[id(opened)])


async def run_program(
    opened: OpenedSandbox,
    program: str,
    *arguments: str,
    files: Mapping[str, bytes] | None = None,
    limits: SandboxLimits = LIMITS,
    environment: ExecutionEnvironment = ENVIRONMENT,
    collect: Sequence[str] = (),
) -> JobOutcome:
    """Run a Python program in a new workspace that also holds `files`."""
    sources = [SourceFile(path=path, content=content) for path, content in (files or {}).items()]
    tree = await opened.workspaces.write_tree([*sources, SourceFile(path="program.py", content=program.encode())])
    async with tree.open_workspace({}, is_writable=environment.has_writable_sources) as folder:
        argv = (INTERPRETER, "-I", "program.py", *arguments)
        job = Job(argv=argv, folder=folder, environment=environment, limits=limits, collect=collect)
        outcome = await opened.sandbox.run(job)
    await tree.remove()
    return outcome
