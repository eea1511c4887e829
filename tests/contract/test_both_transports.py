"""The same cases over gRPC and JSON-RPC, with the same results."""

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, cast

import grpc
import pytest
from google.protobuf import json_format, struct_pb2
from google.rpc import error_details_pb2  # type: ignore[import-untyped]  # shipped without py.typed
from grpc_status import rpc_status

from reasond import AsyncClient
from reasond.v1 import execution_pb2, reasoning_service_pb2, reasoning_service_pb2_grpc
from reasond_server.assembly.app import Listening
from reasond_server.config import ReasoningSettings
from reasond_server.errors.model import ModelFailedError, ModelUnavailableError
from reasond_server.errors.reasons import list_error_classes
from reasond_server.testing import Reply, ScriptedModel, running_server
from tests.http_clients import make_http_client
from tests.sandboxing import PROGRAMS

REASONS = {name: kind.declaration for name, kind in list_error_classes().items()}
BOOK = (
    "The mill stands at the river.\n\n" * 40 + "The key lies under the third stone.\n\n" + "Nothing happened.\n\n" * 400
)


TYPED = ReasoningSettings().enabled_strategies


@pytest.fixture
async def server() -> AsyncGenerator[Listening, None]:
    async with running_server(
        environ={"REASOND__REASONING__ENABLED_STRATEGIES": json.dumps(TYPED), **PROGRAMS}
    ) as listening:
        yield listening


@dataclass(frozen=True)
class Case:
    """One task as JSON-RPC params, from which the gRPC request is made."""

    params: dict[str, Any]
    reason: str = ""
    replies: list[Reply] = field(default_factory=list)


@dataclass(frozen=True)
class Answer:
    """The answer over one wire."""

    body: dict[str, Any]
    reason: str = ""
    message: str = ""
    violations: list[tuple[str, str]] = field(default_factory=list)


def grpc_request(params: dict[str, Any]) -> reasoning_service_pb2.ReasonRequest:
    task = execution_pb2.ReasoningTask(
        query=params.get("query", ""),
        material=params.get("material", ""),
        agent=params.get("agent", ""),
        agent_capabilities=params.get("agent_capabilities", []),
    )
    request = reasoning_service_pb2.ReasonRequest(
        task=task, request_id=params.get("request_id", ""), trace_view=execution_pb2.TRACE_VIEW_FULL
    )
    if "strategy" in params:
        request.task.strategy = params["strategy"]
    if "strategy_config" in params:
        known = params["strategy"] in TYPED
        target = getattr(request.task, params["strategy"]) if known else request.task.custom
        if isinstance(target, struct_pb2.Struct):
            target.update(params["strategy_config"])
        else:
            json_format.ParseDict(params["strategy_config"], target)
            target.SetInParent()
    for name, value in params.get("budget", {}).items():
        setattr(request.task.budget, name, value)
    request.task.system = params.get("system", "")
    for message in params.get("history", []):
        role = execution_pb2.Speaker.Value(f"SPEAKER_{message['role'].upper()}")
        request.task.history.add(role=role, text=message["text"])
    if "model" in params:
        request.task.model = params["model"]
    request.task.stop.extend(params.get("stop", []))
    if "answer_schema" in params:
        request.task.answer_schema_json = json.dumps(params["answer_schema"])
    return request


async def over_grpc(server: Listening, params: dict[str, Any], token: str) -> Answer:
    metadata = [("authorization", f"Bearer {token}")] if token else []
    async with grpc.aio.insecure_channel(server.grpc) as channel:
        stub: Any = reasoning_service_pb2_grpc.ReasoningServiceStub(channel)
        try:
            response = await stub.Reason(grpc_request(params), metadata=metadata, timeout=180)
        except grpc.aio.AioRpcError as error:
            return failure_of(error)
    return Answer(body=json_format.MessageToDict(response.reasoning, preserving_proto_field_name=True))


def failure_of(error: grpc.aio.AioRpcError) -> Answer:
    status = rpc_status.from_call(cast("grpc.Call", error))
    assert status is not None
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status.details:
        detail.Unpack(info)
        detail.Unpack(bad)
    assert info.domain == "reasond"
    assert error.code().name == REASONS[info.reason].grpc_status
    violations = [(_plain(one.field), one.description) for one in bad.field_violations]
    return Answer(body={}, reason=info.reason, message=status.message, violations=violations)


def _plain(path: str) -> str:
    """Return a field's path without the messages that exist only in gRPC."""
    names = path.removeprefix("task.").split(".")
    return ".".join(names[1:] if names[0] in TYPED else names).replace("answer_schema_json", "answer_schema")


