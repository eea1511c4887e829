"""RepairService over gRPC: converts requests, calls the core, converts responses; decides nothing."""
# ruff: noqa: N802 - the names of the methods are those of the contract

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from reasond.v1 import execution_pb2, repair_service_pb2_grpc, repairs_pb2
from reasond.v1 import repair_service_pb2 as pb
from reasond_server.errors.base import ReasondError
from reasond_server.grpc_api.guard import get_current_principal
from reasond_server.grpc_api.message_writers import Alternatives, fill, fill_timestamp
from reasond_server.grpc_api.reasoning_servicer import fill_budget, fill_typed
from reasond_server.grpc_api.requests import (
    invalid,
    prefix_fields,
    read_budget,
    read_config,
    read_cursor,
    read_enum_word,
    read_seconds,
    require_id,
)
from reasond_server.grpc_api.stream_writer import StreamWriter
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.types import Budget, Cursor, StreamEvent
from reasond_server.types.kinds import EVENTS
from reasond_server.types.repairs import (
    Check,
    CheckRole,
    CriticReport,
    FileEntry,
    Finding,
    RepairGoal,
    RepairTask,
    ResultFormat,
    Severity,
    Snapshot,
    SourceFile,
    SuiteOutcome,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from enum import StrEnum

    from google.protobuf.descriptor import EnumDescriptor

    from reasond_server.grpc_api.handlers import Context, MethodTable
    from reasond_server.repair.service.repair_service import RepairService
    from reasond_server.types.repairs import RepairView

WordT = TypeVar("WordT", bound="StrEnum")

_EVENTS: Final = Alternatives(EVENTS, pb.RepairStepsResponse.DESCRIPTOR.oneofs_by_name["event"])


def read_source(request: pb.RepairStepsRequest) -> RepairTask | Cursor:
    """Return what the request wants. Raises as `read_repair_task`."""
    case = request.WhichOneof("source")
    if case is None:
        raise invalid("task", "is required, unless resume is given")
    if case == "task":
        return read_repair_task(request.task)
    if request.request_id:
        raise invalid("request_id", "belongs to a task; resume names its execution instead")
    return read_cursor(request.resume, path="resume")


def require_repair_task(request: pb.RepairRequest) -> RepairTask:
    """Return the request's task.

    Raises:
        InvalidRequestError: there is no task, or `read_repair_task` raises it.
    """
    if not request.HasField("task"):
        raise invalid("task", "is required")
    return read_repair_task(request.task)


def read_repair_task(task: repairs_pb2.RepairTask) -> RepairTask:
    """Return the task; its limits are checked by `repair.repair_requests`.

    Raises:
        InvalidRequestError: there is no goal, or a value that is not declared by the proto or not valid in JSON.
    """
    goal = task.WhichOneof("goal")
    if goal is None:
        raise invalid("task.goal", "is required: set task.fix or task.plan")
    return RepairTask(
        description=task.description,
        goal=RepairGoal(goal),
        files=tuple(
            SourceFile(path=each.path, content=each.content, is_executable=each.is_executable)
            for each in task.files.files
        ),
        snapshot_id=task.snapshot_id,
        environment=task.environment,
        checks=tuple(_read_check(each, path=f"task.checks[{place}]") for place, each in enumerate(task.checks)),
        report=_read_report(task.report),
        editable=tuple(task.editable),
        config=read_config(task.config, path="task.config"),
        budget=read_budget(task.budget, path="task.budget") if task.HasField("budget") else Budget(),
    )


def read_entries(request: pb.CreateSnapshotRequest) -> Sequence[FileEntry]:
    """Return the files of a manifest."""
    return tuple(
        FileEntry(path=each.path, digest=each.digest, size_bytes=each.size_bytes, is_executable=each.is_executable)
        for each in request.manifest
    )


def build_repair_event_message(event: StreamEvent) -> pb.RepairStepsResponse:
    """Return one event of a repair."""
    message = pb.RepairStepsResponse()
    message.execution_id, message.sequence = event.execution_id, event.sequence
    fill_timestamp(message.create_time, event.create_time)
    happening = event.event
    _EVENTS[happening.__class__](message, happening, has_content=True)
    return message


def _fill_task(message: repairs_pb2.RepairTask, task: RepairTask) -> None:
    """Write `task`, so that it can be asked for again."""
    message.description, message.environment = task.description, task.environment
    if task.snapshot_id:
        message.snapshot_id = task.snapshot_id
    getattr(message, task.goal).SetInParent()
    for check in task.checks:
        told = fill(message.checks.add(), check)
        if not check.timeout_s:
            told.ClearField("timeout")
    fill(message.report, task.report)
    message.editable.extend(task.editable)
    fill_typed(message.config, task.config)
    fill_budget(message.budget, task.budget)


def build_snapshot_response(snapshot: Snapshot) -> pb.CreateSnapshotResponse:
    """Return a snapshot and what is missing of it."""
    return pb.CreateSnapshotResponse(snapshot=fill(repairs_pb2.Snapshot(), snapshot), missing=snapshot.missing)


def _read_check(check: repairs_pb2.Check, *, path: str) -> Check:
    role = _read_word(CheckRole, repairs_pb2.CheckRole.DESCRIPTOR, check.role, path=f"{path}.role")
    has_timeout = check.HasField("timeout")
    return Check(
        name=check.name,
        role=role or CheckRole.REPRODUCE,
        argv=tuple(check.argv),
        command=check.command,
        format=_read_word(ResultFormat, repairs_pb2.ResultFormat.DESCRIPTOR, check.format, path=f"{path}.format"),
        timeout_s=read_seconds(check.timeout, path=f"{path}.timeout") if has_timeout else 0.0,
    )


def _read_report(report: repairs_pb2.CriticReport) -> CriticReport:
    return CriticReport(
        issues=tuple(
            _read_finding(each, path=f"task.report.issues[{place}]") for place, each in enumerate(report.issues)
        ),
        test_outcomes=tuple(
            SuiteOutcome(suite_name=each.suite_name, is_passed=each.is_passed, coverage=each.coverage)
            for each in report.test_outcomes
        ),
    )


def _read_finding(finding: repairs_pb2.Finding, *, path: str) -> Finding:
    severity = _read_word(Severity, repairs_pb2.Severity.DESCRIPTOR, finding.severity, path=f"{path}.severity")
    return Finding(
        rule_id=finding.rule_id,
        severity=severity or Severity.LOW,
        path=finding.path,
        line=finding.line,
        message=finding.message,
    )


def _read_word(kind: type[WordT], enum: EnumDescriptor, number: int, *, path: str) -> WordT | None:
    """Return the member of `kind` for an enum's value; None for unspecified."""
    word = read_enum_word(enum, number, path=path)
    return None if word is None else kind(word)


_TASK_FIELDS: Final = frozenset(field.name for field in repairs_pb2.RepairTask.DESCRIPTOR.fields)
_FILE: Final = re.compile(r"^files(?=\[)")


class RepairServicer(repair_service_pb2_grpc.RepairServiceServicer):
    """Serves `reasond.v1.RepairService` from the core.

    A client that does not read a message within `write_timeout_s` seconds is disconnected (SLOW_CONSUMER); it can
    resume.
    """

    def __init__(
        self, *, service: RepairService, write_timeout_s: float = 30.0, observer: Observer = UNOBSERVED
    ) -> None:
        self._service = service
        self._streams = StreamWriter(write_timeout_s=write_timeout_s, observer=observer)

    def register(self, methods: MethodTable) -> None:
        """Add the RPCs to the `methods` of a server."""
        repair_service_pb2_grpc.add_RepairServiceServicer_to_server(self, methods)  # type: ignore[arg-type]  # it takes what it is told

    async def Repair(self, request: pb.RepairRequest, context: Context) -> pb.RepairResponse:
        """Work a repair out and return its result."""
        task = require_repair_task(request)
        with _name_fields():
            result = await self._service.run(get_current_principal(), task, request_id=request.request_id)
        return pb.RepairResponse(repair=fill(repairs_pb2.Repair(), result))

    async def RepairSteps(  # type: ignore[override]  # grpc.aio takes coroutines that write, see `handlers`
        self, request: pb.RepairStepsRequest, context: Context
    ) -> None:
        """Write the events of a new or an earlier repair as they come."""
        source = read_source(request)
        with _name_fields():
            events = self._service.stream(
                get_current_principal(),
                source,
                request_id=request.request_id,
                include_deltas=request.include_deltas,
                keep_running=request.keep_running,
            )
            await self._streams.write(events, context, build_repair_event_message)

    async def GetRepair(self, request: pb.GetRepairRequest, context: Context) -> pb.GetRepairResponse:
        """Return a repair, with its result once it has ended."""
        execution_id = require_id(request.execution_id, field="execution_id")
        found = await self._service.get(get_current_principal(), execution_id)
        return build_repair_view_response(found)

    async def CreateSnapshot(self, request: pb.CreateSnapshotRequest, context: Context) -> pb.CreateSnapshotResponse:
        """Keep a manifest and name the contents that are missing."""
        return build_snapshot_response(
            await self._service.create_snapshot(get_current_principal(), read_entries(request))
        )

    async def UploadBlobs(self, request: pb.UploadBlobsRequest, context: Context) -> pb.UploadBlobsResponse:
        """Store contents that a snapshot misses."""
        digests = await self._service.upload_blobs(get_current_principal(), tuple(request.contents))
        return pb.UploadBlobsResponse(digests=digests)

    async def ListEnvironments(
        self, request: pb.ListEnvironmentsRequest, context: Context
    ) -> pb.ListEnvironmentsResponse:
        """List the environments of checks."""
        return fill(pb.ListEnvironmentsResponse(), self._service.list_environments())


def build_repair_view_response(view: RepairView) -> pb.GetRepairResponse:
    """Return the execution of a repair, how it ended, and its task."""
    response = pb.GetRepairResponse(execution=fill(execution_pb2.Execution(), view.execution))
    if view.repair is not None:
        fill(response.repair, view.repair)
    if view.task is not None:
        _fill_task(response.task, view.task)
    return response


@contextmanager
def _name_fields() -> Iterator[None]:
    """Make violations name the fields of the request: `checks[0].argv` becomes `task.checks[0].argv`."""
    try:
        yield
    except ReasondError as error:
        # The files are within a message of their own.
        error.violations = tuple(replace(each, field=_FILE.sub("files.files", each.field)) for each in error.violations)
        prefix_fields(error, "task.", _TASK_FIELDS)
        raise
