"""Repairs over gRPC: requests of the proto -> types, and types -> messages by the declarations of their kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from reasond.v1 import repair_service_pb2 as pb
from reasond.v1 import repairs_pb2
from reasond_server.grpc_api.message_writers import Alternatives, fill
from reasond_server.grpc_api.requests import invalid, read_budget, read_config, read_enum_word, read_seconds, require_id
from reasond_server.grpc_api.times import fill_timestamp
from reasond_server.repair.service.repair_service import RepairCursor
from reasond_server.types import Budget
from reasond_server.types.kinds import EVENTS
from reasond_server.types.repairs import (
    Check,
    CheckRole,
    CriticReport,
    Finding,
    RepairGoal,
    RepairTask,
    ResultFormat,
    Severity,
    SuiteOutcome,
)
from reasond_server.types.snapshots import FileEntry, Snapshot, SourceFile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from enum import StrEnum

    from google.protobuf.descriptor import EnumDescriptor

    from reasond_server.types import StreamEvent

WordT = TypeVar("WordT", bound="StrEnum")

_EVENTS: Final = Alternatives(EVENTS, pb.RepairStepsResponse.DESCRIPTOR.oneofs_by_name["event"])


def read_source(request: pb.RepairStepsRequest) -> RepairTask | RepairCursor:
    """Return what the request wants. Raises as `read_repair_task`."""
    case = request.WhichOneof("source")
    if case is None:
        raise invalid("task", "is required, unless resume is given")
    if case == "task":
        return read_repair_task(request.task)
    if request.request_id:
        raise invalid("request_id", "belongs to a task; resume names its execution instead")
    cursor = request.resume
    if cursor.after_sequence < 0:
        raise invalid("resume.after_sequence", f"must be at least 0, got {cursor.after_sequence}")
    return RepairCursor(
        execution_id=require_id(cursor.execution_id, field="resume.execution_id"), after_sequence=cursor.after_sequence
    )


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
        raise invalid("task.goal", "is required")
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
    _EVENTS[happening.__class__](message, happening, True)
    return message


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