async def over_jsonrpc(server: Listening, params: dict[str, Any], token: str) -> Answer:
    sent = {**params, "auth_token": token} if token else params
    request = {"jsonrpc": "2.0", "id": 7, "method": "reasoning.execute", "params": sent}
    async with make_http_client() as client:
        response = await client.post(f"{server.http}/api/v1/jsonrpc", json=request)
    assert response.status_code == 200
    body = response.json()
    assert (body["jsonrpc"], body["id"]) == ("2.0", 7)
    if "error" not in body:
        return Answer(body=body["result"])
    error = body["error"]
    assert error["code"] == REASONS[error["data"]["reason"]].jsonrpc_code
    violations = [(one["field"], one["description"]) for one in error["data"].get("violations", [])]
    return Answer(body={}, reason=error["data"]["reason"], message=error["message"], violations=violations)


ANSWERED = [
    {"query": "What is 15% of 240?"},
    {"query": "What is 15% of 240?", "strategy": "chain_of_thought", "strategy_config": {"temperature": 0.25}},
    {"query": "Calculate the compound interest on $10,000 at 5% for 3 years", "strategy": "bounded_context"},
    {
        "query": "Where does the key lie?",
        "material": BOOK,
        "strategy": "bounded_context",
        "strategy_config": {"chunk_size": 1024, "carryover_size": 512},
    },
    {"query": "What is 2 + 2?", "agent_capabilities": ["reasoning.strategy.bounded_context"]},
    {"query": "What is 15% of 240?", "strategy": "react", "strategy_config": {"allow_tool_use": True}},
    {"query": "What is 15% of 240?", "strategy": "tree_of_thought", "strategy_config": {"max_depth": 2}},
    {"query": "What is 15% of 240?", "strategy": "self_consistency", "strategy_config": {"samples": 3}},
    {"query": "What is 15% of 240?", "strategy": "best_of_n", "strategy_config": {"samples": 2, "min_score": 0.5}},
    {"query": "What is 15% of 240?", "strategy": "chain_of_verification", "strategy_config": {"max_questions": 2}},
    {"query": "What is 15% of 240?", "strategy": "program_of_thought", "strategy_config": {"max_program_s": 60.0}},
    {"query": "What is 15% of 240?", "strategy": "self_refine", "strategy_config": {"max_rounds": 2}},
    {"query": "What is 15% of 240?", "strategy": "plan_and_solve", "strategy_config": {"max_plan_tokens": 200}},
    {"query": "What is 2 + 2?", "budget": {"max_total_tokens": 5000, "max_model_calls": 3}},
    {"query": "What is 15% of 240?", "system": "Be brief.", "history": [{"role": "user", "text": "Hello."}]},
    {"query": "What is 15% of 240?", "stop": ["6"]},
    {"query": "What is 15% of 240?", "answer_schema": {"type": "integer"}},
    {"query": "What is 15% of 240?", "budget": {"max_output_tokens": 12}},
]


@pytest.mark.parametrize("params", ANSWERED)
async def test_a_task_gets_the_same_answer_over_both_wires(server: Listening, params: dict[str, Any]) -> None:
    over = await over_grpc(server, params, server.token)
    json_rpc = await over_jsonrpc(server, params, server.token)
    assert not over.reason, over
    assert not json_rpc.reason, json_rpc
    one, other = over.body, json_rpc.body
    assert one["answer"] == other["answer"]
    assert json.loads(one.get("answer_json") or "null") == other.get("answer_json")
    assert one["strategy_used"] == other["strategy_used"]
    assert one["strategy_source"].removeprefix("STRATEGY_SOURCE_").lower() == other["strategy_source"]
    assert one["finish_reason"].removeprefix("FINISH_REASON_").lower() == other["finish_reason"]
    assert (one["model"], one["warnings"]) == (other["model"], other["warnings"])
    assert int(one["metrics"]["total_tokens"]) == other["metrics"]["total_tokens"]
    specific = one["metrics"][one["strategy_used"]]
    for name in ("max_tokens", "temperature", "total_iterations", "carryover_compressions"):
        if name in specific:
            assert specific[name] == other["metrics"]["strategy_specific"][name]
    if "compute_savings_pct" in specific:
        assert round(specific["compute_savings_pct"], 1) == other["metrics"]["strategy_specific"]["compute_savings_pct"]


