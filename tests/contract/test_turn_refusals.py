"""What turns refuse: over both wires the same reason, status and text, and nothing is consumed.

The rows are those of the design of turns: bad starts, bad re-entries, parts that cannot be read, and turns that fail.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import pytest
from google.protobuf import json_format

from reasond.v1 import turn_service_pb2 as pb
from reasond.v1 import turn_service_pb2_grpc
from reasond_server.assembly.stores import StoreOptions, open_stores
from reasond_server.testing import Reply, ScriptedModel, running_server
from reasond_server.types import Principal, ToolCall
from reasond_server.types.turns import TurnStart
from tests.contract.test_turns import OPEN_FILE, WIRES, Answer, ask, reply, settle
from tests.contract.turn_plugins import install
from tests.http_clients import make_http_client
from tests.turning import Note, TurnServer, WallClock, ask_tools, client_tool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from reasond_server.assembly.app import Listening

ENVIRON = {
    "REASOND__TURNS__NEEDS_APPROVAL": '["calculator"]',
    "REASOND__TURNS__MAX_CLIENT_TOOLS": "2",
    "REASOND__TURNS__MAX_RESULT_BYTES": "65536",
}
NOWHERE = "00000000-0000-4000-8000-000000000001"
DEVELOPER = Principal(subject="developer", tenant="sub:developer", permissions=frozenset({"admin"}))


async def refuse(
    server: Listening, method: str, params: Mapping[str, Any], reason: str, code: str, *fields: str
) -> Answer:
    """Return the refusal of the call, which is the same over both wires."""
    answers = [await ask(server, wire, method, params) for wire in WIRES]
    for answer in answers:
        assert (answer.reason, answer.code, answer.fields) == (reason, code, list(fields)), answer.text
    first, second = answers
    assert first.text == second.text
    assert (first.violations, first.retry_ms) == (second.violations, second.retry_ms)
    return first


def tools(*named: Mapping[str, str]) -> dict[str, Any]:
    return {"client_tools": [{**OPEN_FILE, **one} for one in named]}


BAD_STARTS: Mapping[str, tuple[Mapping[str, Any], tuple[str, ...]]] = {
    "no message": ({"message": " "}, ("message",)),
    "an unknown mode": ({"mode": "careful"}, ("mode",)),
    "a tool of the server": (tools({"name": "calculator"}), ("client_tools[0].name",)),
    "two tools of one name": (tools({}, {}), ("client_tools[0].name", "client_tools[1].name")),
    "a name that is none": (tools({"name": "open file"}), ("client_tools[0].name",)),
    "too many tools": (tools({"name": "a"}, {"name": "b"}, {"name": "c"}), ("client_tools",)),
    "a long description": (tools({"description": "d" * (20_000 + 1)}), ("client_tools[0].description",)),
    "a schema that is no JSON": (tools({"parameters_json": "{"}), ("client_tools[0].parameters_json",)),
    "a schema of a list": (tools({"parameters_json": '{"type":"array"}'}), ("client_tools[0].parameters_json",)),
    "a schema with NaN": (tools({"parameters_json": '{"minimum":NaN}'}), ("client_tools[0].parameters_json",)),
    "a schema without bounds": (tools({"parameters_json": '{"minimum":1e999}'}), ("client_tools[0].parameters_json",)),
    "half a character": (tools({"parameters_json": '{"title":"\\ud800"}'}), ("client_tools[0].parameters_json",)),
    "a blank in the session": ({"session_id": "a b"}, ("session_id",)),
    "a revision of no session": ({"if_revision": 1}, ("if_revision",)),
    "a negative revision": ({"session_id": "s", "if_revision": -1}, ("if_revision",)),
    "a budget of nothing": ({"budget": {"max_model_calls": 0}}, ("budget.max_model_calls",)),
    "a block without a name": ({"context": [{"name": "", "text": "t"}]}, ("context[0].name",)),
    "a block without a text": ({"context": [{"name": "b", "text": ""}]}, ("context[0].text",)),
    "two blocks of one name": (
        {"context": [{"name": "b", "text": "t"}, {"name": "b", "text": "u"}]},
        ("context[0].name", "context[1].name"),
    ),
    "too many blocks": ({"context": [{"name": f"b{n}", "text": "t"} for n in range(65)]}, ("context",)),
    "a blank in the request id": ({"request_id": "a b"}, ("request_id",)),
}


async def test_every_bad_start_is_refused_and_nothing_is_stored() -> None:
    with ScriptedModel([]) as model:
        async with running_server(model=model, environ=ENVIRON) as server:
            for parts, fields in BAD_STARTS.values():
                start = {"message": "Go", **parts}
                await refuse(server, "turns.start", start, "INVALID_REQUEST", "INVALID_ARGUMENT", *fields)
            stale = {"message": "Go", "session_id": "s", "if_revision": 7}
            await refuse(server, "turns.start", stale, "ETAG_MISMATCH", "ABORTED")
            listed = [await ask(server, "jsonrpc", method, {}) for method in ("turns.list", "sessions.list")]
    assert [*listed[0].body["turns"], *listed[1].body["sessions"]] == []
    assert not model.requests


RESULT, DECISION = {"call_id": "c1", "result_json": '"text"'}, {"call_id": "c2", "is_approved": True}
MISSING, UNEXPECTED = ("TOOL_RESULTS_MISSING", "FAILED_PRECONDITION"), ("TOOL_RESULTS_UNEXPECTED", "INVALID_ARGUMENT")
MISMATCH, INVALID = ("ETAG_MISMATCH", "ABORTED"), ("INVALID_REQUEST", "INVALID_ARGUMENT")


def text_of(result_json: str) -> dict[str, Any]:
    return {"results": [{**RESULT, "result_json": result_json}]}


BAD_REENTRIES: Mapping[str, tuple[Mapping[str, Any], tuple[str, str], tuple[str, ...], str]] = {
    "nothing": ({"results": [], "decisions": []}, MISSING, (), "c1, c2"),
    "no result": ({"results": []}, MISSING, (), "c1"),
    "no decision": ({"decisions": []}, MISSING, (), "c2"),
    "an unknown call": ({"results": [RESULT, {**RESULT, "call_id": "c9"}]}, UNEXPECTED, ("results[1].call_id",), "c9"),
    "one call twice": ({"results": [RESULT, RESULT]}, UNEXPECTED, ("results[1].call_id",), "named twice"),
    "one decision twice": ({"decisions": [DECISION, DECISION]}, UNEXPECTED, ("decisions[1].call_id",), "named twice"),
    "the wrong kinds": (
        {"results": [{**RESULT, "call_id": "c2"}], "decisions": [{**DECISION, "call_id": "c1"}]},
        UNEXPECTED,
        ("results[0].call_id", "decisions[0].call_id"),
        "needs a decision",
    ),
    "no JSON": (text_of("text"), UNEXPECTED, ("results[0].result_json",), "must be JSON"),
    "an empty text": (text_of(""), UNEXPECTED, ("results[0].result_json",), "must be JSON"),
    "no number": (text_of("[NaN]"), UNEXPECTED, ("results[0].result_json",), "finite"),
    "half a character": (text_of('"\\ud800"'), UNEXPECTED, ("results[0].result_json",), "Unicode"),
    "deep nesting": (text_of("[" * 60_000), UNEXPECTED, ("results[0].result_json",), "must be JSON"),
    "too large": (text_of(json.dumps("x" * 65_536)), UNEXPECTED, ("results[0].result_json",), "65538 bytes"),
    "several mistakes": (
        {"results": [{**RESULT, "call_id": "c8"}, {**RESULT, "result_json": "]"}, {**RESULT, "call_id": "c9"}]},
        UNEXPECTED,
        ("results[0].call_id", "results[1].result_json", "results[2].call_id"),
        "c9",
    ),
    "another etag": ({"etag": "e"}, MISMATCH, (), "e"),
    "no etag": ({"etag": ""}, INVALID, ("etag",), "is required"),
    "no name of a call": ({"results": [{**RESULT, "call_id": ""}]}, INVALID, ("results[0].call_id",), "is required"),
    "a long reason": ({"decisions": [{**DECISION, "reason": "r" * 1_001}]}, INVALID, ("decisions[0].reason",), "1001"),
    "another turn": ({"turn_id": NOWHERE}, ("TURN_NOT_FOUND", "NOT_FOUND"), (), NOWHERE),
}


def both() -> Reply:
    """Return a reply that calls the client's tool, and a tool of the server that needs approval."""
    asked = [("open_file", {"path": "a.txt"}), ("calculator", {"expression": "6*7"})]
    return Reply(tool_calls=tuple(ToolCall(call_id="", name=name, arguments_json=json.dumps(a)) for name, a in asked))


