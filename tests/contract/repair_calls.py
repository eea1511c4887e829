"""Calls of repairs over both wires in one form, with a small project whose check takes no test runner."""

from __future__ import annotations

import base64
import sys
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf import json_format

from reasond.v1 import (
    execution_service_pb2,
    execution_service_pb2_grpc,
    reasoning_service_pb2,
    reasoning_service_pb2_grpc,
    repair_service_pb2_grpc,
)
from reasond.v1 import repair_service_pb2 as pb
from reasond_server.access.token_keys import SigningKey
from reasond_server.access.tokens import TokenMinter
from reasond_server.testing import running_server
from tests.contract.test_turns import Answer, refusal_of
from tests.http_clients import make_http_client

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from reasond_server.assembly.app import Listening
    from reasond_server.llm.model import ChatModel

WIRES: Final = ("grpc", "jsonrpc")
SECRET: Final = "a key of the test that nobody guesses 8f1c"
ENVIRON: Final = {
    "REASOND__AUTH__KEYS": f'[{{ id = "test", secret = "{SECRET}" }}]',
    "REASOND__REPAIR__ENABLED": "true",
    "REASOND__REPAIR__NUM_CANDIDATES": "1",
    "REASOND__REPAIR__CRITIC_TIMEOUT_MS": "60000",
    "REASOND__REPAIR__ENVIRONMENTS__PYTHON__PRESET": "python",
    "REASOND__REPAIR__ENVIRONMENTS__PYTHON__ROOT": sys.prefix,
    "REASOND__REPAIR__COMMANDS__SCRIPT": '["python", "test_calc.py"]',
}
CALC: Final = "def add(a, b):\n    return a - b\n"
TEST: Final = "from calc import add\n\nassert add(2, 3) == 5, add(2, 3)\n"
CHECK: Final[Mapping[str, Any]] = {"name": "script", "argv": ["python", "test_calc.py"], "format": "exit_code"}
TASK: Final[Mapping[str, Any]] = {
    "goal": "fix",
    "description": "The sum is wrong.",
    "files": [{"path": "calc.py", "content": CALC}, {"path": "test_calc.py", "content": TEST}],
    "environment": "python",
    "checks": [CHECK],
}
EDIT: Final = """The sign is wrong.

calc.py
<<<<<<< SEARCH
    return a - b
=======
    return a + b
>>>>>>> REPLACE
"""
RPCS: Final = {
    "repair.execute": "Repair",
    "repair.get": "GetRepair",
    "repair.create_snapshot": "CreateSnapshot",
    "repair.upload_blobs": "UploadBlobs",
    "repair.list_environments": "ListEnvironments",
    "executions.list": "ListExecutions",
    "executions.get": "GetExecution",
    "executions.cancel": "CancelExecution",
    "executions.delete": "DeleteExecution",
    "reasoning.list_strategies": "ListStrategies",
}
_PREFIXES: Final = {"role": "CHECK_ROLE", "format": "RESULT_FORMAT", "severity": "SEVERITY", "search": "REPAIR_SEARCH"}


def mint(*permissions: str, tenant: str = "acme") -> str:
    """Return a token for a server with ENVIRON."""
    minter = TokenMinter(
        key=SigningKey(id="test", secret=SECRET.encode()), issuer="reasond", audience="reasond", max_lifetime_s=3600
    )
    return minter.mint(
        subject="ann", permissions=permissions or ["admin"], tenant=tenant, lifetime_s=600, now=datetime.now(UTC)
    )


@asynccontextmanager
async def repairing_server(model: ChatModel, **more: Any) -> AsyncGenerator[Listening, None]:
    """Run a server that offers repairs; `more` are further variables of its environment, and `spans`."""
    spans = more.pop("spans", None)
    async with running_server(model=model, environ={**ENVIRON, **more}, spans=spans) as listening:
        yield listening