REFUSED = [
    ({"query": ""}, "INVALID_REQUEST"),
    ({"query": "x" * 100_001}, "INVALID_REQUEST"),
    ({"query": "a\0b"}, "INVALID_REQUEST"),
    ({"query": "why?", "strategy": "nonexistent_strategy"}, "STRATEGY_NOT_FOUND"),
    ({"query": "why?", "strategy": "No Such"}, "INVALID_REQUEST"),
    (
        {"query": "why?", "strategy": "chain_of_thought", "agent_capabilities": ["reasoning.strategy.react"]},
        "STRATEGY_NOT_SUPPORTED",
    ),
    ({"query": "why?", "agent_capabilities": ["reasoning.strategy.unheard_of"]}, "STRATEGY_NOT_SUPPORTED"),
    ({"query": "why?", "agent": "nobody"}, "AGENT_NOT_FOUND"),
    ({"query": "why?", "strategy": "chain_of_thought", "strategy_config": {"max_tokens": 5}}, "INVALID_CONFIG"),
    (
        {
            "query": "why?",
            "strategy": "bounded_context",
            "strategy_config": {"chunk_size": 1024, "carryover_size": 1024},
        },
        "INVALID_CONFIG",
    ),
    ({"query": "why?", "strategy": "react", "strategy_config": {"max_tool_calls": 51}}, "INVALID_CONFIG"),
    ({"query": "why?", "strategy": "tree_of_thought", "strategy_config": {"max_depth": 11}}, "INVALID_CONFIG"),
    ({"query": "why?", "strategy": "self_consistency", "strategy_config": {"samples": 41}}, "INVALID_CONFIG"),
    ({"query": "why?", "budget": {"max_total_tokens": 0}}, "INVALID_REQUEST"),
    ({"query": "why?", "budget": {"max_total_tokens": 3}}, "TOKEN_BUDGET_EXHAUSTED"),
    ({"query": "why?", "budget": {"max_output_tokens": 0}}, "INVALID_REQUEST"),
    ({"query": "why?", "system": "s" * 100_001}, "INVALID_REQUEST"),
    ({"query": "why?", "history": [{"role": "user", "text": ""}]}, "INVALID_REQUEST"),
    ({"query": "why?", "model": "gpt-5"}, "INVALID_REQUEST"),
    ({"query": "why?", "stop": [""]}, "INVALID_REQUEST"),
    ({"query": "why?", "answer_schema": {"type": "nothing"}}, "INVALID_REQUEST"),
    ({"query": "why?", "answer_schema": {"$ref": "http://127.0.0.1:9/x"}}, "INVALID_REQUEST"),
    ({"query": "why?", "answer_schema": {"type": "integer"}}, "ANSWER_INVALID"),
    ({"query": "why?", "request_id": "with blank"}, "INVALID_REQUEST"),
]


@pytest.mark.parametrize(("params", "reason"), REFUSED)
async def test_a_bad_task_is_refused_alike_over_both_wires(
    server: Listening, params: dict[str, Any], reason: str
) -> None:
    over = await over_grpc(server, params, server.token)
    json_rpc = await over_jsonrpc(server, params, server.token)
    assert (over.reason, json_rpc.reason) == (reason, reason)
    assert over.message.startswith(json_rpc.message.rstrip("."))
    assert over.violations == json_rpc.violations


@pytest.mark.parametrize(
    ("token", "reason", "message"),
    [
        ("", "TOKEN_MISSING", "Authentication required: Missing JWT token."),
        ("x.y.z", "TOKEN_INVALID", "Authentication failed: "),
    ],
)
async def test_a_call_without_a_good_token_is_refused_alike(
    server: Listening, token: str, reason: str, message: str
) -> None:
    for answer in (
        await over_grpc(server, {"query": ""}, token),
        await over_jsonrpc(server, {"query": ""}, token),
    ):
        assert answer.reason == reason
        assert answer.message.startswith(message)
        assert answer.violations == []


FAILURES = [
    (Reply(error=ModelUnavailableError("The model cannot be reached", remedy="Wait.")), "MODEL_UNAVAILABLE"),
    (Reply(text="half a thought", error=ModelFailedError("The model broke off"), error_after=4), "MODEL_FAILED"),
]


@pytest.mark.parametrize(("reply", "reason"), FAILURES)
async def test_a_run_that_fails_names_its_execution_and_keeps_its_result(reply: Reply, reason: str) -> None:
    async with running_server(model=ScriptedModel([reply, reply])) as server:
        over = await over_grpc(server, {"query": "why?"}, server.token)
        json_rpc = await over_jsonrpc(server, {"query": "why?"}, server.token)
        assert (over.reason, json_rpc.reason) == (reason, reason)
        async with AsyncClient(server.grpc, token=server.token) as client:
            kept = [execution async for execution in client.list_executions()]
    assert [execution.finish_reason for execution in kept] == [8, 8]


async def test_a_stream_tells_the_same_events_over_grpc_and_as_server_sent_events(server: Listening) -> None:
    query = "What is 15% of 240?"
    async with AsyncClient(server.grpc, token=server.token) as client, client.reason_iterations(query) as stream:
        over = [event.WhichOneof("event") async for event in stream]
    params = {"query": query, "auth_token": server.token}
    request = {"jsonrpc": "2.0", "id": 1, "method": "reasoning.execute", "params": params}
    async with make_http_client(headers={"Accept": "text/event-stream"}) as http:
        response = await http.post(f"{server.http}/api/v1/jsonrpc", json=request)
    lines = response.text.splitlines()
    events = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    data = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert over == events == ["started", "iteration", "completed"]
    assert [one["sequence"] for one in data] == [1, 2, 3]
    assert data[-1]["completed"]["answer"] == "36"
