"""The entry point of repairs: starts and reads them, and keeps the snapshots of their code."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING

from reasond_server.access.permissions import may_use_commands
from reasond_server.errors.base import InternalError
from reasond_server.errors.repairs import SandboxUnavailableError
from reasond_server.errors.request import InvalidRequestError
from reasond_server.executions.desk import link_rpc_to, note_concerned
from reasond_server.limits.callers import NO_LIMITS
from reasond_server.repair.service.assignments import RepairAssignment
from reasond_server.repair.service.parameters import resolve_parameters
from reasond_server.repair.service.repair_requests import check_repair, require_covered_checks
from reasond_server.repair.service.repair_work import REPAIR
from reasond_server.requests.task_checks import digest_of
from reasond_server.runs.work import WorkRequest
from reasond_server.telemetry.scope import current_trace, note_result
from reasond_server.types.repairs import (
    EnvironmentInfo,
    EnvironmentList,
    Repair,
    RepairGoal,
    RepairView,
    SandboxLevel,
)
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reasond_server.executions.desk import ExecutionDesk
    from reasond_server.limits.callers import CallerLimits
    from reasond_server.repair.search.repair_policy import RepairParameters
    from reasond_server.repair.service.repair_work import RepairKind
    from reasond_server.runs.runner import Runner
    from reasond_server.types import Execution, Principal, StreamEvent
    from reasond_server.types.repairs import RepairTask
    from reasond_server.types.snapshots import FileEntry, Snapshot

_DISABLED = "Repairs are not offered by this server"


@value
class RepairCursor:
    """A place in the log of a repair, to follow it from."""

    execution_id: str
    after_sequence: int = 0


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
        source: RepairTask | RepairCursor,
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
        if isinstance(source, RepairCursor):
            events = self._desk.resume(
                caller,
                source.execution_id,
                after_sequence=source.after_sequence,
                include_deltas=include_deltas,
                keep_running=keep_running,
            )
        else:
            options = _RepairOptions(request_id=request_id, keep_running=keep_running)
            execution = await self._start_once(caller, source, options)
            events = self._desk.follow(execution, include_deltas=include_deltas, keep_running=keep_running)
        async with aclosing(events):
            async for event in events:
                yield event

    async def get(self, caller: Principal, execution_id: str) -> RepairView:
        """Return a repair.

        Raises:
            ExecutionNotFoundError: this caller has no such repair.
        """
        log = await self._desk.read(caller, execution_id)
        last = log.events[-1].event if log.events else None
        return RepairView(execution=log.execution, repair=last if isinstance(last, Repair) else None)

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
        digest = _digest_of(task) if options.request_id else ""
        ids = self._runner.request_ids
        async with ids.take_turn(caller.tenant, options.request_id):
            known = await ids.find_known(caller.tenant, options.request_id, digest)
            if known is None:
                return await self._start(caller, task, parameters, options, digest)
            link_rpc_to(self._runner.find_live(known.execution_id))
            note_concerned(known.execution_id)
            return known

    async def _start(
        self, caller: Principal, task: RepairTask, parameters: RepairParameters, options: _RepairOptions, digest: str
    ) -> Execution:
        """Start an execution once there is a place for it."""
        with await self._runner.find_place(caller.tenant) as place:
            permit = await self._limits.admit(caller, REPAIR)
            place.keep(permit)
            await self._require_runnable(task)
            trace = current_trace()
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


def _digest_of(task: RepairTask) -> str:
    """Return a digest that only an equal request has; the files count by their digests."""
    parts = [digest_of(replace(task, files=()))]
    parts += [f"{file.path}\0{sha256(file.content).hexdigest()}\0{file.is_executable}" for file in task.files]
    return sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