async def call(server: Listening, wire: str, method: str, params: Mapping[str, Any], token: str = "") -> Answer:
    """Call a method over one wire; gRPC's enumerations become the words of JSON-RPC."""
    bearer = token or server.token
    if wire == "jsonrpc":
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "auth_token": bearer}}
        async with make_http_client(base_url=server.http, timeout=280) as client:
            return answer_of((await client.post("/api/v1/jsonrpc", json=body)).json())
    name = RPCS[method]
    module: Any
    stub: Any
    module, stub = (pb, repair_service_pb2_grpc.RepairServiceStub)
    if method.startswith("executions."):
        module, stub = (execution_service_pb2, execution_service_pb2_grpc.ExecutionServiceStub)
    elif not method.startswith("repair."):
        module, stub = (reasoning_service_pb2, reasoning_service_pb2_grpc.ReasoningServiceStub)
    request = json_format.ParseDict(to_request(method, params), getattr(module, f"{name}Request")())
    async with grpc.aio.insecure_channel(server.grpc) as channel:
        ask = getattr(stub(channel), name)
        try:
            response = await ask(request, metadata=[("authorization", f"Bearer {bearer}")], timeout=280)
        except grpc.aio.AioRpcError as error:
            refused = refusal_of(error)
            return Answer(reason=refused.reason, violations=[(plain(name), text) for name, text in refused.violations])
    return Answer(body=to_words(json_format.MessageToDict(response, preserving_proto_field_name=True)))


def answer_of(found: Any) -> Answer:
    """Return the answer that JSON-RPC gave."""
    if "error" not in found:
        return Answer(body=found["result"])
    data = found["error"]["data"]
    violations = [(each["field"], each["description"]) for each in data.get("violations", [])]
    return Answer(reason=data["reason"], violations=violations, body=data.get("partial") or {})


def to_request(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON form of the request of an RPC for the params of its method."""
    if method != "repair.execute":
        return dict(params)
    task = dict(params)
    request = {"request_id": task.pop("request_id", "")}
    task[task.pop("goal")] = {}
    if not task.get("files"):
        task.pop("files", None)
    else:
        files = [
            {**each, "content": base64.b64encode(each.get("content", "").encode()).decode()} for each in task["files"]
        ]
        task["files"] = {"files": files}
    return {**request, "task": _to_members(task)}


def _to_members(value: Any) -> Any:
    """Return JSON with the names of proto's enumerations for words."""
    if isinstance(value, dict):
        return {
            name: f"{_PREFIXES[name]}_{each.upper()}" if name in _PREFIXES else _to_members(each)
            for name, each in value.items()
        }
    return [_to_members(each) for each in value] if isinstance(value, list) else value


def to_words(value: Any) -> Any:
    """Return the JSON of a message with words for proto's enumerations."""
    if isinstance(value, dict):
        return {name: to_words(each) for name, each in value.items()}
    if isinstance(value, list):
        return [to_words(each) for each in value]
    for prefix in ("VERIFICATION_", "SANDBOX_LEVEL_", "FINISH_REASON_", "RESULT_FORMAT_", "EXECUTION_STATE_"):
        if isinstance(value, str) and value.startswith(prefix):
            return value.removeprefix(prefix).lower()
    return value


def plain(field: str) -> str:
    """Return the field of a violation without the parts of the gRPC request that hold it."""
    return field.removeprefix("task.").replace("files.files", "files")


async def stream(
    server: Listening, wire: str, params: Mapping[str, Any], *, after: tuple[str, int] | None = None
) -> Sequence[tuple[str, int, str]]:
    """Return the events of a repair, each as execution, sequence number and name."""
    if wire == "jsonrpc":
        body = {"jsonrpc": "2.0", "id": 1, "method": "repair.execute", "params": {**params, "auth_token": server.token}}
        headers = {"accept": "text/event-stream"}
        if after is not None:
            headers["last-event-id"] = f"{after[0]}:{after[1]}"
        async with make_http_client(base_url=server.http, timeout=280) as client:
            text = (await client.post("/api/v1/jsonrpc", json=body, headers=headers)).text
        frames = [dict(line.split(": ", 1) for line in frame.splitlines()) for frame in text.strip().split("\n\n")]
        logged = [(frame["id"].rpartition(":"), frame["event"]) for frame in frames if "id" in frame]
        return [(place[0], int(place[2]), event) for place, event in logged]
    if after is None:
        values = to_request("repair.execute", params)
    else:
        values = {"resume": {"execution_id": after[0], "after_sequence": after[1]}}
    request = json_format.ParseDict(values, pb.RepairStepsRequest())
    async with grpc.aio.insecure_channel(server.grpc) as channel:
        stub: Any = repair_service_pb2_grpc.RepairServiceStub(channel)
        events = stub.RepairSteps(request, metadata=[("authorization", f"Bearer {server.token}")], timeout=280)
        found = [(event.execution_id, event.sequence, str(event.WhichOneof("event"))) async for event in events]
    return [each for each in found if each[2] not in {"delta", "heartbeat"}]
