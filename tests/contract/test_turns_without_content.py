"""Turns on a server that keeps no content: its files hold none, and what callers get of it comes from memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import reasond
from reasond_server.testing import Reply, ScriptedModel, running_server
from reasond_server.types import ToolCall
from tests.contract.test_turns import OPEN_FILE, WIRES, ask, settle
from tests.contract.turn_plugins import install

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from reasond_server.assembly.app import Listening

PLACES = (
    *("message", "material", "passing", "lasting", "argument", "result", "said", "thought", "answer"),
    *("tool", "given", "reason"),
)
CANARIES = {name: f"CANARY{name}" for name in PLACES}


def environ_of(path: Path, *, keeps: bool) -> Mapping[str, str]:
    return {
        "REASOND__STORE__URL": f"sqlite:///{path}/log.db",
        "REASOND__STORE__RECORD_CONTENT": json.dumps(keeps),
        "REASOND__TOOLS__ENABLED": '["echo", "calculator"]',
        "REASOND__TURNS__NEEDS_APPROVAL": '["calculator"]' if keeps else "[]",
    }


START = {
    "session_id": "s",
    "message": f"Go, said {CANARIES['message']}",
    "material": CANARIES["material"],
    "context": [
        {"name": "passing", "scope": "CONTEXT_SCOPE_TURN", "text": CANARIES["passing"]},
        {"name": "lasting", "scope": "CONTEXT_SCOPE_SESSION", "text": CANARIES["lasting"]},
    ],
}


def model(*, keeps: bool) -> ScriptedModel:
    """Return a model that calls a tool of the server, which answers with another canary than it was asked with.

    If content is kept, it then calls a tool of the client, and one that needs approval.
    """
    calls = [ToolCall(call_id="", name="echo", arguments_json=json.dumps({"text": CANARIES["argument"]}))]
    asking = Reply(text=CANARIES["said"], reasoning=CANARIES["thought"], tool_calls=tuple(calls))
    waiting = [
        ToolCall(call_id="", name="open_file", arguments_json='{"path": "a"}'),
        ToolCall(call_id="", name="calculator", arguments_json='{"expression": "6*7"}'),
    ]
    more: list[str | Reply] = [Reply(tool_calls=tuple(waiting)), "Done."] if keeps else []
    return ScriptedModel([asking, CANARIES["answer"], *more], has_native_tools=True)


def find_canaries(path: Path) -> set[str]:
    """Return the canaries in the files of the store, the write-ahead log included."""
    files = [one for one in path.iterdir() if one.name.startswith("log.db")]
    written = b"".join(one.read_bytes() for one in files)
    assert len(written) > 10_000, files
    return {name for name, canary in CANARIES.items() if canary.encode() in written}


async def run_turns(server: Listening, *, keeps: bool) -> None:
    """Run a turn; then one that would have to wait for its client, who settles and decides, if it is not refused."""
    done = await ask(server, "grpc", "turns.start", START)
    assert done.body["result"]["answer"] == CANARIES["answer"], "the caller gets it from memory"
    tool = {**OPEN_FILE, "description": CANARIES["tool"]}
    waiting = await ask(server, "jsonrpc", "turns.start", {"message": CANARIES["message"], "client_tools": [tool]})
    if not keeps:
        assert (waiting.reason, waiting.fields) == ("INVALID_REQUEST", ["client_tools"])
        return
    decision = {"call_id": "c2", "is_approved": False, "reason": CANARIES["reason"]}
    reentry = {**settle(waiting, ("c1", json.dumps(CANARIES["given"]))), "decisions": [decision]}
    assert (await ask(server, "jsonrpc", "turns.reenter", reentry)).body["result"]["answer"]


@pytest.mark.parametrize("keeps", [False, True])
async def test_the_files_of_a_store_have_the_content_of_turns_only_if_it_is_to_be_kept(
    keeps: bool,  # noqa: FBT001 - a case
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bytes are searched in the file and in the write-ahead log; with content, all are found, so the search works."""
    install(tmp_path, monkeypatch)
    wanted = {*PLACES} if keeps else set[str]()
    with model(keeps=keeps) as scripted:
        async with running_server(model=scripted, environ=environ_of(tmp_path, keeps=keeps)) as server:
            await run_turns(server, keeps=keeps)
            assert find_canaries(tmp_path) == wanted, "while the write-ahead log is open"
    assert find_canaries(tmp_path) == wanted


async def test_who_starts_a_turn_sees_its_content_and_who_comes_later_sees_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch)
    with model(keeps=False) as scripted:
        async with (
            running_server(model=scripted, environ=environ_of(tmp_path, keeps=False)) as server,
            reasond.AsyncClient(server.grpc, token=server.token) as client,
        ):
            live = [each async for each in client.turn_events(f"Go, said {CANARIES['message']}")]
            turn_id = live[0].turn_id
            for wire in WIRES:
                got = await ask(server, wire, "turns.get", {"turn_id": turn_id})
                assert got.body["result"].get("answer", "") == ""
                assert got.turn["ledger"][0]["tool"] == "echo"
            later = (await ask(server, "jsonrpc", "turns.attach", {"turn_id": turn_id})).body
    kinds = [each.WhichOneof("event") for each in live]
    assert kinds == ["started", "model_call", "tool", "tool", "model_call", "completed"]
    assert (live[1].model_call.text, live[-1].completed.answer) == (CANARIES["said"], CANARIES["answer"])
    assert json.loads(live[1].model_call.calls[0].arguments_json) == {"text": CANARIES["argument"]}
    assert not any(canary in json.dumps(later) for canary in CANARIES.values())
