"""`reasond turn`, `turns` and `sessions` against a scripted server."""

from __future__ import annotations

import json
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from reasond.v1 import turn_service_pb2 as pb
from reasond.v1 import turns_pb2
from reasond.v1.execution_pb2 import FINISH_REASON_ANSWERED, FINISH_REASON_BUDGET_EXHAUSTED, Usage
from reasond.v1.strategies_pb2 import ToolCall
from reasond_server.cli.commands.turn import (
    attach,
    cancel_turn,
    delete_session,
    list_sessions,
    list_turns,
    load_tools,
    read_answers,
    resolve,
    run_turn,
    show_session,
    show_turn,
)
from reasond_server.cli.connection import ConnectionOptions
from reasond_server.cli.outcome import CommandError, ExitCode
from tests.unit.client.conftest import ScriptedServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOOLS = """
import reasond

@reasond.client_tool
def add(a: int, b: int) -> int:
    "Adds."
    return a + b
"""
RESULT = turns_pb2.TurnResult(
    turn_id="t1",
    answer="The sum is 3.",
    finish_reason=FINISH_REASON_ANSWERED,
    usage=Usage(input_tokens=20, output_tokens=5, model_calls=2),
    warnings=["one warning"],
)


def event(sequence: int, **happening: object) -> pb.ExecuteTurnResponse:
    return pb.ExecuteTurnResponse(turn_id="t1", sequence=sequence, **happening)  # type: ignore[arg-type]  # one kind of event


def pending(call_id: str, tool: str, kind: turns_pb2.CallKind.ValueType) -> turns_pb2.PendingCall:
    return turns_pb2.PendingCall(
        call=ToolCall(call_id=call_id, tool=tool, arguments_json='{"a": 1, "b": 2}'), kind=kind
    )


ADD = pending("c1", "add", turns_pb2.CALL_KIND_EXECUTE)
DEPLOY = pending("c2", "deploy", turns_pb2.CALL_KIND_APPROVE)
MAIL = pending("c3", "mail", turns_pb2.CALL_KIND_RESOLVE)
STARTED = event(1, started=turns_pb2.TurnStarted(session_id="s", mode="default", model="m"))
CALLED = event(
    2, model_call=turns_pb2.ModelCallStep(goal=turns_pb2.CONTEXT_GOAL_PLANNING, text="I\nadd.", calls=[ADD.call])
)
DONE = event(9, completed=RESULT)


def handed_off(*calls: turns_pb2.PendingCall) -> turns_pb2.HandedOff:
    return turns_pb2.HandedOff(etag="h1", expire_time=Timestamp(seconds=0), calls=calls)


def waiting(*calls: turns_pb2.PendingCall) -> pb.GetTurnResponse:
    turn = turns_pb2.Turn(
        turn_id="t1",
        state=turns_pb2.TURN_STATE_AWAITING_CLIENT,
        mode="default",
        create_time=Timestamp(seconds=0),
        handoff=handed_off(*calls),
        ledger=[turns_pb2.LedgerEntry(call_id="c1", tool="add", state=turns_pb2.LEDGER_STATE_HANDED_OFF)],
    )
    return pb.GetTurnResponse(turn=turn)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    scripted = ScriptedServer()
    scripted.start()
    yield scripted
    scripted.stop()


@pytest.fixture
def tools(tmp_path: Path) -> str:
    path = tmp_path / "my_tools.py"
    path.write_text(TOOLS, encoding="utf-8")
    return str(path)


def connect_to(server: ScriptedServer) -> ConnectionOptions:
    return ConnectionOptions(target=server.target, token=None, is_tls=False, ca_file=None, timeout_s=None)


