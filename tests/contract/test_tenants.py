"""Every call with a name gives a foreign tenant the same answer for another tenant's name and for an unknown one."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.longrunning import (  # type: ignore[import-untyped]  # shipped without py.typed
    operations_pb2,
    operations_pb2_grpc,
)
from google.protobuf import json_format
from google.rpc import error_details_pb2  # type: ignore[import-untyped]  # shipped without py.typed
from grpc_status import rpc_status

from reasond.v1 import (
    agent_service_pb2,
    agent_service_pb2_grpc,
    execution_service_pb2,
    execution_service_pb2_grpc,
    reasoning_service_pb2,
    reasoning_service_pb2_grpc,
    repair_service_pb2,
    repair_service_pb2_grpc,
    turn_service_pb2,
    turn_service_pb2_grpc,
)
from reasond_server.access.token_keys import SigningKey
from reasond_server.access.tokens import TokenMinter
from reasond_server.services import DECLARED
from reasond_server.testing import running_server
from tests.http_clients import make_http_client
from tests.rest_calls import RPCS as ADDRESSED
from tests.rest_calls import find_detail, make_request

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    import httpx

    from reasond_server.assembly.app import Listening

SECRET = "a key of the test that nobody guesses 8f1c"
ENVIRON = {"REASOND__AUTH__KEYS": f'[{{ id = "test", secret = "{SECRET}" }}]', "REASOND__REPAIR__ENABLED": "true"}
CONTENT = b"x = 1\n"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
CARD = json.dumps({"capabilities": ["reasoning.strategy.chain_of_thought"]})
NOWHERE = {
    "execution_id": "00000000-0000-4000-8000-000000000000",
    "turn_id": "00000000-0000-4000-8000-000000000001",
    "session_id": "session-of-nobody",
    "agent_id": "agent-of-nobody",
    "page_token": "",
    "repair_id": "00000000-0000-4000-8000-000000000002",
    "snapshot_id": "0" * 64,
    "digest": hashlib.sha256(b"x = 2\n").hexdigest(),
}
SERVICES = (
    reasoning_service_pb2.DESCRIPTOR.services_by_name["ReasoningService"],
    turn_service_pb2.DESCRIPTOR.services_by_name["TurnService"],
    repair_service_pb2.DESCRIPTOR.services_by_name["RepairService"],
    execution_service_pb2.DESCRIPTOR.services_by_name["ExecutionService"],
    agent_service_pb2.DESCRIPTOR.services_by_name["AgentService"],
    operations_pb2.DESCRIPTOR.services_by_name["Operations"],
)
RPCS = {method.name: method for service in SERVICES for method in service.methods}
NAMING = re.compile(r"execution_id|turn_id|session_id|agent_id|agent|resume|page_token|last_event_id|snapshot_id")

# A request of each RPC; {…} is replaced by a name. The fields in `UNNAMED`, which no request here sets, do not name
# stored objects.
CALLS: Mapping[str, Any] = {
    "Reason": {"task": {"query": "What is 6 times 7?", "agent": "{agent_id}"}},
    "ReasonIterations": {"resume": {"execution_id": "{execution_id}"}},
    "GetExecution": {"execution_id": "{execution_id}"},
    "FollowExecution": {"execution_id": "{execution_id}"},
    "ListModelCalls": {"execution_id": "{execution_id}"},
    "CancelExecution": {"execution_id": "{execution_id}"},
    "DeleteExecution": {"execution_id": "{execution_id}"},
    "ExecuteTurn": {"attach": {"execution_id": "{turn_id}"}},
    "RunTurn": {"reentry": {"turn_id": "{turn_id}", "etag": "e"}},
    "GetTurn": {"turn_id": "{turn_id}"},
    "CancelTurn": {"turn_id": "{turn_id}"},
    "DeleteTurn": {"turn_id": "{turn_id}"},
    "ReadToolResult": {"turn_id": "{turn_id}", "call_id": "c1"},
    "GetSession": {"session_id": "{session_id}"},
    "DeleteSession": {"session_id": "{session_id}"},
    "Repair": {"task": {"description": "Plan it.", "snapshot_id": "{snapshot_id}", "plan": {}}},
    "RepairSteps": {"resume": {"execution_id": "{repair_id}"}},
    "GetRepair": {"execution_id": "{repair_id}"},
    "GetOperation": {"name": "operations/{repair_id}"},
    "WaitOperation": {"name": "operations/{repair_id}"},
    "CancelOperation": {"name": "operations/{repair_id}"},
    "DeleteOperation": {"name": "operations/{repair_id}"},
    "GetAgentCard": {"agent_id": "{agent_id}"},
    "DeleteAgent": {"agent_id": "{agent_id}"},
    "RegisterAgent": {"agent_id": "{agent_id}", "card_json": CARD, "etag": "0"},
}
ALLOWED = {"RunTurn": {"FAILED_PRECONDITION"}}
"""What the owner gets in place of OK: the turn has ended."""
LISTS = {
    "ListExecutions": "executions",
    "ListOperations": "operations",
    "ListTurns": "turns",
    "ListSessions": "sessions",
    "ListAgents": "agents",
}
"""RPCs that list the caller's own objects; a page token contains a position, not an owner."""
TENANTLESS = {"ListStrategies", "ListEnvironments", "CreateSnapshot", "UploadBlobs"}
"""RPCs that name no tenant-owned objects; contents of snapshots have a test of their own."""

