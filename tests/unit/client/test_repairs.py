"""Repairs with both clients, against a scripted server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from reasond import AsyncClient, Check, Client, ReconnectPolicy, SourceFile, UnavailableError, repair_task
from reasond.v1 import repair_service_pb2 as pb
from reasond.v1 import repairs_pb2
from reasond.v1.execution_pb2 import ExecutionCursor, Heartbeat
from reasond.v1.execution_service_pb2 import FollowExecutionRequest, FollowExecutionResponse
from reasond.v1.turn_service_pb2 import ExecuteTurnResponse
from reasond.v1.turns_pb2 import TurnResult

if TYPE_CHECKING:
    from tests.unit.client.conftest import Failure, ScriptedServer

QUICK = ReconnectPolicy(initial_backoff_s=0.001, max_backoff_s=0.001)
CHECK = Check(name="tests", argv=["pytest", "-q"])
TASK = repair_task("It fails.", files={"a.py": "x = 1\n"}, environment="python", checks=[CHECK])
REPAIR = repairs_pb2.Repair(execution_id="r1", patch="--- a/a.py", is_accepted=True)


def event(sequence: int, **event: Any) -> pb.RepairStepsResponse:
    return pb.RepairStepsResponse(execution_id="r1", sequence=sequence, **event)


STARTED = event(1, started=repairs_pb2.RepairStarted(model="m"))
JUDGED = event(2, critique=repairs_pb2.CritiqueStep(candidate_id="c1", score=90.0))
COMPLETED = event(3, completed=REPAIR)


@pytest.fixture(params=["async", "sync"])
def ask(request: pytest.FixtureRequest, server: ScriptedServer) -> Any:
    """A function that calls a method of a client; it returns the result, or a stream's events and its result."""

    async def asynchronously(method: str, *arguments: Any, **named: Any) -> Any:
        async with AsyncClient(server.target) as client:
            found = getattr(client, method)(*arguments, **named)
            if isinstance(found, AsyncIterator):
                events = [each async for each in found]
                return events, found.result  # type: ignore[attr-defined]  # a stream of repairs has it
            return await found

    def blocking(method: str, *arguments: Any, **named: Any) -> Any:
        with Client(server.target) as client:
            found = getattr(client, method)(*arguments, **named)
            if isinstance(found, Iterator):
                events = list(found)
                return events, found.result  # type: ignore[attr-defined]  # a stream of repairs has it
            return found

    if request.param == "sync":
        return blocking
    return lambda *arguments, **named: asyncio.run(asynchronously(*arguments, **named))


