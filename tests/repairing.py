"""Repairs in tests: files in a folder, checks that run, and a runner without a sandbox where none is needed."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from reasond_server.repair.critics.check_judge import Critics
from reasond_server.repair.edits import patches
from reasond_server.repair.results.result_parser import MAX_REPORT_BYTES
from reasond_server.sandbox.sandbox import ExecutionEnvironment, JobOutcome, SandboxFailedError
from reasond_server.types.repairs import Check, CheckRole, ResultFormat, SandboxLevel, SourceFile

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
    from typing import Any

    import pytest

    from reasond_server.sandbox.sandbox import Job

BIN = Path(sys.executable).parent
PYTEST = ("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml={report}")
ENVIRONMENT = ExecutionEnvironment(
    name="python",
    root=BIN.parent,
    search_path=(str(BIN), "/usr/local/bin", "/usr/bin", "/bin"),
    variables={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"},
    format=ResultFormat.JUNIT,
)


def source_files(files: Mapping[str, str]) -> Mapping[str, SourceFile]:
    """Return files by path from their texts."""
    return {path: SourceFile(path=path, content=text.encode()) for path, text in files.items()}


def check(name: str, *argv: str, role: CheckRole = CheckRole.REPRODUCE, **options: Any) -> Check:
    """Return a check; without a command it runs all tests with pytest."""
    return Check(name=name, role=role, argv=argv or PYTEST, **options)


class FolderTree:
    """A SourceTree that writes all files for each workspace."""

    def __init__(self, files: Mapping[str, SourceFile]) -> None:
        self._files = files

    @asynccontextmanager
    async def open_workspace(
        self,
        changes: Mapping[str, bytes | None],
        *,
        is_writable: bool = False,  # noqa: ARG002 - always
    ) -> AsyncGenerator[Path]:
        contents = {path: file.content for path, file in self._files.items()} | dict(changes)
        with tempfile.TemporaryDirectory() as folder:
            for path, content in contents.items():
                place = Path(folder, path)
                if content is not None:
                    _write(place, content)
            yield Path(folder)

    async def remove(self) -> None:
        """There is nothing to remove."""


class LocalRunner:
    """Runs jobs as plain processes of this machine: for commands that the test itself wrote."""

    level = SandboxLevel.BWRAP

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    async def run(self, job: Job) -> JobOutcome:
        self.jobs.append(job)
        environment = job.environment
        path = os.pathsep.join(environment.search_path)
        variables = {"PATH": path, "HOME": str(job.folder), **environment.variables}
        program = shutil.which(job.argv[0], path=path)
        started = time.monotonic()
        if program is None:
            return JobOutcome(exit_code=127, output=b"not found", elapsed_s=0.0, cpu_s=0.0)
        process = await asyncio.create_subprocess_exec(
            program,
            *job.argv[1:],
            cwd=job.folder,
            env=variables,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        exceeded = ""
        try:
            async with asyncio.timeout(job.limits.wall_s):
                output, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            output, _ = await process.communicate()
            exceeded = "wall_s"
        code = process.returncode or 0
        return JobOutcome(
            exit_code=128 - code if code < 0 else code,
            output=output[: job.limits.output_bytes],
            is_output_cut=len(output) > job.limits.output_bytes,
            exceeded=exceeded,
            collected={name: found for name in job.collect if (found := _collect(job.folder, name)) is not None},
            elapsed_s=time.monotonic() - started,
            cpu_s=0.01,
        )


class ScriptedRunner:
    """A Sandbox that answers with prepared outcomes, in order; the last one stays."""

    level = SandboxLevel.BWRAP

    def __init__(self, *outcomes: JobOutcome | Exception | Callable[[Job], JobOutcome]) -> None:
        self._outcomes = list(outcomes)
        self.jobs: list[Job] = []

    async def run(self, job: Job) -> JobOutcome:
        self.jobs.append(job)
        outcome = self._outcomes.pop(0) if len(self._outcomes) > 1 else self._outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome if isinstance(outcome, JobOutcome) else outcome(job)


def end_job(
    exit_code: int = 0, output: str = "", *, report: str | None = None, **options: Any
) -> Callable[[Job], JobOutcome]:
    """Return a prepared outcome; `report` is the text of the file that the job asks for."""

    def answer(job: Job) -> JobOutcome:
        collected = {name: report.encode() for name in job.collect} if report is not None else {}
        plain = JobOutcome(exit_code=exit_code, output=output.encode(), elapsed_s=0.5, cpu_s=0.25, collected=collected)
        return replace(plain, **options)

    return answer


def broken_sandbox() -> SandboxFailedError:
    """Return the error of a sandbox that cannot run a job."""
    return SandboxFailedError("no namespace")


def junit(**tests: str) -> str:
    """Return a report; each test is passed, failed or skipped."""
    inner = {"passed": "", "failed": '<failure message="assert 1 == 2">trace</failure>', "skipped": "<skipped/>"}
    cases = "".join(f'<testcase classname="t" name="{name}">{inner[found]}</testcase>' for name, found in tests.items())
    return f"<testsuites><testsuite>{cases}</testsuite></testsuites>"


def build_critics(
    files: Mapping[str, str], checks: Sequence[Check], *, sandbox: Any = None, tree: Any = None, **options: Any
) -> Critics:
    """Return critics over `files`, by default with plain processes."""
    sources = source_files(files)
    settings = {"environment": ENVIRONMENT, "permits": asyncio.Semaphore(2), **options}
    return Critics(
        sandbox=sandbox or LocalRunner(), tree=tree or FolderTree(sources), files=sources, checks=checks, **settings
    )


def install_slow_git(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a git that writes its process ids, then never ends, before the other one; return where it writes them.

    Its folder stands in a file beside them.
    """
    started = folder / "started"
    program = folder / "bin" / "git"
    program.parent.mkdir()
    program.write_text(
        f"#!/bin/sh\npwd > {started}.folder\nsleep 600 & echo $$ $! > {started}.new\nmv {started}.new {started}\nwait\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(patches, "_SEARCH_PATH", f"{program.parent}:/usr/bin:/bin")
    return started


def _write(place: Path, content: bytes) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)


def _collect(folder: Path, name: str) -> bytes | None:
    place = folder / name
    is_readable = place.is_file() and not place.is_symlink() and place.stat().st_size <= MAX_REPORT_BYTES
    return place.read_bytes() if is_readable else None