def native(*replies: str | Reply) -> ScriptedModel:
    return ScriptedModel(replies, has_native_tools=True)


@pytest.fixture(name="store")
def environ_of_a_store(tmp_path: Path) -> Mapping[str, str]:
    return {"REASOND__STORE__URL": f"sqlite:///{tmp_path}/log.db"}


async def test_every_bad_reentry_is_refused_names_what_is_wrong_and_consumes_nothing() -> None:
    start = {"message": "Go", "session_id": "s", "client_tools": [OPEN_FILE]}
    with native(both(), "Done.") as model:
        async with running_server(model=model, environ=ENVIRON) as server:
            first = await ask(server, "grpc", "turns.start", start)
            good = {**settle(first), "results": [RESULT], "decisions": [DECISION]}
            for parts, (reason, code), fields, says in BAD_REENTRIES.values():
                answer = await refuse(server, "turns.reenter", {**good, **parts}, reason, code, *fields)
                assert says in answer.text
                assert (await ask(server, "grpc", "turns.get", {"turn_id": first.turn["turn_id"]})).turn == first.turn
            leased = await refuse(server, "turns.start", {**start, "message": "Again"}, "TURN_LEASED", "ABORTED")
            assert first.turn["turn_id"] in leased.text
            assert leased.retry_ms is None, "a turn that waits may wait for days"
            done = await ask(server, "jsonrpc", "turns.reenter", good)
            other = {**good, **text_of('"other"')}
            await refuse(server, "turns.reenter", other, "ETAG_MISMATCH", "ABORTED")
            ended = {**good, "etag": "e"}
            await refuse(server, "turns.reenter", ended, "TURN_NOT_AWAITING", "FAILED_PRECONDITION")
    assert done.body["result"]["answer"] == "Done."
    assert len(model.requests) == 2


