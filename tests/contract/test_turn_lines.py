"""The lines of the log about turns: who called, which calls were settled, how the turn left, and no content."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.telemetry.logs import build_json_formatter
from reasond_server.testing import Reply, ScriptedModel, running_server
from reasond_server.types import ToolCall
from tests.contract.test_turns import OPEN_FILE, ask, settle
from tests.http_clients import make_http_client
from tests.spans import Spans, attributes_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from reasond_server.assembly.app import Listening

CANARY = "wAlRuS"
ENVIRON = {"REASOND__TURNS__NEEDS_APPROVAL": '["calculator"]', "REASOND__METRICS__ADDRESS": "127.0.0.1:0"}
START = {
    "message": f"Read, said the {CANARY}.",
    "material": f"{CANARY} material",
    "client_tools": [{**OPEN_FILE, "description": f"Opens a {CANARY}."}],
    "context": [{"name": "block", "text": f"{CANARY} context"}],
    "session_id": "s",
}
DECISIONS = [
    {"call_id": "c1", "is_approved": True, "reason": f"{CANARY} may"},
    {"call_id": "c2", "is_approved": False, "reason": f"no {CANARY}"},
]


def both() -> Reply:
    """Return a reply that calls a server tool twice, which needs approval, and the client's tool."""
    arguments = json.dumps({"expression": "6*7"})
    asked = [("calculator", arguments), ("calculator", arguments), ("open_file", json.dumps({"path": CANARY}))]
    calls = tuple(
        ToolCall(call_id=f"{CANARY}{place}", name=name, arguments_json=text) for place, (name, text) in enumerate(asked)
    )
    return Reply(text=f"{CANARY} thinks.", tool_calls=calls)


def model() -> ScriptedModel:
    return ScriptedModel([both(), f"The {CANARY} says 42."], has_native_tools=True)


async def take_turn(server: Listening, wire: str) -> str:
    """Hand off, try with an unfit re-entry, settle, replay, and fail with a spent etag; return the id of the turn."""
    first = await ask(server, wire, "turns.start", START)
    reentry = {**settle(first, ("c3", f'"{CANARY} file"')), "decisions": DECISIONS}
    assert (await ask(server, wire, "turns.reenter", settle(first, ("c3", "1")))).reason == "TOOL_RESULTS_MISSING"
    assert (await ask(server, wire, "turns.reenter", reentry)).body["result"]["answer"]
    assert (await ask(server, wire, "turns.reenter", reentry)).body["result"]["answer"]
    other = {**reentry, "results": [{"call_id": "c3", "result_json": f'"another {CANARY}"'}]}
    assert (await ask(server, wire, "turns.reenter", other)).reason == "ETAG_MISMATCH"
    turn_id: str = first.turn["turn_id"]
    return turn_id


class Lines(logging.Handler):
    """Keeps each line as the server writes it, with the ids of the call or run in which it was written."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(build_json_formatter())
        self.written: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("reasond"):
            self.written.append(self.format(record))

    def of(self, logger: str) -> Sequence[Mapping[str, Any]]:
        found: list[dict[str, Any]] = list(map(json.loads, self.written))
        return [line for line in found if line["logger"] == logger]


@pytest.fixture(name="lines")
def lines_of_the_server(caplog: pytest.LogCaptureFixture) -> Iterator[Lines]:
    caplog.set_level(logging.DEBUG)
    handler = Lines()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


@pytest.mark.parametrize("wire", ["grpc", "jsonrpc"])
async def test_the_audit_log_says_who_settled_which_calls(wire: str, lines: Lines) -> None:
    with model() as scripted:
        async with running_server(model=scripted, environ=ENVIRON) as server:
            turn_id = await take_turn(server, wire)
    told = lines.of("reasond.audit")
    assert {(line["operation"], line["execution_id"], bool(line["subject"])) for line in told} == {
        ("RunTurn", turn_id, True)
    }
    acts = [(line["outcome"], line.get("tool_calls", ""), line.get("reason_length", "")) for line in told]
    allowed, rejected = ("allowed", "", ""), ("rejected", "", "0")
    settled = [("settled", "c3", "0"), ("approved", "c1", "10"), ("refused", "c2", "9")]
    assert acts == [allowed, allowed, rejected, allowed, *settled, allowed, allowed, rejected]
    reasons = [line["reason"] for line in told if line["outcome"] == "rejected"]
    assert reasons == ["TOOL_RESULTS_MISSING", "ETAG_MISMATCH"]


async def test_access_lines_and_lines_of_executions_name_the_turn_and_its_exit(lines: Lines) -> None:
    with model() as scripted:
        async with running_server(model=scripted, environ=ENVIRON) as server:
            turn_id = await take_turn(server, "grpc")
            await ask(server, "grpc", "turns.get", {"turn_id": turn_id})
    calls = [line for line in lines.of("reasond.grpc") if "TurnService" in line.get("method", "")]
    assert [line["execution_id"] for line in calls] == [turn_id] * 6
    told = [(line["method"].rpartition("/")[2], line["code"], line.get("finish_reason", "")) for line in calls]
    assert told == [
        ("RunTurn", "OK", "client_tools"),
        ("RunTurn", "FAILED_PRECONDITION", ""),
        *[("RunTurn", "OK", "done")] * 2,
        ("RunTurn", "ABORTED", ""),
        ("GetTurn", "OK", ""),
    ]
    executions = lines.of("reasond.executions")
    said = [(line["message"], line["execution_id"], line["strategy"], line["steps"]) for line in executions]
    assert said == [("execution suspended", turn_id, "turn", 1), ("execution ended", turn_id, "turn", 2)]
    assert executions[1]["finish_reason"] == "answered"


async def test_no_content_of_a_turn_is_in_any_line_span_or_metric(
    lines: Lines, capfd: pytest.CaptureFixture[str]
) -> None:
    spans = Spans()
    for wire in ("grpc", "jsonrpc"):
        with model() as scripted:
            async with running_server(model=scripted, environ=ENVIRON, spans=spans.sink) as server:
                await take_turn(server, wire)
                await spans.until(lambda one: len(one.find_named("invoke_agent")) >= 2)
                async with make_http_client() as client:
                    metrics = (await client.get(server.metrics)).text
        assert any(CANARY in str(request.messages) for request in scripted.requests), "the search must find something"
        assert CANARY not in metrics
    assert lines.of("reasond.audit")
    assert CANARY not in "".join(lines.written)
    assert CANARY not in "".join(capfd.readouterr())
    assert CANARY not in str([(one.name, attributes_of(one), one.events, one.status) for one in spans.all])
