"""Turns over gRPC and JSON-RPC against a real server: the same cases with the same results."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf import json_format
from google.rpc import error_details_pb2  # type: ignore[import-untyped]  # shipped without py.typed
from grpc_status import rpc_status

import reasond
from reasond.v1 import turn_service_pb2 as pb
from reasond.v1 import turn_service_pb2_grpc
from reasond_server.testing import Reply, ScriptedModel, running_server
from reasond_server.types import ToolCall
from tests.http_clients import make_http_client

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.assembly.app import Listening

OPEN_FILE = {
    "name": "open_file",
    "description": "Opens a file.",
    "parameters_json": '{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}',
}
WIRES = ("grpc", "jsonrpc")


def reply(*paths: str) -> Reply:
    calls = tuple(
        ToolCall(call_id=f"p{n}", name="open_file", arguments_json=json.dumps({"path": path}))
        for n, path in enumerate(paths)
    )
    return Reply(text="I look.", tool_calls=calls)


def model(*replies: str | Reply) -> ScriptedModel:
    return ScriptedModel(replies, has_native_tools=True)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer over one wire; `reason` is empty if nothing was refused."""

    body: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    violations: Sequence[tuple[str, str]] = ()
    code: str = ""
    text: str = ""
    retry_ms: int | None = None

    @property
    def turn(self) -> Any:
        return self.body["turn"]

    @property
    def fields(self) -> list[str]:
        """The fields that violations name."""
        return [name for name, _ in self.violations]


RPCS = {
    "turns.start": ("RunTurn", "start"),
    "turns.reenter": ("RunTurn", "reentry"),
    "turns.get": ("GetTurn", ""),
    "turns.list": ("ListTurns", ""),
    "turns.cancel": ("CancelTurn", ""),
    "turns.delete": ("DeleteTurn", ""),
    "turns.read_tool_result": ("ReadToolResult", ""),
    "sessions.get": ("GetSession", ""),
    "sessions.list": ("ListSessions", ""),
    "sessions.delete": ("DeleteSession", ""),
}


async def ask(server: Listening, wire: str, method: str, params: Mapping[str, Any]) -> Answer:
    """Call a method over one wire; gRPC's enumerations become the words of JSON-RPC."""
    if wire == "jsonrpc":
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "auth_token": server.token}}
        async with make_http_client(base_url=server.http, timeout=180) as client:
            found = (await client.post("/api/v1/jsonrpc", json=body)).json()
        if "error" not in found:
            return Answer(body=found["result"])
        data = found["error"]["data"]
        violations = [(each["field"], each["description"]) for each in data.get("violations", [])]
        message = found["error"]["message"]
        return Answer(
            reason=data["reason"],
            violations=violations,
            code=data["grpc_code"],
            text=f"{message.rstrip('.')}. {data['remedy']}" if "remedy" in data else message,
            retry_ms=data.get("retry_after_ms"),
        )
    rpc, holder = RPCS[method]
    request = getattr(pb, f"{rpc}Request")()
    held = {name: each for name, each in params.items() if name != "request_id"}
    if rpc == "ReadToolResult" and "offset" in params:
        params = {
            **{name: each for name, each in params.items() if name != "offset"},
            "range": {"offset": params["offset"]},
        }
    whole = {"request_id": params["request_id"]} if "request_id" in params else {}
    json_format.ParseDict({holder: held, **whole} if holder else dict(params), request)
    async with grpc.aio.insecure_channel(server.grpc) as channel:
        call = getattr(turn_service_pb2_grpc.TurnServiceStub(channel), rpc)
        try:
            response = await call(request, metadata=[("authorization", f"Bearer {server.token}")], timeout=180)
        except grpc.aio.AioRpcError as error:
            return refusal_of(error)
    return Answer(body=json_format.MessageToDict(response, preserving_proto_field_name=True))


def refusal_of(error: grpc.aio.AioRpcError) -> Answer:
    status: Any = rpc_status.from_call(error)  # type: ignore[arg-type]  # it reads an error like a call
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    retry, precondition = error_details_pb2.RetryInfo(), error_details_pb2.PreconditionFailure()
    for detail in status.details:
        for one in (info, bad, retry, precondition):
            detail.Unpack(one)
    if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
        assert [one.type for one in precondition.violations] == [info.reason]
    return Answer(
        reason=info.reason,
        violations=[(_drop_holder(each.field), each.description) for each in bad.field_violations],
        code=error.code().name,
        text=_drop_holder(error.details() or ""),
        retry_ms=retry.retry_delay.ToMilliseconds() if retry.HasField("retry_delay") else None,
    )


