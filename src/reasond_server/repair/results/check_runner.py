"""One run of one check over one candidate, in a workspace of its own."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from reasond_server.context.calls import run_by_size
from reasond_server.repair.results.outcomes import CheckOutcome
from reasond_server.repair.results.reported_tests import UnreadableResultError, escape_text, write_output
from reasond_server.repair.results.result_parser import CheckResults, read_results
from reasond_server.sandbox.sandbox import Job, SandboxFailedError
from reasond_server.types.repairs import Check, CheckStatus, ResultFormat, TestOutcome

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from reasond_server.sandbox.sandbox import ExecutionEnvironment, JobOutcome, Sandbox, SandboxLimits, SourceTree

MAX_TIMEOUT_S: Final = 300.0
"""Longest limit of a check that the server derives itself."""
REPORT: Final = "{report}"
"""Stands in a command for the path of the report."""

_TIMES_BASELINE: Final = 10.0
_STREAM_BYTES: Final = 4 * 1024 * 1024
_KILLED: Final = 137
_STACKS: Final = (b"Fatal Python error: Aborted", b"SIGQUIT: quit", b"Full thread dump")
_FRAME: Final = re.compile(
    r"/workspace/(?P<path>[^\":\s]{1,300})(?:\", line |:)(?P<line>\d{1,7})(?: in (?P<name>[\w.<>]{1,200}))?"
)
_MOST_FRAMES: Final = 5
_TIME_LIMITS: Final = {"wall_s": "did not end in time", "cpu_s": "took more processor time than its limit"}
_LIMITS: Final = {
    "memory_bytes": "more memory than its limit",
    "processes": "more processes than its limit",
    "disk_bytes": "more disk space than its limit",
}


@dataclass(eq=False, kw_only=True)
class CheckRunner:
    """Runs checks over candidates in one environment; `permits` bounds the runs of the whole server."""

    sandbox: Sandbox
    environment: ExecutionEnvironment
    tree: SourceTree
    permits: asyncio.Semaphore

    def limit_first(self, check: Check) -> float:
        """Return the time limit in seconds on the original, before it is known how long the check takes."""
        return self._clamp(check.timeout_s or MAX_TIMEOUT_S)

    def limit_later(self, check: Check, *, baseline_s: float, least_s: float) -> float:
        """Return the time limit on candidates in seconds, of a check that took `baseline_s` on the original."""
        derived = min(max(_TIMES_BASELINE * baseline_s, least_s), MAX_TIMEOUT_S)
        return self._clamp(check.timeout_s or derived)

    async def run(self, check: Check, changes: Mapping[str, bytes | None], *, limit_s: float) -> CheckOutcome:
        """Return how `check` ends on the original with `changes`.

        What says nothing about the code is tried once more and then UNKNOWN. The attempts share the processor time.
        """
        limits = replace(self.environment.limits, wall_s=limit_s)
        first = await self._attempt(check, changes, limits)
        left_s = limits.cpu_s - first.cpu_s
        if first.status is not CheckStatus.UNKNOWN or left_s <= 0:
            return first
        second = await self._attempt(check, changes, replace(limits, cpu_s=left_s))
        return replace(
            second,
            elapsed_s=first.elapsed_s + second.elapsed_s,
            cpu_s=first.cpu_s + second.cpu_s,
            runs=first.runs + second.runs,
        )

    def _clamp(self, limit_s: float) -> float:
        return min(limit_s, self.environment.limits.wall_s)

    async def _attempt(self, check: Check, changes: Mapping[str, bytes | None], limits: SandboxLimits) -> CheckOutcome:
        result_format = check.format or self.environment.format
        if result_format in {ResultFormat.GO_JSON, ResultFormat.TAP}:
            limits = replace(limits, output_bytes=max(limits.output_bytes, _STREAM_BYTES))
        # Nobody can prepare a file of this name, neither a candidate nor what an earlier run has left.
        report = f"report-{secrets.token_hex(16)}.xml"
        is_writable = self.environment.has_writable_sources
        try:
            async with self.permits, self.tree.open_workspace(changes, is_writable=is_writable) as folder:
                ended = await self.sandbox.run(
                    Job(
                        argv=tuple(argument.replace(REPORT, report) for argument in check.argv),
                        folder=folder,
                        environment=self.environment,
                        limits=limits,
                        collect=(report,) if result_format is ResultFormat.JUNIT else (),
                    )
                )
        except SandboxFailedError:
            return CheckOutcome(
                name=check.name,
                role=check.role,
                status=CheckStatus.UNKNOWN,
                reason="the sandbox could not run it; the server's log has the cause",
            )
        # The name differs in each run; evidence shall be equal for equal failures.
        shown = replace(ended, output=ended.output.replace(report.encode(), REPORT.encode()))
        found = ended.collected.get(report)
        size = len(ended.output) + len(found or b"")
        return await run_by_size(size, partial(_judge_end, check, shown, result_format, report=found))


def _judge_end(check: Check, ended: JobOutcome, result_format: ResultFormat, *, report: bytes | None) -> CheckOutcome:
    outcome = CheckOutcome(
        name=check.name,
        role=check.role,
        status=CheckStatus.FAILED,
        exit_code=ended.exit_code,
        elapsed_s=ended.elapsed_s,
        cpu_s=ended.cpu_s,
    )
    if ended.exceeded in _TIME_LIMITS:
        printed, place = _find_place(ended.output)
        evidence = f"{place}{write_output(printed)}"
        reason = f"it {_TIME_LIMITS[ended.exceeded]}"
        return replace(outcome, status=CheckStatus.TIMED_OUT, evidence=evidence, reason=reason)
    if ended.exceeded:
        reason = f"it took {_LIMITS.get(ended.exceeded, 'more than its limit')}"
        exit_code = max(ended.exit_code, _KILLED)
        return replace(outcome, evidence=write_output(ended.output), reason=reason, exit_code=exit_code)
    try:
        results = read_results(
            result_format,
            report=report,
            output=ended.output,
            is_output_cut=ended.is_output_cut,
            exit_code=ended.exit_code,
        )
    except UnreadableResultError as error:
        # SIGKILL without a limit that was reached comes from outside, such as from a machine without memory.
        if ended.exit_code == _KILLED:
            return replace(outcome, status=CheckStatus.UNKNOWN, reason="it was killed from outside")
        is_unasked = result_format is ResultFormat.JUNIT and not any(REPORT in argument for argument in check.argv)
        reason = f"its command says nowhere where the report belongs: write {REPORT}" if is_unasked else str(error)
        return replace(outcome, evidence=write_output(ended.output), reason=reason)
    if ended.exit_code == _KILLED and result_format is ResultFormat.EXIT_CODE:
        return replace(outcome, status=CheckStatus.UNKNOWN, reason="it was killed from outside")
    return replace(
        outcome,
        status=CheckStatus.PASSED if _is_passed(results, ended.exit_code) else CheckStatus.FAILED,
        tests=results.tests,
        fingerprints=results.fingerprints,
        evidence=results.evidence,
    )


def _find_place(output: bytes) -> tuple[bytes, str]:
    """Return what a check printed itself, and where it was when its time was over, if its runtime has told that.

    The innermost line is left out: a loop is left at another one each time, and equal hangs shall have equal evidence.
    """
    start = max(output.rfind(mark) for mark in _STACKS)
    frames = list(_FRAME.finditer(output[max(start, 0) :].decode("utf-8", "replace")))[:_MOST_FRAMES]
    if start < 0 or not frames:
        return output, ""
    places = []
    for place, (path, line, name) in enumerate(frame.groups("") for frame in frames):
        places.append(f"{path}:{line} {name}".strip() if place else f"{path} {name}".strip())
    return output[:start], f"When its time was over, the code was at {escape_text(', called from '.join(places))}.\n"


def _is_passed(results: CheckResults, exit_code: int) -> bool:
    """Return whether nothing failed; a report without failures does not excuse an exit code."""
    return exit_code == 0 and TestOutcome.FAILED not in results.tests.values()
