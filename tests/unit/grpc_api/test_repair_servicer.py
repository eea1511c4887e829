"""RepairService over a real gRPC server, above a scripted service."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from reasond.v1 import repair_service_pb2 as pb
from reasond.v1 import repairs_pb2
from reasond.v1.execution_pb2 import Budget as BudgetMessage
from reasond.v1.execution_pb2 import ExecutionCursor
from reasond_server.errors.base import Violation
from reasond_server.errors.repairs import SnapshotNotFoundError
from reasond_server.errors.request import InvalidConfigError, InvalidRequestError
from reasond_server.types import Budget, Cursor
from reasond_server.types.repairs import (
    Check,
    CheckRole,
    CriticReport,
    Finding,
    RepairGoal,
    RepairTask,
    ResultFormat,
    Severity,
    SourceFile,
    SuiteOutcome,
)
from tests.unit.grpc_api.parts import AUTHORIZED, PRINCIPAL, get_error, serving
from tests.unit.repair.scripted import ENTRY, EVENTS, ScriptedRepairs

MESSAGE = repairs_pb2.RepairTask(
    description="It fails.",
    files=repairs_pb2.SourceFiles(files=[repairs_pb2.SourceFile(path="a.py", content=b"\xff", is_executable=True)]),
    fix=repairs_pb2.Fix(),
    environment="python",
    checks=[
        repairs_pb2.Check(
            name="tests",
            role=repairs_pb2.CHECK_ROLE_HELD_OUT,
            argv=["pytest", "-q"],
            format=repairs_pb2.RESULT_FORMAT_JUNIT,
            timeout=Duration(seconds=2, nanos=500_000_000),
        ),
        repairs_pb2.Check(name="all", command="make"),
    ],
    report=repairs_pb2.CriticReport(
        issues=[
            repairs_pb2.Finding(
                rule_id="F821", severity=repairs_pb2.SEVERITY_HIGH, path="a.py", line=3, message="no name"
            ),
            repairs_pb2.Finding(rule_id="W1"),
        ],
        test_outcomes=[repairs_pb2.SuiteOutcome(suite_name="unit", is_passed=True, coverage=81.5)],
    ),
    editable=["tests/*"],
    config=repairs_pb2.RepairConfig(
        search=repairs_pb2.REPAIR_SEARCH_BEST_OF_N, temperature=0.0, enable_early_terminate=False, seed=7
    ),
    budget=BudgetMessage(max_model_calls=3),
)
TASK = RepairTask(
    description="It fails.",
    goal=RepairGoal.FIX,
    files=(SourceFile(path="a.py", content=b"\xff", is_executable=True),),
    environment="python",
    checks=(
        Check(name="tests", role=CheckRole.HELD_OUT, argv=("pytest", "-q"), format=ResultFormat.JUNIT, timeout_s=2.5),
        Check(name="all", role=CheckRole.REPRODUCE, command="make"),
    ),
    report=CriticReport(
        issues=(
            Finding(rule_id="F821", severity=Severity.HIGH, path="a.py", line=3, message="no name"),
            Finding(rule_id="W1", severity=Severity.LOW, path="", line=0, message=""),
        ),
        test_outcomes=(SuiteOutcome(suite_name="unit", is_passed=True, coverage=81.5),),
    ),
    editable=("tests/*",),
    config={"search": "best_of_n", "temperature": 0.0, "enable_early_terminate": False, "seed": 7},
    budget=Budget(max_model_calls=3),
)
PLAN_MESSAGE = repairs_pb2.RepairTask(description="Design it.", snapshot_id="s1", plan=repairs_pb2.Plan())
PLAN = RepairTask(description="Design it.", snapshot_id="s1", goal=RepairGoal.PLAN)


async def test_repair_asks_the_core_for_what_the_request_says() -> None:
    repairs = ScriptedRepairs()
    async with serving(repairs=repairs) as served:
        done = await served.repairs.Repair(pb.RepairRequest(task=MESSAGE, request_id="mine"), metadata=AUTHORIZED)
        await served.repairs.Repair(pb.RepairRequest(task=PLAN_MESSAGE), metadata=AUTHORIZED)
    assert repairs.calls == [
        {"method": "run", "caller": PRINCIPAL, "task": TASK, "request_id": "mine"},
        {"method": "run", "caller": PRINCIPAL, "task": PLAN, "request_id": ""},
    ]
    assert (done.repair.execution_id, done.repair.ranking[0].score) == ("repair-1", 97.5)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"task": MESSAGE}, TASK),
        (
            {"resume": ExecutionCursor(execution_id="repair-1", after_sequence=4)},
            Cursor(execution_id="repair-1", after_sequence=4),
        ),
    ],
)
async def test_a_stream_asks_the_core_and_writes_every_event(source: dict[str, Any], expected: Any) -> None:
    repairs = ScriptedRepairs()
    async with serving(repairs=repairs) as served:
        request = pb.RepairStepsRequest(**source, include_deltas=True, keep_running=True)
        received = [event async for event in served.repairs.RepairSteps(request, metadata=AUTHORIZED)]
    options = {"request_id": "", "include_deltas": True, "keep_running": True}
    assert repairs.calls == [{"method": "stream", "caller": PRINCIPAL, "source": expected, **options}]
    assert [event.sequence for event in received] == [each.sequence for each in EVENTS][-len(received) :]
    assert {event.execution_id for event in received} == {"repair-1"}
    assert received[-1].WhichOneof("event") == "completed"


async def test_the_other_rpcs_ask_the_core_and_answer() -> None:
    repairs = ScriptedRepairs()
    entry = repairs_pb2.FileEntry(path=ENTRY.path, digest=ENTRY.digest, size_bytes=12, is_executable=True)
    async with serving(repairs=repairs) as served:
        stub, md = served.repairs, AUTHORIZED
        got = await stub.GetRepair(pb.GetRepairRequest(execution_id="repair-1"), metadata=md)
        made = await stub.CreateSnapshot(pb.CreateSnapshotRequest(manifest=[entry]), metadata=md)
        put = await stub.UploadBlobs(pb.UploadBlobsRequest(contents=[b"one", b""]), metadata=md)
        listed = await stub.ListEnvironments(pb.ListEnvironmentsRequest(), metadata=md)
    assert (got.execution.request_id, got.execution.strategy, got.repair.model) == ("mine", "repair", "scripted")
    assert (made.snapshot.file_count, made.snapshot.total_bytes, list(made.missing)) == (2, 42, ["cd" * 32])
    assert list(put.digests) == ["ab" * 32] * 2
    assert (listed.environments[0].format, listed.level) == (
        repairs_pb2.RESULT_FORMAT_JUNIT,
        repairs_pb2.SANDBOX_LEVEL_BWRAP,
    )
    assert [call["method"] for call in repairs.calls] == [
        *("get", "create_snapshot", "upload_blobs", "list_environments")
    ]
    assert (repairs.calls[1]["entries"], repairs.calls[2]["contents"]) == ((ENTRY,), (b"one", b""))


def task(**changes: Any) -> pb.RepairRequest:
    return pb.RepairRequest(task=repairs_pb2.RepairTask(**{"fix": repairs_pb2.Fix(), **changes}))


@pytest.mark.parametrize(
    ("request_", "field", "says"),
    [
        (pb.RepairRequest(), "task", "is required"),
        (pb.RepairRequest(task=repairs_pb2.RepairTask()), "task.goal", "is required: set task.fix or task.plan"),
        (task(checks=[repairs_pb2.Check(role=9)]), "task.checks[0].role", "must be one of CHECK_ROLE_UNSPECIFIED,"),  # type: ignore[arg-type]  # clients can send any number
        (task(checks=[{}, {"format": 9}]), "task.checks[1].format", "must be one of RESULT_FORMAT_UNSPECIFIED,"),
        (
            task(checks=[{"timeout": Duration(seconds=1, nanos=-1)}]),
            "task.checks[0].timeout",
            "must be -315576000000 to 315576000000 seconds",
        ),
        (
            task(report={"issues": [{"severity": 9}]}),
            "task.report.issues[0].severity",
            "must be one of SEVERITY_UNSPECIFIED,",
        ),
        (task(config={"search": 9}), "task.config.search", "must be one of REPAIR_SEARCH_UNSPECIFIED,"),
        (task(config={"top_p": float("nan")}), "task.config.top_p", "must be a finite number, not nan"),
        (pb.RepairStepsRequest(), "task", "is required, unless resume is given"),
        (
            pb.RepairStepsRequest(resume=ExecutionCursor(execution_id="r"), request_id="mine"),
            "request_id",
            "belongs to a task; resume names its execution instead",
        ),
        (pb.RepairStepsRequest(resume=ExecutionCursor()), "resume.execution_id", "is required"),
        (
            pb.RepairStepsRequest(resume=ExecutionCursor(execution_id="r", after_sequence=-1)),
            "resume.after_sequence",
            "must be at least 0, got -1",
        ),
        (pb.GetRepairRequest(), "execution_id", "is required"),
    ],
)
async def test_malformed_requests_are_refused_before_the_core(request_: Any, field: str, says: str) -> None:
    repairs = ScriptedRepairs()
    async with serving(repairs=repairs) as served:
        rpc = getattr(served.repairs, type(request_).__name__.removesuffix("Request"))
        code, _, details = await get_error(rpc(request_, metadata=AUTHORIZED))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    (violation,) = details["BadRequest"].field_violations
    assert violation.field == field
    assert violation.description.startswith(says)
    assert not repairs.calls


@pytest.mark.parametrize("kind", [InvalidRequestError, InvalidConfigError])
@pytest.mark.parametrize("rpc", ["Repair", "RepairSteps"])
async def test_violations_of_the_core_name_the_fields_of_the_request(kind: Any, rpc: str) -> None:
    told = ("checks[1].argv", "files[3].path", "files", "config.top_p", "budget.max_elapsed", "request_id")
    failure = kind.of(*(Violation(field=field, description="is wrong") for field in told))
    async with serving(repairs=ScriptedRepairs(failure=failure)) as served:
        request = getattr(pb, f"{rpc}Request")(task=MESSAGE)
        _, _, details = await get_error(getattr(served.repairs, rpc)(request, metadata=AUTHORIZED))
    assert [each.field for each in details["BadRequest"].field_violations] == [
        "task.checks[1].argv",
        "task.files.files[3].path",
        "task.files",
        "task.config.top_p",
        "task.budget.max_elapsed",
        "request_id",
    ]


async def test_a_snapshot_that_is_gone_is_not_found() -> None:
    failure = SnapshotNotFoundError("There is no snapshot 's1'")
    async with serving(repairs=ScriptedRepairs(failure=failure)) as served:
        call = served.repairs.Repair(pb.RepairRequest(task=PLAN_MESSAGE), metadata=AUTHORIZED)
        code, _, details = await get_error(call)
    assert (code, details["ErrorInfo"].reason) == (grpc.StatusCode.NOT_FOUND, "SNAPSHOT_NOT_FOUND")


@pytest.mark.parametrize("rpc", ["Repair", "RepairSteps", "CreateSnapshot", "UploadBlobs", "ListEnvironments"])
async def test_every_rpc_needs_its_permission(rpc: str) -> None:
    async with serving(repairs=ScriptedRepairs()) as served:
        call = getattr(served.repairs, rpc)(
            getattr(pb, f"{rpc}Request")(), metadata=(("authorization", "Bearer powerless"),)
        )
        code, message, _ = await get_error(call)
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert "'repair:execute'" in message