def test_a_turn_shows_a_line_per_event_runs_its_tools_and_prints_the_answer(
    server: ScriptedServer, tools: str, capsys: pytest.CaptureFixture[str]
) -> None:
    handed = event(3, handed_off=handed_off(ADD))
    settled = event(4, reentered=turns_pb2.Reentered(etag="h1", call_ids=["c1"]))
    server.answers("ExecuteTurn", [STARTED, CALLED, handed], [settled, DONE])
    server.answers("GetTurn", waiting(ADD))
    code = run_turn("1 + 2?", session="s", mode="careful", tools=tools, connection=connect_to(server), environ={})
    assert code is ExitCode.OK
    shown = capsys.readouterr()
    assert shown.out == "The sum is 3.\n"
    assert shown.err.splitlines() == [
        "turn t1 in session s: mode default, m",
        "1. planning: I add.",
        '   calls add {"a": 1, "b": 2}',
        "waits for 1 of your calls until 1970-01-01T00:00:00Z:",
        '   c1 execute add {"a": 1, "b": 2}',
        "   settled c1",
        "answered: 2 model calls, 25 tokens, 0.0 s",
        "note: one warning",
    ]
    start, reentry = [call.request for call in server.of("ExecuteTurn")]
    assert (start.start.session_id, start.start.mode, start.start.client_tools[0].name) == ("s", "careful", "add")
    assert [(each.call_id, each.result_json) for each in reentry.reentry.results] == [("c1", "3")]


def test_json_is_one_event_per_line(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers("ExecuteTurn", [STARTED, DONE])
    assert run_turn("x", connection=connect_to(server), environ={}, as_json=True) is ExitCode.OK
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["sequence"], each["turn_id"]) for each in shown] == [("1", "t1"), ("9", "t1")]


def test_the_exit_code_tells_how_the_turn_ended(server: ScriptedServer) -> None:
    ended = turns_pb2.TurnResult(turn_id="t1", finish_reason=FINISH_REASON_BUDGET_EXHAUSTED)
    server.answers("ExecuteTurn", [event(1, completed=ended)])
    assert attach("t1", 0, connection=connect_to(server), environ={}, as_json=False) is ExitCode.LIMIT


