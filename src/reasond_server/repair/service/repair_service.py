"""The entry point of repairs: starts and reads them, and keeps the snapshots of their code."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from reasond_server.access.permissions import may_use_commands
from reasond_server.base.asyncio_tasks import finish_though_cancelled
from reasond_server.base.violations import suggest_nearest
from reasond_server.errors.base import InternalError, Violation, show
from reasond_server.errors.repairs import SandboxUnavailableError
from reasond_server.errors.request import InvalidConfigError, InvalidRequestError
from reasond_server.executions.desk import ExecutionDesk, note_concerned
from reasond_server.limits.callers import NO_LIMITS, CallerLimits
from reasond_server.repair.results.outcomes import MOST_RUNS
from reasond_server.repair.service.assignments import RepairAssignment, read_planned_repair, resolve_parameters
from reasond_server.repair.service.repair_work import REPAIR, RepairKind
from reasond_server.requests.task_checks import digest_request, find_in_budget, find_in_id, find_in_text, find_in_words
from reasond_server.runs.work import WorkRequest
from reasond_server.telemetry.scope import get_current_trace, get_current_wire, note_result
from reasond_server.types import Cursor, Execution, Principal, StreamEvent
from reasond_server.types.executions import write_headline
from reasond_server.types.repairs import (
    CheckRole,
    EnvironmentInfo,
    EnvironmentList,
    Repair,
    RepairGoal,
    RepairView,
    SandboxLevel,
)
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Iterator, Sequence

    from reasond_server.repair.search.repair_policy import RepairParameters, RepairPolicy
    from reasond_server.runs.runner import Runner
    from reasond_server.types.repairs import Check, CriticReport, FileEntry, RepairTask, Snapshot

MAX_CHECKS: Final = 20
MAX_ARGUMENTS: Final = 64
MAX_ARGUMENT_CHARACTERS: Final = 4_096
MAX_PATTERNS: Final = 100
MAX_PATTERN_CHARACTERS: Final = 1_024
MAX_ISSUES: Final = 100
MAX_ISSUE_CHARACTERS: Final = 2_000
MAX_TIMEOUT_S: Final = 3_600.0
_LEAST_RUNS: Final = 3
"""How often each check is run at least: twice on the original code, and once on a candidate."""
_CHECK_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}\Z")


def check_repair(
    task: RepairTask,
    *,
    policy: RepairPolicy,
    environments: Collection[str],
    may_use_commands: bool,
    request_id: str = "",
    in_files: Sequence[Violation] = (),
) -> None:
    """Refuse a task that exceeds the limits, or names what this server does not have.

    `environments` are the names of those of the server; `may_use_commands` says whether checks may bring their own
    commands; `in_files` is what was found in the files.

    Raises:
        InvalidRequestError: with one violation for each problem.
    """
    found = [
        *_in_description(task),
        *_in_code(task),
        *in_files,
        *_in_environment(task, environments),
        *_in_checks(task, policy, may_use_commands=may_use_commands),
        *_in_report(task.report),
        *_in_patterns(task.editable),
        *find_in_budget(task.budget),
        *find_in_id("request_id", request_id),
    ]
    if found:
        raise InvalidRequestError.of(*found)


def require_covered_checks(task: RepairTask, parameters: RepairParameters, *, most_cpu_s: float) -> None:
    """Refuse bounds that do not cover the checks of the original code and of one candidate.

    `most_cpu_s` is the most processor time in seconds that one check may take.

    Raises:
        InvalidConfigError: with one violation for each bound.
    """
    count = len(task.checks)
    runs, cpu_s = _LEAST_RUNS * MOST_RUNS * count, _LEAST_RUNS * most_cpu_s * count
    why = "each is run twice on the original code and once on a candidate"
    found = []
    if parameters.max_checks < runs:
        text = f"must be at least {runs} for {count} checks, got {parameters.max_checks}: {why}, and once more where "
        found.append(Violation(field="config.max_checks", description=text + "a run says nothing"))
    if parameters.max_check_cpu_s < cpu_s:
        text = f"must be at least {cpu_s:g} for {count} checks, got {parameters.max_check_cpu_s:g}: {why}, and may "
        found.append(Violation(field="config.max_check_cpu_s", description=f"{text}take {most_cpu_s:g} s each time"))
    if found:
        raise InvalidConfigError.of(*found)


def _in_description(task: RepairTask) -> Iterator[Violation]:
    if task.goal is RepairGoal.PLAN or task.description:
        yield from find_in_words("description", task.description)


def _in_code(task: RepairTask) -> Iterator[Violation]:
    if task.files and task.snapshot_id:
        yield Violation(field="snapshot_id", description="must be empty where files are sent")
    elif task.goal is RepairGoal.FIX and not task.files and not task.snapshot_id:
        yield Violation(field="files", description="is required: send the files, or the id of a snapshot")
    yield from find_in_id("snapshot_id", task.snapshot_id)


def _in_environment(task: RepairTask, environments: Collection[str]) -> Iterator[Violation]:
    if task.goal is RepairGoal.PLAN and not task.environment:
        return
    if not task.environment:
        known = ", ".join(sorted(environments)) or "none"
        yield Violation(field="environment", description=f"is required; environments of this server: {known}")
    elif task.environment not in environments:
        hint = suggest_nearest(task.environment, environments)
        text = f"is no environment of this server, got {show(task.environment)}{hint}"
        yield Violation(field="environment", description=text)


def _in_checks(task: RepairTask, policy: RepairPolicy, *, may_use_commands: bool) -> Iterator[Violation]:
    checks = task.checks
    if task.goal is RepairGoal.PLAN:
        if checks:
            yield Violation(field="checks", description="must be empty for a plan, of which nothing is run")
        return
    if len(checks) > MAX_CHECKS:
        yield Violation(field="checks", description=f"must have at most {MAX_CHECKS} entries, got {len(checks)}")
        return
    is_told = bool(task.report.issues or task.report.test_outcomes or task.config.get("allow_unreproduced"))
    if not is_told and not any(check.role is not CheckRole.HELD_OUT for check in checks):
        text = (
            "must have at least one entry of the role REPRODUCE or REGRESSION, which says when the code is right; "
            "for static analysis alone send a report of what is wrong, or set allow_unreproduced"
        )
        yield Violation(field="checks", description=text)
    counts = Counter(check.name for check in checks)
    for index, check in enumerate(checks):
        field = f"checks[{index}]"
        if not _CHECK_NAME.match(check.name):
            text = f"must begin with a small letter and have at most 64 of a-z, 0-9, _ and -, got {show(check.name)}"
            yield Violation(field=f"{field}.name", description=text)
        elif counts[check.name] > 1:
            text = f"{show(check.name)} is the name of {counts[check.name]} checks; rename all but one"
            yield Violation(field=f"{field}.name", description=text)
        yield from _in_command(field, check, policy, may_use_commands=may_use_commands)
        if not 0 <= check.timeout_s <= MAX_TIMEOUT_S:
            text = f"must be between 0 and {MAX_TIMEOUT_S:g} seconds, got {check.timeout_s:g}"
            yield Violation(field=f"{field}.timeout", description=text)


def _in_command(field: str, check: Check, policy: RepairPolicy, *, may_use_commands: bool) -> Iterator[Violation]:
    known = ", ".join(sorted(policy.commands)) or "none"
    if check.argv and check.command:
        yield Violation(field=f"{field}.command", description="must be empty where argv is sent")
    elif not check.argv and not check.command:
        yield Violation(field=f"{field}.argv", description=f"is required, or a command of this server ({known})")
    elif check.command and check.command not in policy.commands:
        hint = suggest_nearest(check.command, policy.commands)
        text = f"is no command of this server, got {show(check.command)}{hint}"
        yield Violation(field=f"{field}.command", description=text)
    elif check.argv and not may_use_commands:
        text = f"needs the permission repair:commands; without it name a command of this server ({known})"
        yield Violation(field=f"{field}.argv", description=text)
    elif len(check.argv) > MAX_ARGUMENTS:
        text = f"must have at most {MAX_ARGUMENTS} entries, got {len(check.argv)}"
        yield Violation(field=f"{field}.argv", description=text)
    for place, argument in enumerate(check.argv[:MAX_ARGUMENTS]):
        least = 0 if place else 1
        yield from find_in_text(f"{field}.argv[{place}]", argument, least=least, most=MAX_ARGUMENT_CHARACTERS)


def _in_report(report: CriticReport) -> Iterator[Violation]:
    for name, entries in (("issues", report.issues), ("test_outcomes", report.test_outcomes)):
        if len(entries) > MAX_ISSUES:
            text = f"must have at most {MAX_ISSUES} entries, got {len(entries)}; send the worst ones"
            yield Violation(field=f"report.{name}", description=text)
    for index, issue in enumerate(report.issues[:MAX_ISSUES]):
        field = f"report.issues[{index}]"
        for name, text in (("rule_id", issue.rule_id), ("path", issue.path), ("message", issue.message)):
            yield from find_in_text(f"{field}.{name}", text, most=MAX_ISSUE_CHARACTERS)
        if issue.line < 0:
            yield Violation(field=f"{field}.line", description=f"must be at least 0, got {issue.line}")
    for index, suite in enumerate(report.test_outcomes[:MAX_ISSUES]):
        field = f"report.test_outcomes[{index}]"
        yield from find_in_text(f"{field}.suite_name", suite.suite_name, most=MAX_ISSUE_CHARACTERS)
        if not 0 <= suite.coverage <= 100:  # noqa: PLR2004 - percent
            yield Violation(field=f"{field}.coverage", description=f"must be between 0 and 100, got {suite.coverage:g}")


def _in_patterns(patterns: Sequence[str]) -> Iterator[Violation]:
    if len(patterns) > MAX_PATTERNS:
        yield Violation(field="editable", description=f"must have at most {MAX_PATTERNS} entries, got {len(patterns)}")
    for index, pattern in enumerate(patterns[:MAX_PATTERNS]):
        yield from find_in_text(f"editable[{index}]", pattern, least=1, most=MAX_PATTERN_CHARACTERS)


_DISABLED = "Repairs are not offered by this server"


@value
class _RepairOptions:
    """The caller's options besides the task."""

    request_id: str = ""
    keep_running: bool = False
    is_unary: bool = False