def _drop_holder(text: str) -> str:
    """Return `text` without the part of the gRPC request that holds the fields."""
    return text.replace("start.", "").replace("reentry.", "").replace("range.", "")


def settle(answer: Answer, *results: tuple[str, str]) -> dict[str, Any]:
    """Return the re-entry for the hand-off of `answer`."""
    return {
        "turn_id": answer.turn["turn_id"],
        "etag": answer.turn["handoff"]["etag"],
        "results": [{"call_id": call_id, "result_json": result} for call_id, result in results],
    }


@pytest.mark.parametrize("wire", WIRES)
async def test_a_turn_hands_off_takes_the_result_and_answers(wire: str) -> None:
    with model(reply("a.txt"), "It says hello.") as scripted:
        async with running_server(model=scripted) as server:
            first = await ask(server, wire, "turns.start", {"message": "Read a.txt", "client_tools": [OPEN_FILE]})
            (pending,) = first.turn["handoff"]["calls"]
            assert (pending["call"]["call_id"], pending["call"]["tool"]) == ("c1", "open_file")
            assert json.loads(pending["call"]["arguments_json"]) == {"path": "a.txt"}
            assert pending["idempotency_key"]
            reentry = settle(first, ("c1", '"hello"'))
            done = await ask(server, wire, "turns.reenter", reentry)
            again = await ask(server, wire, "turns.reenter", reentry)
            read = await ask(
                server, wire, "turns.read_tool_result", {"turn_id": first.turn["turn_id"], "call_id": "c1"}
            )
            got = await ask(server, wire, "turns.get", {"turn_id": first.turn["turn_id"]})
    assert done.body["result"]["answer"] == "It says hello."
    assert again.body["result"] == done.body["result"], "the same re-entry again replays what followed"
    assert (got.turn["ledger"][0]["call_id"], got.body["result"]["answer"]) == ("c1", "It says hello.")
    assert read.body["text"] == '"hello"'
    assert len(scripted.requests) == 2


@pytest.mark.parametrize("wire", WIRES)
async def test_instructions_and_history_are_in_the_prompts_of_a_turn(wire: str) -> None:
    words = {"grpc": ("SPEAKER_USER", "SPEAKER_ASSISTANT"), "jsonrpc": ("user", "assistant")}[wire]
    history = [{"role": role, "text": text} for role, text in zip(words, ("Who wrote it?", "Newton."), strict=True)]
    with model("In 1704.") as scripted:
        async with running_server(model=scripted) as server:
            start = {"message": "When?", "system": "You are exact.", "history": history}
            done = await ask(server, wire, "turns.start", start)
            refused = await ask(server, wire, "turns.start", {**start, "session_id": "s"})
    assert done.body["result"]["answer"] == "In 1704."
    system, user, assistant, last = scripted.requests[0].messages
    assert system.content.startswith("You are exact.")
    assert "Who wrote it?" in user.content
    assert assistant.content == "Newton."
    assert "When?" in last.content
    assert refused.fields == ["history"]


