"""`reasond executions` against a scripted server: what is asked for, and what is printed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from reasond.v1 import execution_service_pb2 as executions_pb
from reasond.v1 import reasoning_service_pb2 as pb
from reasond.v1.execution_pb2 import (
    Execution,
    ExecutionStarted,
    ExecutionState,
    FinishReason,
    Iteration,
    Reasoning,
    ReasoningTask,
    Usage,
)
from reasond.v1.repair_service_pb2 import RepairStepsResponse
from reasond.v1.repairs_pb2 import Repair
from reasond.v1.strategies_pb2 import Thought
from reasond.v1.turn_service_pb2 import ExecuteTurnResponse
from reasond.v1.turns_pb2 import TurnResult
from reasond_server.cli.commands.executions import follow, format_execution, list_executions, show_execution
from reasond_server.cli.outcome import CommandError, ExitCode
from tests.unit.cli.commands.test_turn import connect_to
from tests.unit.client.conftest import ScriptedServer

if TYPE_CHECKING:
    from collections.abc import Iterator

EXECUTION = Execution(
    execution_id="e1",
    state=ExecutionState.EXECUTION_STATE_SUCCEEDED,
    strategy="chain_of_thought",
    usage=Usage(input_tokens=1000, output_tokens=234),
)
LINE = "e1  succeeded  1970-01-01T00:00:00Z  chain_of_thought  1,234 tokens"
STEP = Iteration(thought=Thought(text="6 * 7", answer="42"), answer_found=True)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    scripted = ScriptedServer()
    scripted.start()
    yield scripted
    scripted.stop()


def test_executions_are_listed_by_state_and_time(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers("ListExecutions", executions_pb.ListExecutionsResponse(executions=[EXECUTION]))
    code = list_executions(
        strategy="react",
        state="Succeeded",
        since="2026-11-23T10:00:00Z",
        until="2026-11-24",
        connection=connect_to(server),
        environ={},
    )
    assert code is ExitCode.OK
    assert capsys.readouterr().out.splitlines() == [LINE]
    asked = server.calls[0].request
    assert (asked.strategy, asked.state) == ("react", ExecutionState.EXECUTION_STATE_SUCCEEDED)
    assert asked.create_time_after.ToDatetime(UTC) == datetime(2026, 11, 23, 10, tzinfo=UTC)
    assert asked.create_time_before.seconds == datetime(2026, 11, 24).astimezone().timestamp()


def test_a_line_says_how_it_ended_and_when_it_began_to_the_second() -> None:
    cut = Execution(create_time=Timestamp(seconds=86_399, nanos=999_999_999))
    cut.MergeFrom(EXECUTION)
    cut.finish_reason = FinishReason.FINISH_REASON_BUDGET_EXHAUSTED
    assert format_execution(cut) == "e1  budget_exhausted  1970-01-01T23:59:59Z  chain_of_thought  1,234 tokens"


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"state": "done"}, "--state 'done' is no state"),
        ({"since": "yesterday"}, "--since 'yesterday' is no time"),
        ({"until": ""}, "--until '' is no time"),
    ],
)
def test_a_filter_that_cannot_be_sent_is_refused_here(
    wanted: dict[str, Any], says: str, server: ScriptedServer
) -> None:
    with pytest.raises(CommandError, match=says) as refused:
        list_executions(**wanted, connection=connect_to(server), environ={})
    assert refused.value.code is ExitCode.BAD_REQUEST
    assert server.calls == []


def test_an_execution_is_shown_with_its_task_and_its_answer(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    found = executions_pb.GetExecutionResponse(
        execution=EXECUTION,
        task=ReasoningTask(query="What is\nsix times seven?", material="x" * 1500),
        reasoning=Reasoning(answer="42", trace=[STEP], warnings=["one"]),
    )
    server.answers("GetExecution", found, found)
    assert show_execution("e1", connection=connect_to(server), environ={}, as_json=False) is ExitCode.OK
    out = capsys.readouterr().out.splitlines()
    assert out[:3] == [LINE, "asked: What is six times seven?", "material: 1,500 characters"]
    assert "answer found; 6 * 7" in out[3]
    assert out[-2:] == ["note: one", "42"]
    assert show_execution("e1", connection=connect_to(server), environ={}, as_json=True) is ExitCode.OK
    assert '"material": "xxx' in capsys.readouterr().out


def test_every_kind_is_followed_as_its_own_command_shows_it(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    task = [
        pb.ReasonIterationsResponse(execution_id="e1", sequence=1, started=ExecutionStarted(strategy="s", model="m")),
        pb.ReasonIterationsResponse(execution_id="e1", sequence=2, iteration=STEP),
        pb.ReasonIterationsResponse(execution_id="e1", sequence=3, completed=Reasoning(answer="42")),
    ]
    turn = ExecuteTurnResponse(turn_id="t1", sequence=9, completed=TurnResult(answer="Hello."))
    repair = RepairStepsResponse(execution_id="r1", sequence=9, completed=Repair(patch="-old\n+new\n"))
    server.answers(
        "FollowExecution",
        [executions_pb.FollowExecutionResponse(reasoning=event) for event in task],
        [executions_pb.FollowExecutionResponse(turn=turn)],
        [executions_pb.FollowExecutionResponse(repair=repair)],
        [executions_pb.FollowExecutionResponse(turn=turn)],
    )
    for name, said in (("e1", "42"), ("t1", "Hello."), ("r1", "+new")):
        assert follow(name, 0, connection=connect_to(server), environ={}, as_json=False) is ExitCode.OK
        told = capsys.readouterr()
        assert said in told.out + told.err
    assert follow("t1", 8, connection=connect_to(server), environ={}, as_json=True) is ExitCode.OK
    assert '"answer": "Hello."' in capsys.readouterr().out
    assert [(call.request.execution_id, call.request.after_sequence) for call in server.calls] == [
        ("e1", 0),
        ("t1", 0),
        ("r1", 0),
        ("t1", 8),
    ]