class RepairService:
    """Works out repairs for verified callers.

    `desk` reads and stops their executions.
    """

    def __init__(
        self,
        *,
        runner: Runner,
        desk: ExecutionDesk,
        kind: RepairKind,
        limits: CallerLimits = NO_LIMITS,
    ) -> None:
        self._runner = runner
        self._desk = desk
        self._kind = kind
        self._policy = kind.policy
        self._snapshots = kind.snapshots
        self._limits = limits

    async def run(self, caller: Principal, task: RepairTask, *, request_id: str = "") -> Repair:
        """Work out a repair and return its result. A caller that leaves cancels it.

        Raises:
            ReasondError: nothing was started, or the repair failed; then `execution_id` is set.
        """
        options = _RepairOptions(request_id=request_id, is_unary=bool(request_id))
        execution = await self._start_once(caller, task, options)
        result: Repair | None = None
        async with aclosing(self._desk.follow(execution, include_deltas=False)) as events:
            async for event in events:
                if isinstance(event.event, Repair):
                    result = event.event
        if result is None:
            raise InternalError("a repair ended without a result")
        note_result(result.usage, str(result.finish_reason), strategy=REPAIR)
        return result

    async def stream(
        self,
        caller: Principal,
        source: RepairTask | Cursor,
        *,
        request_id: str = "",
        include_deltas: bool = False,
        keep_running: bool = False,
    ) -> AsyncGenerator[StreamEvent, None]:
        """Start a repair or resume one; yield its events to the end.

        Events of the class RepairDelta and Heartbeat are not logged. A repair that failed raises its error after its
        last event. When the last follower leaves, the repair is cancelled unless `keep_running` was asked.

        Raises:
            ReasondError: nothing was started, or the repair failed; then `execution_id` is set.
        """
        if isinstance(source, Cursor):
            events = self._desk.resume(
                caller,
                source.execution_id,
                after_sequence=source.after_sequence,
                include_deltas=include_deltas,
                keep_running=keep_running,
            )
        else:
            options = _RepairOptions(request_id=request_id, keep_running=keep_running)
            starting = self._start_once(caller, source, options)
            if keep_running:
                starting = finish_though_cancelled(starting, name="start of a kept repair")
            events = self._desk.follow(await starting, include_deltas=include_deltas)
        async with aclosing(events):
            async for event in events:
                yield event

    async def get(self, caller: Principal, execution_id: str) -> RepairView:
        """Return a repair.

        Raises:
            ExecutionNotFoundError: this caller has no such repair.
        """
        log = await self._desk.read(caller, execution_id, with_plan=True)
        last = log.events[-1].event if log.events else None
        ended = last if isinstance(last, Repair) else None
        return RepairView(execution=log.execution, repair=ended, task=read_planned_repair(log.plan))

    async def create_snapshot(self, caller: Principal, entries: Sequence[FileEntry]) -> Snapshot:
        """Keep a manifest and return it with the digests of the contents that are missing.

        Raises:
            InvalidRequestError: with one violation for each bad path, size or digest.
            StoreFullError: the caller's quota would be exceeded.
        """
        self._require_enabled()
        return await self._snapshots.create(caller.tenant, entries)

    async def upload_blobs(self, caller: Principal, contents: Sequence[bytes]) -> Sequence[str]:
        """Store contents that snapshots of the caller miss; return their digests in order.

        Raises:
            InvalidRequestError: no snapshot of the caller has such a content.
        """
        self._require_enabled()
        return await self._snapshots.put(caller.tenant, contents)

    def list_environments(self) -> EnvironmentList:
        """Return the environments, by name."""
        return EnvironmentList(
            environments=[
                EnvironmentInfo(name=one.name, format=one.format, description=one.description)
                for _, one in sorted(self._kind.workshop.environments.items())
            ],
            level=self._kind.workshop.sandbox.level,
            commands=sorted(self._policy.commands),
        )

    async def _start_once(self, caller: Principal, task: RepairTask, options: _RepairOptions) -> Execution:
        """Return the execution that the request id stands for, or start one."""
        self._require_enabled()
        check_repair(
            task,
            policy=self._policy,
            environments=self._kind.workshop.environments,
            may_use_commands=may_use_commands(caller),
            request_id=options.request_id,
            in_files=await self._snapshots.find_in_files(task.files) if task.files else (),
        )
        parameters = resolve_parameters(task.config, self._policy)
        if task.goal is RepairGoal.FIX:
            limits = self._kind.workshop.environments[task.environment].limits
            require_covered_checks(task, parameters, most_cpu_s=limits.cpu_s)
        digest = _compute_digest(task) if options.request_id else ""
        start = partial(self._start, caller, task, parameters, options, digest)
        return await self._desk.start_once(
            caller, options.request_id, digest, start=start, keep_running=options.keep_running
        )

    async def _start(
        self, caller: Principal, task: RepairTask, parameters: RepairParameters, options: _RepairOptions, digest: str
    ) -> Execution:
        """Start an execution once there is a place for it."""
        with await self._runner.find_place(caller.tenant) as place:
            permit = await self._limits.admit(caller, REPAIR)
            place.keep(permit)
            await self._require_runnable(task)
            trace = get_current_trace()
            request = WorkRequest(
                tenant=caller.tenant,
                subject=caller.subject,
                request_id=options.request_id,
                digest=digest,
                keep_running=options.keep_running,
                time_limit_s=self._policy.max_active_s,
                is_unary=options.is_unary,
                trace="" if trace is None else trace.text,
                permit="" if permit is None else permit.name,
                question=write_headline(task.description),
                wire=get_current_wire(),
                budget=task.budget,
            )
            assignment = RepairAssignment(
                task=replace(task, files=(), snapshot_id=await self._keep_code(caller, task), config={}),
                parameters=parameters,
            )
            execution = await self._runner.start(self._kind.create(assignment, request), place=place)
        note_concerned(execution.execution_id)
        return execution

    async def _keep_code(self, caller: Principal, task: RepairTask) -> str:
        """Return the id of the snapshot that holds the code; empty for a plan without code.

        Raises:
            SnapshotNotFoundError: there is no such snapshot, or contents of it are missing.
        """
        if task.files:
            return (await self._snapshots.keep_files(caller.tenant, task.files)).snapshot_id
        if task.snapshot_id:
            # What a repair cannot read must not begin.
            await self._snapshots.require(caller.tenant, task.snapshot_id)
        return task.snapshot_id

    def _require_enabled(self) -> None:
        if not self._policy.enabled:
            raise InvalidRequestError(_DISABLED, remedy="Have the operator set enabled = true in [repair].")

    async def _require_runnable(self, task: RepairTask) -> None:
        """Refuse work that runs code where nothing would run it, before a token is spent.

        Raises:
            SandboxUnavailableError: no sandbox works here.
            EngineUnavailableError: the engine cannot be reached.
        """
        if task.goal is not RepairGoal.FIX:
            return
        if self._kind.engine is not None:
            # Whether a sandbox works, its workers tell.
            await self._kind.engine.require_reachable()
        elif self._kind.workshop.sandbox.level is SandboxLevel.OFF:
            raise SandboxUnavailableError("No sandbox works on this server, so no code is run")


def _compute_digest(task: RepairTask) -> str:
    """Return a digest that only an equal request has; the files count by their digests."""
    parts = [digest_request(replace(task, files=()))]
    parts += [f"{file.path}\0{sha256(file.content).hexdigest()}\0{file.is_executable}" for file in task.files]
    return sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