def test_attaching_ends_with_the_next_hand_off(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers("ExecuteTurn", [event(3, handed_off=handed_off(DEPLOY))])
    assert attach("t1", 2, connection=connect_to(server), environ={}, as_json=False) is ExitCode.OK
    assert 'c2 approve deploy {"a": 1, "b": 2}' in capsys.readouterr().err
    (call,) = server.of("ExecuteTurn")
    assert call.request.attach.after_sequence == 2


def test_without_a_terminal_an_approval_is_refused_with_the_command_that_gives_it(
    server: ScriptedServer, tools: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", StringIO())
    server.answers("ExecuteTurn", [STARTED, event(2, handed_off=handed_off(ADD, DEPLOY, MAIL))])
    server.answers("GetTurn", waiting(ADD, DEPLOY, MAIL))
    with pytest.raises(CommandError) as caught:
        run_turn("x", tools=tools, connection=connect_to(server), environ={}, as_json=False)
    assert caught.value.message.startswith("Turn t1 waits for a person, and stdin is no terminal: c2 approve deploy")
    assert caught.value.remedy == "Settle it with: reasond turns resolve t1 --approve c2 --result c3=JSON"
    assert len(server.of("ExecuteTurn")) == 1


class Terminal(StringIO):
    """Standard input with a person behind it."""

    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_person_decides_and_stands_in_for_tools_that_are_not_here(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    second = pending("c4", "rollback", turns_pb2.CALL_KIND_APPROVE)
    monkeypatch.setattr("sys.stdin", Terminal('{"sum": 3}\ny\nnot on a Friday\nsent\n'))
    server.answers("GetTurn", waiting(ADD, DEPLOY, second, MAIL))
    server.answers("ExecuteTurn", [DONE])
    assert resolve("t1", connection=connect_to(server), environ={}) is ExitCode.OK
    assert 'c2 approve deploy {"a": 1, "b": 2}\napprove? [y/N or why not] ' in capsys.readouterr().err
    reentry = server.of("ExecuteTurn")[0].request.reentry
    assert [(each.call_id, each.result_json) for each in reentry.results] == [("c1", '{"sum": 3}'), ("c3", '"sent"')]
    decisions = [(each.call_id, each.is_approved, each.reason) for each in reentry.decisions]
    assert decisions == [("c2", True, ""), ("c4", False, "not on a Friday")]


def test_options_settle_what_a_turn_waits_for(server: ScriptedServer, tools: str) -> None:
    second = pending("c4", "rollback", turns_pb2.CALL_KIND_APPROVE)
    third = pending("c5", "look", turns_pb2.CALL_KIND_EXECUTE)
    server.answers("GetTurn", waiting(ADD, DEPLOY, MAIL, second, third))
    server.answers("ExecuteTurn", [DONE])
    code = resolve(
        "t1",
        approve=["c2"],
        refuse=["c4=too late"],
        result=['c3={"sent": true}'],
        error=["c5=no such file"],
        tools=tools,
        connection=connect_to(server),
        environ={},
    )
    assert code is ExitCode.OK
    reentry = server.of("ExecuteTurn")[0].request.reentry
    assert {each.call_id: (each.result_json, each.is_error) for each in reentry.results} == {
        "c1": ("3", False),
        "c3": ('{"sent": true}', False),
        "c5": ('{"error": "no such file"}', True),
    }
    assert {each.call_id: (each.is_approved, each.reason) for each in reentry.decisions} == {
        "c2": (True, ""),
        "c4": (False, "too late"),
    }


def test_answers_for_other_calls_are_refused_before_anything_runs(server: ScriptedServer) -> None:
    server.answers("GetTurn", waiting(DEPLOY))
    with pytest.raises(CommandError, match="does not wait for c9"):
        resolve("t1", approve=["c9"], connection=connect_to(server), environ={})


def test_a_turn_that_does_not_wait_cannot_be_resolved(server: ScriptedServer) -> None:
    server.answers("GetTurn", pb.GetTurnResponse(turn=turns_pb2.Turn(turn_id="t1", state=turns_pb2.TURN_STATE_RUNNING)))
    with pytest.raises(CommandError, match="Turn t1 does not wait: it is running"):
        resolve("t1", connection=connect_to(server), environ={})


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no.such.module", "cannot be imported: ModuleNotFoundError"),
        ("no_such_file.py", "cannot be imported: FileNotFoundError"),
        ("json", "has no function with @reasond.client_tool"),
    ],
)
def test_a_module_without_tools_is_refused(name: str, says: str) -> None:
    with pytest.raises(CommandError, match=says):
        load_tools(name)


@pytest.mark.parametrize(("result", "says"), [("c1", "is not CALL=JSON"), ("c1=done", "is no JSON behind the =")])
def test_a_result_of_another_form_is_refused(result: str, says: str) -> None:
    with pytest.raises(CommandError, match=says):
        read_answers(approved=[], refused=[], results=[result], errors=[])


def test_turns_and_sessions_are_listed_shown_and_deleted(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    turn = waiting(DEPLOY).turn
    session = turns_pb2.Session(session_id="s", revision=2, turn_count=1, mode="default", open_turn_id="t1")
    server.answers("ListTurns", pb.ListTurnsResponse(turns=[turn]))
    server.answers("GetTurn", pb.GetTurnResponse(turn=turn, result=RESULT))
    server.answers("CancelTurn", pb.CancelTurnResponse(turn=turn))
    server.answers("ListSessions", pb.ListSessionsResponse(sessions=[session]))
    server.answers("GetSession", pb.GetSessionResponse(session=session))
    server.answers("DeleteSession", pb.DeleteSessionResponse())
    connection = connect_to(server)
    assert list_turns("s", connection=connection, environ={}, as_json=False) is ExitCode.OK
    assert show_turn("t1", connection=connection, environ={}, as_json=False) is ExitCode.OK
    assert cancel_turn("t1", connection=connection, environ={}) is ExitCode.OK
    assert list_sessions(connection=connection, environ={}, as_json=False) is ExitCode.OK
    assert show_session("s", connection=connection, environ={}, as_json=True) is ExitCode.OK
    assert delete_session("s", connection=connection, environ={}) is ExitCode.OK
    line = "t1  awaiting_client  1970-01-01T00:00:00Z  mode default"
    out = capsys.readouterr().out.splitlines()
    assert out[:7] == [
        line,
        line,
        "   c1 add: handed_off, 0 bytes",
        "waits for 1 of your calls until 1970-01-01T00:00:00Z:",
        '   c2 approve deploy {"a": 1, "b": 2}',
        "note: one warning",
        "The sum is 3.",
    ]
    assert out[7:9] == [
        line,
        "s  revision 2  1 turn  mode default  changed 1970-01-01T00:00:00Z  open t1",
    ]
    assert json.loads(out[9])["revision"] == "2"
    assert server.of("DeleteSession")[0].request.session_id == "s"