def test_a_task_is_built_from_plain_values() -> None:
    files: dict[str, str | bytes] = {"a.py": "ä", "b.bin": b"\xff"}
    task = repair_task(
        "It fails.",
        files=files,
        environment="python",
        checks=[CHECK],
        editable=["tests/*"],
        config={"search": "lats", "max_candidates": 7, "seed": None},
    )
    assert task.files.files == [
        SourceFile(path="a.py", content="ä".encode()),
        SourceFile(path="b.bin", content=b"\xff"),
    ]
    assert task.WhichOneof("goal") == "fix"
    assert (task.config.search, task.config.max_candidates) == (repairs_pb2.REPAIR_SEARCH_LATS, 7)
    assert not task.config.HasField("seed")
    plan = repair_task("Design it.", snapshot_id="s1", is_plan=True)
    assert (plan.WhichOneof("goal"), plan.WhichOneof("code"), plan.snapshot_id) == ("plan", "snapshot_id", "s1")
    assert repair_task("Design it.", is_plan=True).WhichOneof("code") is None


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ({"config": {"max_candidate": 7}}, "did you mean 'max_candidates'"),
        ({"config": {"max_candidates": "many"}}, "max_candidates must be a whole number"),
        ({"config": {"search": "mcts"}}, "search must be one of REFINE_BEAM, LATS"),
        ({"files": {"a": ""}, "snapshot_id": "s"}, "only one of files and snapshot_id"),
    ],
)
def test_a_task_that_cannot_be_sent_is_refused_here(named: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        repair_task("It fails.", **named)


def test_a_repair_returns_its_result_and_is_sent_again_under_one_id(
    ask: Any, server: ScriptedServer, failure: type[Failure]
) -> None:
    server.answers("Repair", failure(code=grpc.StatusCode.UNAVAILABLE), pb.RepairResponse(repair=REPAIR))
    assert ask("repair", TASK) == REPAIR
    first, second = server.of("Repair")
    assert first.request.task == TASK
    assert first.request.request_id
    assert first.request.request_id == second.request.request_id


def test_a_stream_that_is_cut_goes_on_after_its_last_event(
    ask: Any, server: ScriptedServer, failure: type[Failure]
) -> None:
    waiting = event(1, heartbeat=Heartbeat())
    server.answers(
        "RepairSteps",
        [STARTED, waiting, failure(code=grpc.StatusCode.UNAVAILABLE)],
        [JUDGED, COMPLETED],
    )
    events, result = ask("repair_steps", TASK, request_id="mine", keep_running=True, reconnect=QUICK)
    assert events == [STARTED, waiting, JUDGED, COMPLETED]
    assert result == REPAIR
    first, second = (call.request for call in server.of("RepairSteps"))
    assert (first.task, first.request_id, first.keep_running) == (TASK, "mine", True)
    cursor = ExecutionCursor(execution_id="r1", after_sequence=1)
    assert second == pb.RepairStepsRequest(resume=cursor, keep_running=True)


def test_an_observer_goes_on_after_the_last_event_of_any_kind(
    ask: Any, server: ScriptedServer, failure: type[Failure]
) -> None:
    cut = failure(code=grpc.StatusCode.UNAVAILABLE)
    answers = [FollowExecutionResponse(repair=one) for one in (STARTED, JUDGED, COMPLETED)]
    server.answers("FollowExecution", [answers[0], cut], [answers[1], cut], [answers[2]])
    events, result = ask("follow_execution", "r1", include_deltas=True, reconnect=QUICK)
    assert (events, result) == (answers, REPAIR)
    assert [call.request for call in server.calls] == [
        FollowExecutionRequest(execution_id="r1", after_sequence=after, include_deltas=True)
        for after in (0, STARTED.sequence, JUDGED.sequence)
    ]


def test_an_observed_turn_has_its_result(ask: Any, server: ScriptedServer) -> None:
    done = ExecuteTurnResponse(turn_id="t1", sequence=5, completed=TurnResult(answer="42"))
    server.answers("FollowExecution", [FollowExecutionResponse(turn=done)])
    assert ask("follow_execution", "t1", after_sequence=4)[1] == done.completed


def test_without_reconnect_a_cut_stream_fails(ask: Any, server: ScriptedServer, failure: type[Failure]) -> None:
    server.answers("RepairSteps", [STARTED, failure(code=grpc.StatusCode.UNAVAILABLE)])
    with pytest.raises(UnavailableError) as caught:
        ask("repair_steps", TASK)
    assert caught.value.execution_id == "r1"
    with pytest.raises(ValueError, match="reconnect needs keep_running"):
        ask("repair_steps", TASK, reconnect=True)


def test_a_repair_is_followed_from_a_cursor(ask: Any, server: ScriptedServer) -> None:
    server.answers("RepairSteps", [COMPLETED])
    cursor = ExecutionCursor(execution_id="r1", after_sequence=2)
    events, result = ask("repair_steps", cursor, include_deltas=True)
    assert (events, result) == ([COMPLETED], REPAIR)
    assert server.calls[0].request == pb.RepairStepsRequest(resume=cursor, include_deltas=True)


def test_the_other_methods_send_their_requests(ask: Any, server: ScriptedServer) -> None:
    got = pb.GetRepairResponse(repair=REPAIR)
    created = pb.CreateSnapshotResponse(snapshot=repairs_pb2.Snapshot(snapshot_id="s1"), missing=["d1"])
    listed = pb.ListEnvironmentsResponse(commands=["tests"])
    entry = repairs_pb2.FileEntry(path="a.py", digest="d1", size_bytes=3)
    server.answers("GetRepair", got)
    server.answers("CreateSnapshot", created)
    server.answers("UploadBlobs", pb.UploadBlobsResponse(digests=["d1"]))
    server.answers("ListEnvironments", listed)
    assert ask("get_repair", "r1") == got
    assert ask("create_snapshot", [entry]) == created
    assert list(ask("upload_blobs", [b"abc"])) == ["d1"]
    assert ask("list_environments") == listed
    assert [call.request for call in server.calls] == [
        pb.GetRepairRequest(execution_id="r1"),
        pb.CreateSnapshotRequest(manifest=[entry]),
        pb.UploadBlobsRequest(contents=[b"abc"]),
        pb.ListEnvironmentsRequest(),
    ]