METHODS = {name: rpc for service in DECLARED for name, rpc in service.methods.items()}
EXECUTING = {"query": "What is 6 times 7?", "agent": "{agent_id}"}
METHOD_CALLS: Mapping[str, Any] = {
    "executions.follow": {"execution_id": "{execution_id}"},
    "executions.get": {"execution_id": "{execution_id}"},
    "executions.list_calls": {"execution_id": "{execution_id}"},
    "executions.cancel": {"execution_id": "{execution_id}"},
    "executions.delete": {"execution_id": "{execution_id}"},
    "turns.attach": {"turn_id": "{turn_id}"},
    "turns.reenter": {"turn_id": "{turn_id}", "etag": "e"},
    "turns.get": {"turn_id": "{turn_id}"},
    "turns.cancel": {"turn_id": "{turn_id}"},
    "turns.delete": {"turn_id": "{turn_id}"},
    "turns.read_tool_result": {"turn_id": "{turn_id}", "call_id": "c1"},
    "sessions.get": {"session_id": "{session_id}"},
    "sessions.delete": {"session_id": "{session_id}"},
    "repair.execute": {"goal": "plan", "description": "Plan it.", "snapshot_id": "{snapshot_id}"},
    "repair.get": {"execution_id": "{repair_id}"},
    "agent.get_card": {"agent_id": "{agent_id}"},
    **{name: EXECUTING for name, operation in METHODS.items() if operation == "Reason"},
}
METHOD_LISTS = {
    "executions.list": "executions",
    "turns.list": "turns",
    "sessions.list": "sessions",
    "agent.list": "agents",
}


@dataclass(frozen=True, kw_only=True)
class Owned:
    """A server on which one tenant has an execution and an agent, and a token of another tenant."""

    listening: Listening
    owner: str
    stranger: str
    names: Mapping[str, str]


@pytest.fixture
async def owned() -> AsyncGenerator[Owned, None]:
    async with running_server(environ=ENVIRON) as listening:
        owner, stranger = token("ann", "acme"), token("ann", "globex")
        card = {"agent_id": "agent-of-acme", "card_json": CARD}
        assert (await rpc(listening, owner, "RegisterAgent", card)).code == "OK"
        done = await rpc(listening, owner, "Reason", {"task": {"query": "What is 6 times 7?"}})
        await rpc(listening, owner, "Reason", {"task": {"query": "What is 6 times 7?"}})
        page = await rpc(listening, owner, "ListExecutions", {"page_size": 1})
        start = {"message": "What is 6 times 7?", "session_id": "session-of-acme"}
        turn = await rpc(listening, owner, "RunTurn", {"start": start})
        manifest = [{"path": "a.py", "digest": DIGEST, "size_bytes": len(CONTENT)}]
        made = await rpc(listening, owner, "CreateSnapshot", {"manifest": manifest})
        content = base64.b64encode(CONTENT).decode()
        assert (await rpc(listening, owner, "UploadBlobs", {"contents": [content]})).code == "OK"
        plan = {"description": "Plan it.", "plan": {}, "config": {"num_candidates": 1, "max_candidates": 1}}
        repair = await rpc(listening, owner, "Repair", {"task": plan})
        names = {
            "execution_id": done.body["reasoning"]["execution_id"],
            "turn_id": turn.body["turn"]["turn_id"],
            "session_id": "session-of-acme",
            "agent_id": "agent-of-acme",
            "page_token": page.body["next_page_token"],
            "repair_id": repair.body["repair"]["execution_id"],
            "snapshot_id": made.body["snapshot"]["snapshot_id"],
            "digest": DIGEST,
        }
        yield Owned(listening=listening, owner=owner, stranger=stranger, names=names)