@pytest.mark.parametrize("wire", WIRES)
async def test_a_turn_tells_what_was_said_to_it_so_that_a_person_can_judge_its_calls(wire: str) -> None:
    context = [
        {"name": "shop", "scope": {"grpc": "CONTEXT_SCOPE_TURN", "jsonrpc": "turn"}[wire], "text": "It is open."}
    ]
    start = {"message": "Pay the bill.", "system": "You are careful.", "session_id": "s", "context": context}
    approving = {"REASOND__TOOLS__ENABLED": '["calculator"]', "REASOND__TURNS__NEEDS_APPROVAL": '["calculator"]'}
    wanted = Reply(tool_calls=(ToolCall(call_id="", name="calculator", arguments_json='{"expression": "6*7"}'),))
    with model("It is 42 crowns.", wanted, "Then not.") as scripted:
        async with running_server(model=scripted, environ=approving) as server:
            await ask(server, wire, "turns.start", {"message": "What does it cost?", "session_id": "s"})
            waiting = await ask(server, wire, "turns.start", {**start, "material": "Bill: 42 crowns."})
            turn_id = waiting.turn["turn_id"]
            got = await ask(server, wire, "turns.get", {"turn_id": turn_id})
            decisions = [{"call_id": "c1", "is_approved": False, "reason": "Too much."}]
            reentry = {"turn_id": turn_id, "etag": waiting.turn["handoff"]["etag"], "decisions": decisions}
            await ask(server, wire, "turns.reenter", reentry)
            after = await ask(server, wire, "turns.get", {"turn_id": turn_id})
            listed = await ask(server, wire, "turns.list", {})
    told = got.body["conversation"]
    assert [each["text"] for each in told["history"]] == ["What does it cost?", "It is 42 crowns."]
    assert (told["system"], told["message"], told["material"]) == (
        start["system"],
        start["message"],
        "Bill: 42 crowns.",
    )
    assert told["context"][0]["text"] == "It is open."
    (asked,) = got.turn["ledger"]
    assert json.loads(asked["arguments_json"]) == {"expression": "6*7"}
    (refused,) = after.turn["ledger"]
    assert refused["refusal"] == "Too much."
    assert "Too much." in refused["result_json"]
    last = listed.body["turns"][0]
    assert (last["question"], last["outcome"], last["wire"]) == ("Pay the bill.", "Then not.", wire)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_reentry_that_does_not_fit_names_every_call_and_consumes_nothing(wire: str) -> None:
    with model(reply("a", "b"), "Both.") as scripted:
        async with running_server(model=scripted) as server:
            first = await ask(server, wire, "turns.start", {"message": "Read", "client_tools": [OPEN_FILE]})
            partial = await ask(server, wire, "turns.reenter", settle(first, ("c2", "1")))
            unknown = await ask(
                server, wire, "turns.reenter", settle(first, ("c1", "1"), ("c2", "1"), ("c9", "1"), ("c2", "2"))
            )
            stale = await ask(server, wire, "turns.reenter", {**settle(first, ("c1", "1"), ("c2", "1")), "etag": "x"})
            done = await ask(server, wire, "turns.reenter", settle(first, ("c1", "1"), ("c2", "2")))
    assert partial.reason == "TOOL_RESULTS_MISSING"
    assert unknown.reason == "TOOL_RESULTS_UNEXPECTED"
    assert unknown.fields == ["results[2].call_id", "results[3].call_id"]
    assert stale.reason == "ETAG_MISMATCH"
    assert done.body["result"]["answer"] == "Both."


@pytest.mark.parametrize("wire", WIRES)
async def test_a_start_with_many_mistakes_is_refused_at_once_and_nothing_is_stored(wire: str) -> None:
    start = {
        "message": " ",
        "session_id": "a b",
        "mode": "careful",
        "client_tools": [OPEN_FILE, {**OPEN_FILE, "name": "calculator"}, {"name": "x", "parameters_json": "[]"}],
        "context": [{"name": "", "text": "t"}],
    }
    async with running_server(model=ScriptedModel([])) as server:
        refused = await ask(server, wire, "turns.start", start)
        listed = await ask(server, wire, "turns.list", {})
    assert refused.reason == "INVALID_REQUEST"
    assert refused.fields == [
        *("message", "session_id", "mode", "client_tools[1].name", "client_tools[2].parameters_json"),
        "context[0].name",
    ]
    assert not listed.body.get("turns")


@pytest.mark.parametrize("wire", WIRES)
async def test_a_session_has_one_open_turn_and_remembers_the_turns_before(wire: str) -> None:
    with model("I am called Mill.", reply("a")) as scripted:
        async with running_server(model=scripted) as server:
            await ask(server, wire, "turns.start", {"message": "Your name is Mill.", "session_id": "s"})
            second = {"message": "Read", "session_id": "s", "client_tools": [OPEN_FILE]}
            waiting = await ask(server, wire, "turns.start", second)
            third = await ask(server, wire, "turns.start", {"message": "And?", "session_id": "s"})
            session = (await ask(server, wire, "sessions.get", {"session_id": "s"})).body["session"]
            refused = await ask(server, wire, "sessions.delete", {"session_id": "s"})
            cancelled = await ask(server, wire, "turns.cancel", {"turn_id": waiting.turn["turn_id"]})
            deleted = await ask(server, wire, "sessions.delete", {"session_id": "s"})
            gone = await ask(server, wire, "sessions.get", {"session_id": "s"})
    assert third.reason == "TURN_LEASED"
    assert session["open_turn_id"] == waiting.turn["turn_id"]
    assert refused.reason == "TURN_LEASED"
    assert cancelled.turn["state"].lower().removeprefix("turn_state_") == "cancelled"
    assert (deleted.reason, gone.reason) == ("", "SESSION_NOT_FOUND")
    assert any("Mill" in message.content for message in scripted.requests[1].messages)