async def test_a_caller_without_places_is_refused_before_the_etag_is_spent() -> None:
    with native(both()) as model:
        async with running_server(
            model=model, environ={**ENVIRON, "REASOND__LIMITS__REQUESTS_PER_MINUTE": "1"}
        ) as server:
            first = await ask(server, "grpc", "turns.start", {"message": "Go", "client_tools": [OPEN_FILE]})
            good = {**settle(first), "results": [RESULT], "decisions": [DECISION]}
            for wire in WIRES:
                answer = await ask(server, wire, "turns.reenter", good)
                assert (answer.reason, answer.code) == ("RATE_LIMITED", "RESOURCE_EXHAUSTED")
            got = await ask(server, "grpc", "turns.get", {"turn_id": first.turn["turn_id"]})
    assert got.turn == first.turn


BAD_READS: Mapping[str, tuple[str, Mapping[str, Any], tuple[str, str], tuple[str, ...]]] = {
    "a result of no call": ("turns.read_tool_result", {"call_id": "c9"}, INVALID, ("call_id",)),
    "a negative offset": ("turns.read_tool_result", {"offset": -1}, INVALID, ("offset",)),
    "a pointer that is none": ("turns.read_tool_result", {"json_pointer": "a"}, INVALID, ("json_pointer",)),
    "a pointer to nothing": ("turns.read_tool_result", {"json_pointer": "/a/b"}, INVALID, ("json_pointer",)),
    "an empty text to find": ("turns.read_tool_result", {"contains": ""}, INVALID, ("contains",)),
    "a negative size": ("turns.read_tool_result", {"max_bytes": -1}, INVALID, ("max_bytes",)),
    "a result of no turn": ("turns.read_tool_result", {"turn_id": NOWHERE}, ("TURN_NOT_FOUND", "NOT_FOUND"), ()),
    "no turn": ("turns.get", {"turn_id": NOWHERE}, ("TURN_NOT_FOUND", "NOT_FOUND"), ()),
    "no turn to cancel": ("turns.cancel", {"turn_id": NOWHERE}, ("TURN_NOT_FOUND", "NOT_FOUND"), ()),
    "no turn to delete": ("turns.delete", {"turn_id": NOWHERE}, ("TURN_NOT_FOUND", "NOT_FOUND"), ()),
    "no session": ("sessions.get", {"session_id": "none"}, ("SESSION_NOT_FOUND", "NOT_FOUND"), ()),
    "no session to delete": ("sessions.delete", {"session_id": "none"}, ("SESSION_NOT_FOUND", "NOT_FOUND"), ()),
    "a negative page": ("turns.list", {"page_size": -1}, INVALID, ("page_size",)),
    "a token of nobody": ("turns.list", {"page_token": "x"}, INVALID, ("page_token",)),
    "a negative page of sessions": ("sessions.list", {"page_size": -1}, INVALID, ("page_size",)),
    "a token of sessions of nobody": ("sessions.list", {"page_token": "x"}, INVALID, ("page_token",)),
}