@dataclass(frozen=True, kw_only=True)
class Told:
    """The answer over one wire; `reason` is empty if nothing was refused."""

    code: str = "OK"
    reason: str = ""
    message: str = ""
    body: Any = None
    facts: Sequence[str] = ()


def token(subject: str, tenant: str | None) -> str:
    minter = TokenMinter(
        key=SigningKey(id="test", secret=SECRET.encode()), issuer="reasond", audience="reasond", max_lifetime_s=3600
    )
    return minter.mint(subject=subject, permissions=["admin"], tenant=tenant, lifetime_s=600, now=datetime.now(UTC))


def fill(values: Any, names: Mapping[str, str]) -> Any:
    text = json.dumps(values)
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", value)
    return json.loads(text)


async def rpc(listening: Listening, bearer: str, name: str, values: Any) -> Told:
    """Call an RPC with the JSON form of its request; for a stream, the last message counts."""
    async with grpc.aio.insecure_channel(listening.grpc) as channel:
        stubs: Sequence[Any] = (
            reasoning_service_pb2_grpc.ReasoningServiceStub(channel),
            turn_service_pb2_grpc.TurnServiceStub(channel),
            repair_service_pb2_grpc.RepairServiceStub(channel),
            execution_service_pb2_grpc.ExecutionServiceStub(channel),
            agent_service_pb2_grpc.AgentServiceStub(channel),
            operations_pb2_grpc.OperationsStub(channel),
        )
        call = next(getattr(stub, name) for stub in stubs if hasattr(stub, name))
        modules = (
            reasoning_service_pb2,
            turn_service_pb2,
            repair_service_pb2,
            execution_service_pb2,
            agent_service_pb2,
            operations_pb2,
        )
        kind = next(found for module in modules if (found := getattr(module, f"{name}Request", None)))
        request = json_format.ParseDict(values, kind())
        try:
            answering = call(request, metadata=[("authorization", f"Bearer {bearer}")])
            answers = [each async for each in answering] if RPCS[name].server_streaming else [await answering]
        except grpc.aio.AioRpcError as error:
            return refusal_of(error)
    return Told(body=json_format.MessageToDict(answers[-1], preserving_proto_field_name=True))


def refusal_of(error: grpc.aio.AioRpcError) -> Told:
    status: Any = rpc_status.from_call(error)  # type: ignore[arg-type]  # it reads an error like a call
    info = error_details_pb2.ErrorInfo()
    kinds = sorted(detail.TypeName() for detail in status.details)
    for detail in status.details:
        detail.Unpack(info)
    facts = [*kinds, *sorted(set(info.metadata) - {"request_id"})]
    return Told(code=error.code().name, reason=info.reason, message=str(error.details()), facts=facts)


async def post(
    listening: Listening, bearer: str, method: str, params: Any, headers: Mapping[str, str] | None = None
) -> Told:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "auth_token": bearer}}
    async with make_http_client(base_url=listening.http, headers=dict(headers or {})) as client:
        answer = await client.post("/api/v1/jsonrpc", json=body)
    found = answer.json() if "event-stream" not in answer.headers["content-type"] else {"error": events_of(answer)[-1]}
    if "error" not in found:
        return Told(body=found["result"])
    error, data = found["error"], found["error"]["data"]
    return Told(code=str(error["code"]), reason=data["reason"], message=error["message"], facts=sorted(data))


def events_of(answer: httpx.Response) -> list[Any]:
    return [json.loads(line[5:]) for line in answer.text.splitlines() if line.startswith("data:")]


def same_but_for_names(foreign: Told, unknown: Told, names: Mapping[str, str]) -> None:
    """Require that two refusals are equal apart from the requested names."""
    texts = [foreign.message, unknown.message]
    for name, value in names.items():
        texts[0] = texts[0].replace(value or "\0", name)
        texts[1] = texts[1].replace(NOWHERE[name] or "\0", name)
    assert texts[0] == texts[1]
    assert (foreign.code, foreign.reason, foreign.facts) == (unknown.code, unknown.reason, unknown.facts)


def named_fields(message: Any, prefix: str = "", depth: int = 3) -> set[str]:
    """Return the fields of a request that name something, including those of nested messages."""
    found = set()
    for field in message.fields:
        if NAMING.fullmatch(field.name) and field.message_type is None:
            found.add(f"{prefix}{field.name}")
        elif field.message_type is not None and depth and field.message_type.file.package == "reasond.v1":
            found |= named_fields(field.message_type, f"{prefix}{field.name}.", depth - 1)
    return found


