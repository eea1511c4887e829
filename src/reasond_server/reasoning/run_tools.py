"""The tools and programs of one run: each call is an effect, recorded before it begins and never made twice.

Programs run in the sandbox: each run of one is recorded, so that a replay sees the same output.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final

from reasond_server.errors.base import ReasondError, show
from reasond_server.errors.repairs import SandboxUnavailableError
from reasond_server.errors.turns import ToolOutcomeUnknownError
from reasond_server.runs.recorded_calls import VERSION, compute_texts_digest, read_error, read_row, write_error_row
from reasond_server.sandbox.sandbox import Job, SandboxFailedError
from reasond_server.telemetry.logs import shorten
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.telemetry.propagation import OutgoingTrace
from reasond_server.telemetry.spans import EXECUTE_TOOL, RUN_PROGRAM, Attributes, Tracing
from reasond_server.tools.programs import MAX_OUTPUT_BYTES, ProgramResult, ProgramRunner
from reasond_server.types import ToolCall, ToolResult
from reasond_server.types.repairs import SourceFile

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from reasond_server.llm.model import ToolSpec
    from reasond_server.runs.effects import Effects, JournaledEffect
    from reasond_server.runs.run_trace import RunTrace
    from reasond_server.sandbox.sandbox import ExecutionEnvironment, JobOutcome, Sandbox, Workspaces
    from reasond_server.tools.tool import KeyedToolbox


class WrappedToolbox:
    """The tools of a run, of which a subclass calls each in its own way."""

    def __init__(self, *, toolbox: KeyedToolbox) -> None:
        self._toolbox = toolbox

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """The tools that may be called."""
        return self._toolbox.specs

    def is_idempotent(self, name: str) -> bool:
        """Return whether the tool is idempotent, as it declares."""
        return self._toolbox.is_idempotent(name)

    def restore(self, call: ToolCall, result: ToolResult) -> None:
        """Restore a call that was made in an earlier life of the run."""
        self._toolbox.restore(call, result)


class JournaledToolbox(WrappedToolbox):
    """The tools of a run: each call is recorded before it begins."""

    def __init__(self, *, toolbox: KeyedToolbox, effects: Effects) -> None:
        super().__init__(toolbox=toolbox)
        self._effects = effects

    async def call(self, call: ToolCall) -> ToolResult:
        """Execute `call`, or return the recorded result if the run made it before.

        Raises:
            ToolOutcomeUnknownError: the call had begun when a process ended, and must not be made twice.
            ReasondError: the error that the tool raises, or that was recorded.
        """
        digest = compute_texts_digest(call.call_id, call.name, call.arguments_json)
        effect = self._effects.begin("tool", digest, is_idempotent=self.is_idempotent(call.name))
        try:
            async with effect:
                return await self._call_once(call, effect)
        except ToolOutcomeUnknownError:
            raise _build_unknown_outcome_error(call) from None

    async def _call_once(self, call: ToolCall, effect: JournaledEffect) -> ToolResult:
        if effect.recorded is not None:
            return self._restore(call, effect.recorded)
        try:
            outcome = await self._toolbox.call(call, idempotency_key=effect.idempotency_key)
        except ReasondError as error:
            await effect.complete(encode_result(error))
            raise
        await effect.complete(encode_result(outcome))
        return outcome

    def _restore(self, call: ToolCall, recorded: str) -> ToolResult:
        outcome = decode_result(recorded)
        if isinstance(outcome, ReasondError):
            raise outcome
        self._toolbox.restore(call, outcome)
        return outcome


class TracedToolbox(WrappedToolbox):
    """The tools of a run, with a span for each call that is not replayed."""

    def __init__(self, *, toolbox: KeyedToolbox, trace: RunTrace, tracing: Tracing) -> None:
        super().__init__(toolbox=toolbox)
        self._trace = trace
        self._tracing = tracing
        self._names = frozenset(spec.name for spec in toolbox.specs)

    async def call(self, call: ToolCall, *, idempotency_key: str = "") -> ToolResult:
        """Execute `call` within a span. Raises as the tools do."""
        tracing = self._tracing
        # A name that the model invented is content, and the number of such names has no limit.
        name = call.name if call.name in self._names else "unknown"
        span = tracing.part(f"{EXECUTE_TOOL} {name}", self._build_attributes(call, name), parent=self._trace.open())
        try:
            with OutgoingTrace(span.context if tracing.tells_tools else None):
                result = await self._toolbox.call(call, idempotency_key=idempotency_key)
            if result.is_error:
                span.fail("tool_error")
            if tracing.has_content:
                span.set({"gen_ai.tool.call.result": shorten(result.result_json)})
        except Exception as error:
            span.fail(getattr(error, "reason", "INTERNAL"))
            raise
        else:
            return result
        finally:
            span.end()

    def _build_attributes(self, call: ToolCall, name: str) -> Attributes:
        attributes: Attributes = {
            "gen_ai.operation.name": EXECUTE_TOOL,
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": call.call_id[:128],
            "openinference.span.kind": "TOOL",
        }
        if self._tracing.has_content:
            attributes["gen_ai.tool.call.arguments"] = shorten(call.arguments_json)
        return attributes


def encode_result(result: ToolResult | ReasondError) -> str:
    """Return the result of a tool call, or its error, as JSON text."""
    if isinstance(result, ReasondError):
        return json.dumps({"v": VERSION, "error": write_error_row(result)}, separators=(",", ":"))
    return json.dumps({"v": VERSION, "result": asdict(result)}, separators=(",", ":"))


def decode_result(body: str) -> ToolResult | ReasondError:
    """Return the result of a tool call, or its error, from `body`.

    Raises:
        ReplayError: another version of this program wrote it.
    """
    row = read_row(body)
    return read_error(row["error"]) if "error" in row else ToolResult(**row["result"])


def _build_unknown_outcome_error(call: ToolCall) -> ToolOutcomeUnknownError:
    return ToolOutcomeUnknownError(
        f"The server went down while the tool {show(call.name)} was at work; whether it did its part is not known",
        remedy="See for yourself, then ask again; what was done until then is kept.",
        metadata={"tool": call.name, "call_id": call.call_id},
    )


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
    observer: Observer = UNOBSERVED

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
