"""Programs of tasks, run in the sandbox: each run of one is recorded, so that a replay sees the same output."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final

from reasond_server.errors.repairs import SandboxUnavailableError
from reasond_server.runs.recorded_calls import VERSION, compute_texts_digest, read_row
from reasond_server.sandbox.sandbox import Job, SandboxFailedError
from reasond_server.telemetry.observers import UNOBSERVED
from reasond_server.telemetry.spans import RUN_PROGRAM
from reasond_server.tools.programs import MAX_OUTPUT_BYTES, ProgramResult
from reasond_server.types.snapshots import SourceFile

if TYPE_CHECKING:
    import asyncio

    from reasond_server.runs.effects import Effects
    from reasond_server.runs.run_trace import RunTrace
    from reasond_server.sandbox.sandbox import ExecutionEnvironment, JobOutcome, Sandbox
    from reasond_server.sandbox.workspaces import Workspaces
    from reasond_server.telemetry.observers import ProgramObserver
    from reasond_server.telemetry.spans import Tracing
    from reasond_server.tools.programs import ProgramRunner

PROGRAM: Final = "program"
"""Kind of the effect of one run of a program."""

_SOURCE: Final = "program.py"
_MATERIAL: Final = "material.txt"
_ANSWER: Final = "answer.txt"
# Warnings of the interpreter would stand among what the program prints.
_COMMAND: Final = ("python3", "-B", "-X", "utf8", "-W", "ignore", _SOURCE)
_LIMITS: Final = {
    "wall_s": "more time than its limit",
    "cpu_s": "more processor time than its limit",
    "memory_bytes": "more memory than its limit",
    "processes": "more processes than its limit",
    "disk_bytes": "more disk space than its limit",
}
_log = logging.getLogger("reasond.executions")


@dataclass(eq=False, kw_only=True)
class SandboxPrograms:
    """Runs programs in one environment of the sandbox; `permits` bounds the jobs of the whole server."""

    is_available = True

    sandbox: Sandbox
    workspaces: Workspaces
    environment: ExecutionEnvironment
    permits: asyncio.Semaphore
    observer: ProgramObserver = UNOBSERVED

    async def run(self, source: str, *, material: str = "", answer: str = "", most_s: float) -> ProgramResult:
        """Run a program in a folder of its own; see the port.

        Raises:
            SandboxUnavailableError: the sandbox could not run it.
        """
        texts = {_SOURCE: source} | {name: text for name, text in ((_MATERIAL, material), (_ANSWER, answer)) if text}
        files = [SourceFile(path=name, content=text.encode("utf-8", "replace")) for name, text in texts.items()]
        try:
            async with self.permits:
                result = _read_outcome(await self._run_job(files, most_s))
        except SandboxFailedError as error:
            self.observer.program_ended("not_run", 0.0)
            _log.exception("a program was not run")
            raise SandboxUnavailableError(
                "The sandbox of this server could not run a program of the task",
                remedy="Retry. If it stays so, the operator finds the cause in the server's log.",
            ) from error
        self.observer.program_ended(_name_outcome(result) or "ok", result.elapsed_s)
        return result

    async def _run_job(self, files: list[SourceFile], most_s: float) -> JobOutcome:
        limits = self.environment.limits
        bounded = replace(
            limits,
            wall_s=min(limits.wall_s, most_s),
            cpu_s=min(limits.cpu_s, most_s),
            output_bytes=min(limits.output_bytes, MAX_OUTPUT_BYTES),
        )
        tree = await self.workspaces.write_tree(files)
        try:
            async with tree.open_workspace({}) as folder:
                job = Job(argv=_COMMAND, folder=folder, environment=self.environment, limits=bounded)
                return await self.sandbox.run(job)
        finally:
            await tree.remove()


class TracedPrograms:
    """The programs of one run, with a span for each that is not replayed."""

    def __init__(self, *, programs: ProgramRunner, trace: RunTrace, tracing: Tracing) -> None:
        self._programs = programs
        self._trace = trace
        self._tracing = tracing

    @property
    def is_available(self) -> bool:
        """Whether programs can be run at all."""
        return self._programs.is_available

    async def run(self, source: str, *, material: str = "", answer: str = "", most_s: float) -> ProgramResult:
        """Run a program within a span. Raises as the inner runner."""
        span = self._tracing.part(RUN_PROGRAM, {"openinference.span.kind": "TOOL"}, parent=self._trace.open())
        try:
            result = await self._programs.run(source, material=material, answer=answer, most_s=most_s)
            if outcome := _name_outcome(result):
                span.fail(outcome)
        except Exception as error:
            span.fail(getattr(error, "reason", "INTERNAL"))
            raise
        else:
            return result
        finally:
            span.end()


class JournaledPrograms:
    """The programs of one run. A program that was interrupted is run again: it changes nothing outside its folder."""

    def __init__(self, *, programs: ProgramRunner, effects: Effects) -> None:
        self._programs = programs
        self._effects = effects

    @property
    def is_available(self) -> bool:
        """Whether programs can be run at all."""
        return self._programs.is_available

    async def run(self, source: str, *, material: str = "", answer: str = "", most_s: float) -> ProgramResult:
        """Run a program, or return the recorded result if the run made it before. Raises as the inner runner."""
        digest = compute_texts_digest(source, material, *([answer] if answer else []))
        async with self._effects.begin(PROGRAM, digest, is_idempotent=True) as effect:
            if effect.recorded is not None:
                return ProgramResult(**read_row(effect.recorded)["result"])
            result = await self._programs.run(source, material=material, answer=answer, most_s=most_s)
            await effect.complete(json.dumps({"v": VERSION, "result": asdict(result)}, separators=(",", ":")))
            return result


def _name_outcome(result: ProgramResult) -> str:
    """Return why a program gave no result, in one word; empty if it ended by itself with exit code 0."""
    if result.exceeded:
        return "limited"
    return "failed" if result.exit_code else ""


def _read_outcome(outcome: JobOutcome) -> ProgramResult:
    return ProgramResult(
        output=outcome.output.decode("utf-8", "replace"),
        exit_code=outcome.exit_code,
        elapsed_s=outcome.elapsed_s,
        exceeded=_LIMITS.get(outcome.exceeded, "more than its limits") if outcome.exceeded else "",
        is_output_cut=outcome.is_output_cut,
    )