def test_every_rpc_and_method_is_in_one_of_the_tables() -> None:
    assert set(RPCS) == {*CALLS, *LISTS, *TENANTLESS}
    tenantless = {"reasoning.list_strategies", "repair.create_snapshot", "repair.list_environments", "turns.start"}
    assert set(METHODS) == {*METHOD_CALLS, *METHOD_LISTS, *tenantless, "repair.upload_blobs"}


def test_every_field_that_names_a_stored_object_is_tested() -> None:
    named = {name: named_fields(rpc.input_type) for name, rpc in RPCS.items()}

    assert {name: fields for name, fields in named.items() if fields} == {
        "Reason": {"task.agent"},
        "ReasonIterations": {"task.agent", "resume.execution_id"},
        "ListStrategies": {"page_token"},
        "GetExecution": {"execution_id"},
        "FollowExecution": {"execution_id"},
        "CancelExecution": {"execution_id"},
        "ListExecutions": {"page_token"},
        "ListModelCalls": {"execution_id", "page_token"},
        "ListOperations": {"page_token"},
        "DeleteExecution": {"execution_id"},
        "ExecuteTurn": {"start.session_id", "reentry.turn_id", "attach.execution_id"},
        "RunTurn": {"start.session_id", "reentry.turn_id"},
        "GetTurn": {"turn_id"},
        "ListTurns": {"page_token", "session_id"},
        "CancelTurn": {"turn_id"},
        "DeleteTurn": {"turn_id"},
        "ReadToolResult": {"turn_id"},
        "GetSession": {"session_id"},
        "ListSessions": {"page_token"},
        "DeleteSession": {"session_id"},
        "Repair": {"task.snapshot_id"},
        "RepairSteps": {"task.snapshot_id", "resume.execution_id"},
        "GetRepair": {"execution_id"},
        "GetAgentCard": {"agent_id"},
        "ListAgents": {"page_token"},
        "RegisterAgent": {"agent_id"},
        "DeleteAgent": {"agent_id"},
    }


async def test_another_tenants_is_not_there_over_grpc(owned: Owned) -> None:
    for name in CALLS:
        foreign = await rpc(owned.listening, owned.stranger, name, fill(CALLS[name], owned.names))
        unknown = await rpc(owned.listening, owned.stranger, name, fill(CALLS[name], NOWHERE))

        assert foreign.code == "NOT_FOUND", name
        same_but_for_names(foreign, unknown, owned.names)
    # Sessions are deleted with their turns.
    for name in sorted(CALLS, key=lambda name: (name.startswith("Delete"), name == "DeleteSession")):
        own = await rpc(owned.listening, owned.owner, name, fill(CALLS[name], owned.names))
        assert own.code in ALLOWED.get(name, {"OK", "ABORTED"}), name


async def test_another_tenants_is_not_there_over_rest(owned: Owned) -> None:
    async with make_http_client(base_url=owned.listening.http) as client:
        for name in sorted(CALLS.keys() & ADDRESSED.keys()):
            foreign, unknown = [
                told_of(await client.request(**make_request(name, fill(CALLS[name], names)), headers=bearer))
                for bearer in [{"authorization": f"Bearer {owned.stranger}"}]
                for names in (owned.names, NOWHERE)
            ]
            assert foreign.code == "404", name
            same_but_for_names(foreign, unknown, owned.names)


def told_of(answer: httpx.Response) -> Told:
    if answer.status_code == 200:
        return Told(body=answer.text)
    status = answer.json()
    info, kinds = find_detail(status, "ErrorInfo"), [each["@type"] for each in status["details"]]
    facts = [*sorted(kinds), *sorted(info["metadata"])]
    return Told(code=str(answer.status_code), reason=info["reason"], message=status["message"], facts=facts)


async def test_a_stream_does_not_begin_with_another_tenants_agent(owned: Owned) -> None:
    values = {"task": CALLS["Reason"]["task"]}
    foreign = await rpc(owned.listening, owned.stranger, "ReasonIterations", fill(values, owned.names))
    unknown = await rpc(owned.listening, owned.stranger, "ReasonIterations", fill(values, NOWHERE))

    assert foreign.code == "NOT_FOUND"
    same_but_for_names(foreign, unknown, owned.names)