async def test_every_read_that_cannot_be_is_refused() -> None:
    with native(both(), "Done.") as model:
        async with running_server(model=model, environ=ENVIRON) as server:
            first = await ask(server, "grpc", "turns.start", {"message": "Go", "client_tools": [OPEN_FILE]})
            await ask(server, "grpc", "turns.reenter", {**settle(first), "results": [RESULT], "decisions": [DECISION]})
            for method, parts, (reason, code), fields in BAD_READS.values():
                known = {"turn_id": first.turn["turn_id"], "call_id": "c1"} if "read" in method else {}
                await refuse(server, method, {**known, **parts}, reason, code, *fields)


def call_of(name: str, text: str) -> Reply:
    return Reply(tool_calls=(ToolCall(call_id="", name=name, arguments_json=text),))


FAILURES: Mapping[str, tuple[str, str, str, Callable[[], ScriptedModel], Mapping[str, str], list[tuple[str, str]]]] = {
    "a tool that was not offered": (
        *("TOOL_NOT_REGISTERED", "FAILED_PRECONDITION", "ghost"),
        lambda: native(call_of("ghost", "{}"), "Here."),
        {},
        [("c1", "not_run")],
    ),
    "a tool that fails": (
        *("TOOL_FAILED", "ABORTED", "note"),
        lambda: native(call_of("note", '{"text":"x"}'), "Here."),
        {"REASOND__TOOLS__ENABLED": '["calculator", "note"]'},
        [("c1", "failed")],
    ),
    "a message beyond the window": (
        *("CONTEXT_EXHAUSTED", "FAILED_PRECONDITION", ""),
        lambda: ScriptedModel(["Here."], has_native_tools=True, context_window=2_048),
        {},
        [],
    ),
    "a provider that raises": (
        *("INTERNAL", "INTERNAL", "internal error"),
        native,
        {"REASOND__TURNS__CONTEXT_PROVIDERS": '["broken"]'},
        [],
    ),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_a_turn_that_fails_says_why_keeps_its_steps_and_leaves_its_session_usable(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch)
    reason, code, says, make, environ, ledger = FAILURES[name]
    message = "word " * 5_000 if reason == "CONTEXT_EXHAUSTED" else "Go"
    texts = []
    for wire in WIRES:
        with make() as model:
            async with running_server(model=model, environ={**ENVIRON, **environ}) as server:
                answer = await ask(server, wire, "turns.start", {"message": message, "session_id": "s"})
                (turn,) = (await ask(server, wire, "turns.list", {})).body["turns"]
                got = await ask(server, "jsonrpc", "turns.get", {"turn_id": turn["turn_id"]})
                session = (await ask(server, wire, "sessions.get", {"session_id": "s"})).body["session"]
                if reason != "INTERNAL":
                    again = await ask(server, wire, "turns.start", {"message": "Again", "session_id": "s"})
                    assert again.body["result"]["answer"] == "Here."
        assert (answer.reason, answer.code) == (reason, code)
        assert says in answer.text
        assert got.body["result"]["error"]["reason"] == reason
        assert [(one["call_id"], one["state"]) for one in got.turn.get("ledger", [])] == ledger
        assert not session.get("open_turn_id")
        texts.append(answer.text)
    assert texts[0] == texts[1]


@pytest.fixture(name="left")
async def turns_that_an_earlier_server_left(tmp_path: Path) -> Mapping[str, str]:
    """Leave a turn whose hand-off has expired, and one whose server died while a tool was at work; return their ids."""
    # The clock adds the time since the machine started.
    started_s = asyncio.get_running_loop().time()
    time = WallClock(since=datetime.now(UTC) - timedelta(days=2, seconds=started_s))
    note = Note()
    note.gate.clear()
    stores = await open_stores(
        StoreOptions(
            url=f"sqlite:///{tmp_path}/log.db",
            data_dir=str(tmp_path),
            now=time.now,
            monotonic=time.monotonic,
            max_bytes=10**8,
            max_agents=10,
            max_agents_per_tenant=10,
            synchronous="off",
            max_file_bytes=10**9,
        )
    )
    asks = [ask_tools(("open_file", {"path": "a"})), ask_tools(("note", {"text": "x"}))]
    earlier = TurnServer(stores.executions, asks, tools=[note], time=time)
    offer = TurnStart(session_id="a", message="Go", client_tools=[client_tool()])
    expired = (await earlier.service.run(DEVELOPER, offer)).turn.turn_id
    await earlier.wait_for_suspension(expired)
    time.moved_s = 2 * 86_400.0
    running = asyncio.create_task(earlier.service.run(DEVELOPER, TurnStart(session_id="b", message="Go")))
    await note.begun.wait()
    (unknown,) = earlier.runner.runs.by_id
    await earlier.kill()
    running.cancel()
    await asyncio.wait([running])
    await stores.aclose()
    return {"expired": expired, "unknown": unknown}


async def test_turns_that_expired_or_whose_outcome_nobody_knows_say_so(
    left: Mapping[str, str], store: Mapping[str, str]
) -> None:
    late = {"turn_id": left["expired"], "etag": "e", "results": [RESULT]}
    said: dict[str, set[tuple[str, str]]] = {}
    with native("Again.") as model:
        async with running_server(model=model, environ=store) as server:
            for turn_id in left.values():
                for wire in WIRES:
                    got = await wait_for_result(server, wire, turn_id)
                    error, state = got.body["result"]["error"], got.turn["ledger"][0]["state"].lower()
                    told = (error["reason"].removeprefix("ERROR_REASON_"), state.removeprefix("ledger_state_"))
                    said.setdefault(error["message"], set()).add(told)
            await refuse(server, "turns.reenter", late, "HANDOFF_EXPIRED", "FAILED_PRECONDITION")
            again = await ask(server, "grpc", "turns.start", {"message": "Again", "session_id": "b"})
    assert [*said.values()] == [{("HANDOFF_EXPIRED", "not_run")}, {("TOOL_OUTCOME_UNKNOWN", "unknown")}]
    assert again.body["result"]["answer"] == "Again."


async def wait_for_result(server: Listening, wire: str, turn_id: str) -> Answer:
    """Return the turn once it has ended."""
    async with asyncio.timeout(120):
        while True:
            got = await ask(server, wire, "turns.get", {"turn_id": turn_id})
            if got.body.get("result"):
                return got
            await asyncio.sleep(0.05)


async def test_results_over_the_cap_of_a_message_are_refused_and_consume_nothing() -> None:
    caps = {"REASOND__SERVER__MAX_RECEIVE_BYTES": "65536", "REASOND__SERVER__MAX_HTTP_BODY_BYTES": "65536"}
    text = json.dumps("x" * 30_000)
    with native(reply("a", "b", "c"), "A draft.", "Done.") as model:
        async with running_server(model=model, environ={**ENVIRON, **caps}) as server:
            first = await ask(server, "grpc", "turns.start", {"message": "Go", "client_tools": [OPEN_FILE]})
            large = settle(first, ("c1", text), ("c2", text), ("c3", text))
            async with grpc.aio.insecure_channel(server.grpc) as channel:
                request = json_format.ParseDict({"reentry": large}, pb.RunTurnRequest())
                stub: Any = turn_service_pb2_grpc.TurnServiceStub(channel)
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await stub.RunTurn(request, metadata=[("authorization", f"Bearer {server.token}")])
            async with make_http_client(base_url=server.http, timeout=180) as client:
                body = {"jsonrpc": "2.0", "id": 1, "method": "turns.reenter", "params": large}
                answer = await client.post("/api/v1/jsonrpc", json=body)
            got = await ask(server, "grpc", "turns.get", {"turn_id": first.turn["turn_id"]})
            done = await ask(server, "grpc", "turns.reenter", settle(first, ("c1", text), ("c2", "1"), ("c3", "1")))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert answer.status_code == httpx.codes.REQUEST_ENTITY_TOO_LARGE
    assert got.turn == first.turn
    assert done.body["result"]["answer"] == "Done."