async def test_both_streams_have_the_same_events_and_resume_after_any_of_them() -> None:
    with model("Forty-two.") as scripted:
        async with (
            running_server(model=scripted) as server,
            reasond.AsyncClient(server.grpc, token=server.token) as client,
        ):
            streamed = [event async for event in client.turn_events("Six times seven?")]
            turn_id = streamed[0].turn_id
            params = {"turn_id": turn_id, "auth_token": server.token}
            body = {"jsonrpc": "2.0", "id": 1, "method": "turns.attach", "params": params}
            headers = {"accept": "text/event-stream", "last-event-id": f"{turn_id}:1"}
            async with make_http_client(base_url=server.http, timeout=180) as web:
                answer = await web.post("/api/v1/jsonrpc", json=body, headers=headers)
    logged = [(event.sequence, event.WhichOneof("event")) for event in streamed if not event.HasField("heartbeat")]
    assert [kind for _, kind in logged] == ["started", "model_call", "completed"]
    ids = [line[4:] for line in answer.text.splitlines() if line.startswith("id: ")]
    names = [line[7:] for line in answer.text.splitlines() if line.startswith("event: ")]
    assert list(zip(ids, names, strict=True)) == [(f"{turn_id}:{sequence}", kind) for sequence, kind in logged[1:]]


async def test_the_client_runs_each_tool_once_and_returns_the_answer() -> None:
    ran: list[tuple[str, str]] = []

    @reasond.client_tool
    def open_file(path: str, idempotency_key: str) -> str:
        """Open a file."""
        ran.append((path, idempotency_key))
        return f"the text of {path}"

    with model(reply("a", "b"), reply("c"), "Three files.") as scripted:
        async with (
            running_server(model=scripted) as server,
            reasond.AsyncClient(server.grpc, token=server.token) as client,
        ):
            result = await client.turn("Read them.", session="s", tools=[open_file])
            turns = [turn async for turn in client.list_turns(session="s")]
    assert result.answer == "Three files."
    assert [path for path, _ in ran] == ["a", "b", "c"]
    assert len({key for _, key in ran}) == 3
    assert [turn.turn_id for turn in turns] == [result.turn_id]


async def test_turns_are_listed_by_what_they_do() -> None:
    with model(reply("a"), "Done.") as scripted:
        async with (
            running_server(model=scripted) as server,
            reasond.AsyncClient(server.grpc, token=server.token) as client,
        ):
            start = {"message": "Read a.txt", "client_tools": [OPEN_FILE]}
            started = [(await ask(server, "grpc", "turns.start", start)).turn["turn_id"] for _ in range(2)]
            for state, turns in (("suspended", started[:1]), ("succeeded", started[1:]), ("failed", [])):
                listed = client.list_turns(state=reasond.ExecutionState.Value(f"EXECUTION_STATE_{state.upper()}"))
                assert [turn.turn_id async for turn in listed] == turns
                answer = await ask(server, "jsonrpc", "turns.list", {"state": state})
                assert [turn["turn_id"] for turn in answer.body["turns"]] == turns


@pytest.mark.parametrize("size", [70_000, 5_000_000], ids=["over max_result_bytes", "over a message"])
async def test_a_result_of_the_client_that_is_too_large_is_told_to_the_model_and_its_tool_runs_once(size: int) -> None:
    ran: list[str] = []

    @reasond.client_tool
    def open_file(path: str) -> str:
        """Open a file."""
        ran.append(path)
        return "x" * size

    with model(reply("a", "b"), "I ask for less.") as scripted:
        async with (
            running_server(model=scripted, environ={"REASOND__TURNS__MAX_RESULT_BYTES": "65536"}) as server,
            reasond.AsyncClient(server.grpc, token=server.token) as client,
        ):
            result = await client.turn("Read them.", tools=[open_file])
    assert (result.answer, ran) == ("I ask for less.", ["a", "b"])
    said = [message.content for message in scripted.requests[-1].messages if message.role == "tool"]
    assert [f"its result of {size + 2} bytes is more than the server takes" in text for text in said] == [True, True]