async def test_another_tenants_is_not_there_over_jsonrpc(owned: Owned) -> None:
    for name in METHOD_CALLS:
        headers = {"accept": "text/event-stream"} if name == "executions.follow" else {}
        foreign = await post(owned.listening, owned.stranger, name, fill(METHOD_CALLS[name], owned.names), headers)
        unknown = await post(owned.listening, owned.stranger, name, fill(METHOD_CALLS[name], NOWHERE), headers)

        assert foreign.reason.endswith("_NOT_FOUND"), name
        same_but_for_names(foreign, unknown, owned.names)


async def test_another_tenants_event_stream_is_not_found(owned: Owned) -> None:
    async def resume(names: Mapping[str, str]) -> Told:
        headers = {"accept": "text/event-stream", "last-event-id": f"{names['execution_id']}:0"}
        return await post(owned.listening, owned.stranger, "reasoning.execute", {"query": "q"}, headers)

    foreign, unknown = await resume(owned.names), await resume(NOWHERE)

    assert foreign.reason == "EXECUTION_NOT_FOUND"
    same_but_for_names(foreign, unknown, owned.names)


async def test_contents_of_another_tenants_snapshot_are_refused_like_those_of_none(owned: Owned) -> None:
    contents = [base64.b64encode(content).decode() for content in (CONTENT, b"x = 2\n")]
    over_grpc = [await rpc(owned.listening, owned.stranger, "UploadBlobs", {"contents": [each]}) for each in contents]
    over_json = [
        await post(owned.listening, owned.stranger, "repair.upload_blobs", {"contents": [each]}) for each in contents
    ]

    for foreign, unknown in (over_grpc, over_json):
        assert foreign.reason == "INVALID_REQUEST"
        same_but_for_names(foreign, unknown, owned.names)


async def test_lists_contain_only_the_callers_own_objects_on_every_page(owned: Owned) -> None:
    for name, listed in LISTS.items():
        for page in ({}, {"page_token": owned.names["page_token"] if name == "ListExecutions" else "a"}):
            told = await rpc(owned.listening, owned.stranger, name, page)
            assert told.code in {"OK", "INVALID_ARGUMENT"}, name
            assert not (told.body or {}).get(listed), name
        assert (await rpc(owned.listening, owned.owner, name, {})).body[listed], name


async def test_lists_over_jsonrpc_contain_only_the_callers_own_objects(owned: Owned) -> None:
    for name, listed in METHOD_LISTS.items():
        for page in [{}, {"page_token": owned.names["page_token"]}] if name == "executions.list" else [{}]:
            assert (await post(owned.listening, owned.stranger, name, page)).body[listed] == [], name
        assert (await post(owned.listening, owned.owner, name, {})).body[listed], name


async def test_a_session_of_another_tenant_is_another_session_and_its_turns_are_not_listed(owned: Owned) -> None:
    values = {"start": {"message": "What is 1 plus 1?", "session_id": "session-of-acme", "if_revision": 0}}
    mine = await rpc(owned.listening, owned.stranger, "RunTurn", values)
    listed = await rpc(owned.listening, owned.stranger, "ListTurns", {"session_id": "session-of-acme"})

    assert mine.code == "OK"
    assert [turn["turn_id"] for turn in listed.body["turns"]] == [mine.body["turn"]["turn_id"]]


async def test_a_request_id_is_scoped_to_its_tenant(owned: Owned) -> None:
    values = {"task": {"query": "What is 6 times 7?"}, "request_id": "same"}
    first = await rpc(owned.listening, owned.owner, "Reason", values)
    second = await rpc(owned.listening, owned.stranger, "Reason", {**values, "task": {"query": "What is 1 plus 1?"}})

    assert (first.code, second.code) == ("OK", "OK")
    assert first.body["reasoning"]["execution_id"] != second.body["reasoning"]["execution_id"]


async def test_a_tenant_named_like_a_subject_does_not_see_the_subjects_objects(owned: Owned) -> None:
    alone = token("acme-bot", None)
    done = await rpc(owned.listening, alone, "Reason", {"task": {"query": "What is 6 times 7?"}})
    wanted = {"execution_id": done.body["reasoning"]["execution_id"]}

    assert (await rpc(owned.listening, alone, "GetExecution", wanted)).code == "OK"
    assert (await rpc(owned.listening, token("eve", "acme-bot"), "GetExecution", wanted)).code == "NOT_FOUND"
    with pytest.raises(Exception, match="begin with"):
        token("eve", "sub:acme-bot")
