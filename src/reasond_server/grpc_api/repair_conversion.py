"""Repairs over gRPC: requests of the proto -> types, and types -> messages by the declarations of their kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from reasond.v1 import repair_service_pb2 as pb
from reasond.v1 import repairs_pb2
from reasond_server.grpc_api.filling import Alternatives, fill
from reasond_server.grpc_api.requests import budget_of, config_of, enum_word, invalid, required_id, seconds_of
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


def source_of(request: pb.RepairStepsRequest) -> RepairTask | RepairCursor:
    """Return what the request wants. Raises as `repair_task_of`."""
    case = request.WhichOneof("source")
    if case is None:
        raise invalid("task", "is required, unless resume is given")
    if case == "task":
        return repair_task_of(request.task)
    if request.request_id:
        raise invalid("request_id", "belongs to a task; resume names its execution instead")
    cursor = request.resume
    if cursor.after_sequence < 0:
        raise invalid("resume.after_sequence", f"must be at least 0, got {cursor.after_sequence}")
    return RepairCursor(
        execution_id=required_id(cursor.execution_id, field="resume.execution_id"), after_sequence=cursor.after_sequence
    )


def required_repair_task(request: pb.RepairRequest) -> RepairTask:
    """Return the request's task.

    Raises:
        InvalidRequestError: there is no task, or `repair_task_of` raises it.
    """
    if not request.HasField("task"):
        raise invalid("task", "is required")
    return repair_task_of(request.task)


def repair_task_of(task: repairs_pb2.RepairTask) -> RepairTask:
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
        checks=tuple(_check_of(each, path=f"task.checks[{place}]") for place, each in enumerate(task.checks)),
        report=_report_of(task.report),
        editable=tuple(task.editable),
        config=config_of(task.config, path="task.config"),
        budget=budget_of(task.budget, path="task.budget") if task.HasField("budget") else Budget(),
    )


def entries_of(request: pb.CreateSnapshotRequest) -> Sequence[FileEntry]:
    """Return the files of a manifest."""
    return tuple(
        FileEntry(path=each.path, digest=each.digest, size_bytes=each.size_bytes, is_executable=each.is_executable)
        for each in request.manifest
    )


def repair_event_message(event: StreamEvent) -> pb.RepairStepsResponse:
    """Return one event of a repair."""
    message = pb.RepairStepsResponse()
    message.execution_id, message.sequence = event.execution_id, event.sequence
    fill_timestamp(message.create_time, event.create_time)
    happening = event.event
    _EVENTS[happening.__class__](message, happening, True)
    return message


def snapshot_response(snapshot: Snapshot) -> pb.CreateSnapshotResponse:
    """Return a snapshot and what is missing of it."""
    return pb.CreateSnapshotResponse(snapshot=fill(repairs_pb2.Snapshot(), snapshot), missing=snapshot.missing)


def _check_of(check: repairs_pb2.Check, *, path: str) -> Check:
    role = _word_of(CheckRole, repairs_pb2.CheckRole.DESCRIPTOR, check.role, path=f"{path}.role")
    has_timeout = check.HasField("timeout")
    return Check(
        name=check.name,
        role=role or CheckRole.REPRODUCE,
        argv=tuple(check.argv),
        command=check.command,
        format=_word_of(ResultFormat, repairs_pb2.ResultFormat.DESCRIPTOR, check.format, path=f"{path}.format"),
        timeout_s=seconds_of(check.timeout, path=f"{path}.timeout") if has_timeout else 0.0,
    )


def _report_of(report: repairs_pb2.CriticReport) -> CriticReport:
    return CriticReport(
        issues=tuple(
            _finding_of(each, path=f"task.report.issues[{place}]") for place, each in enumerate(report.issues)
        ),
        test_outcomes=tuple(
            SuiteOutcome(suite_name=each.suite_name, is_passed=each.is_passed, coverage=each.coverage)
            for each in report.test_outcomes
        ),
    )


def _finding_of(finding: repairs_pb2.Finding, *, path: str) -> Finding:
    severity = _word_of(Severity, repairs_pb2.Severity.DESCRIPTOR, finding.severity, path=f"{path}.severity")
    return Finding(
        rule_id=finding.rule_id,
        severity=severity or Severity.LOW,
        path=finding.path,
        line=finding.line,
        message=finding.message,
    )


def _word_of(kind: type[WordT], enum: EnumDescriptor, number: int, *, path: str) -> WordT | None:
    """Return the member of `kind` for an enum's value; None for unspecified."""
    word = enum_word(enum, number, path=path)
    return None if word is None else kind(word)
