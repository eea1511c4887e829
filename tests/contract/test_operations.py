"""Executions as google.longrunning operations, with the client of google-api-core as it comes from PyPI."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.api_core import exceptions, operation, operations_v1
from google.longrunning import operations_pb2  # type: ignore[import-untyped]  # shipped without py.typed
from google.protobuf import duration_pb2

import reasond
from reasond.v1 import execution_pb2, repairs_pb2, turns_pb2
from reasond_server.assembly.app import Server
from reasond_server.config import load
from reasond_server.errors.model import ModelFailedError
from reasond_server.testing import Reply, ScriptedModel, running_server
from tests.contract.test_followers import ANSWER, ENVIRON, OWNER, QUERY, mint
from tests.contract.test_turns import OPEN_FILE, reply
from tests.unit.grpc_api.parts import details_of, get_error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reasond_server.assembly.app import Listening

LIMIT_S = 120.0
COT: dict[str, Any] = {"strategy": "chain_of_thought", "timeout_s": LIMIT_S}
PLAN: dict[str, Any] = {"is_plan": True, "config": {"num_candidates": 1, "max_candidates": 1}}


def bearer(token: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {token}")]


@asynccontextmanager
async def serving(
    replies: Sequence[str | Reply], **environ: str
) -> AsyncGenerator[tuple[Listening, reasond.AsyncClient], None]:
    with ScriptedModel(replies, has_native_tools=True) as model:
        async with (
            running_server(model=model, environ={**ENVIRON, **environ}) as server,
            reasond.AsyncClient(server.grpc, token=OWNER) as client,
        ):
            yield server, client


async def call(server: Listening, rpc: str, *, token: str = OWNER, deadline_s: float = LIMIT_S, **values: Any) -> Any:
    """Call an RPC of Operations by its name, as a client would that has the public protos alone."""
    service = operations_pb2.DESCRIPTOR.services_by_name["Operations"]
    kind = service.methods_by_name[rpc]
    async with grpc.aio.insecure_channel(server.grpc) as channel:
        method: grpc.aio.UnaryUnaryMultiCallable[Any, Any] = channel.unary_unary(
            f"/{service.full_name}/{rpc}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=getattr(operations_pb2, kind.output_type.name, operations_pb2.Operation).FromString,
        )
        request = getattr(operations_pb2, kind.input_type.name)(**values)
        return await method(request, metadata=bearer(token), timeout=deadline_s)


def metadata_of(found: Any) -> execution_pb2.Execution:
    execution = execution_pb2.Execution()
    assert found.metadata.Unpack(execution)
    return execution


@asynccontextmanager
async def future_of(server: Listening, name: str, result_type: type[Any]) -> AsyncGenerator[Any, None]:
    """Return the future of google-api-core for an operation; its methods block, so they are called in threads."""
    with grpc.insecure_channel(server.grpc) as channel:
        yield operation.from_gapic(  # type: ignore[no-untyped-call]  # shipped without types
            operations_pb2.Operation(name=name),
            operations_v1.OperationsClient(channel),  # type: ignore[no-untyped-call]  # as above
            result_type,
            metadata_type=execution_pb2.Execution,
            grpc_metadata=bearer(OWNER),
        )


async def test_a_client_of_google_waits_for_the_result() -> None:
    gate = asyncio.Event()
    async with serving([Reply(text=ANSWER, hold=gate)]) as (server, client):
        async with client.reason_iterations(QUERY, keep_running=True, **COT) as events:
            name = (await anext(events)).execution_id
        async with future_of(server, f"operations/{name}", execution_pb2.Reasoning) as future:
            assert not await asyncio.to_thread(future.done)
            assert future.metadata.state == execution_pb2.EXECUTION_STATE_RUNNING
            gate.set()
            assert (await asyncio.to_thread(future.result, timeout=LIMIT_S)).answer == "42"
            assert future.metadata.state == execution_pb2.EXECUTION_STATE_SUCCEEDED
            assert not await asyncio.to_thread(future.cancel), "there is nothing to cancel"


async def test_a_client_of_google_cancels() -> None:
    async with (
        serving([Reply(text=ANSWER, hold=asyncio.Event())]) as (server, client),
        client.reason_iterations(QUERY, keep_running=True, **COT) as events,
    ):
        name = (await anext(events)).execution_id
        async with future_of(server, f"operations/{name}", execution_pb2.Reasoning) as future:
            assert await asyncio.to_thread(future.cancel)
            assert await asyncio.to_thread(future.cancelled)
            error = await asyncio.to_thread(future.exception, timeout=LIMIT_S)
        assert isinstance(error, exceptions.Cancelled)
        assert "GetExecution" in error.message


async def test_a_client_of_google_sees_why_an_execution_failed_and_what_to_do() -> None:
    failure = ModelFailedError("The model hung up", remedy="Look at its log.")
    async with serving([Reply(text="", error=failure)]) as (server, client):
        with pytest.raises(reasond.ReasondError) as told:
            await client.reason(QUERY, **COT)
        name = told.value.execution_id
        async with future_of(server, f"operations/{name}", execution_pb2.Reasoning) as future:
            error = await asyncio.to_thread(future.exception, timeout=LIMIT_S)

    assert isinstance(error, exceptions.GoogleAPICallError)
    assert error.message == "The model hung up. Look at its log."
    info = details_of(error.errors[0])["ErrorInfo"]
    assert (info.reason, info.domain, info.metadata["execution_id"]) == ("MODEL_FAILED", "reasond", name)


async def test_turns_and_repairs_are_operations_too() -> None:
    async with serving(["Hello.", "1. Do it."]) as (server, client):
        turn = (await client.run_turn(reasond.TurnStart(message="Hello"))).turn.turn_id
        repair = await client.repair(reasond.repair_task("Plan it.", files={"a.py": "x = 1\n"}, **PLAN))
        async with future_of(server, f"operations/{turn}", turns_pb2.TurnResult) as future:
            assert (await asyncio.to_thread(future.result, timeout=LIMIT_S)).answer == "Hello."
        async with future_of(server, f"operations/{repair.execution_id}", repairs_pb2.Repair) as future:
            assert await asyncio.to_thread(future.result, timeout=LIMIT_S) == repair

        page = await call(server, "ListOperations", name="operations", page_size=1)
        rest = await call(server, "ListOperations", page_token=page.next_page_token)
        names = [each.name for each in (*page.operations, *rest.operations)]
        assert names == [f"operations/{repair.execution_id}", f"operations/{turn}"]
        assert all(each.done and each.WhichOneof("result") is None for each in rest.operations), "a list has no results"


async def test_a_turn_that_waits_for_its_client_is_told_and_waiting_again_does_not_spin() -> None:
    async with serving([reply("a.txt"), "Done."]) as (server, client):
        start = reasond.TurnStart(message="Look", client_tools=[turns_pb2.ClientTool(**OPEN_FILE)])
        turn = (await client.run_turn(start)).turn
        name = f"operations/{turn.turn_id}"
        wait: dict[str, Any] = {"name": name, "timeout": duration_pb2.Duration(nanos=200_000_000)}
        found = await call(server, "WaitOperation", **wait)
        assert (found.done, metadata_of(found).state) == (False, execution_pb2.EXECUTION_STATE_SUSPENDED)

        waiting = asyncio.create_task(call(server, "WaitOperation", name=name))
        results = [reasond.ToolResult(call_id=each.call.call_id, result_json='"x"') for each in turn.handoff.calls]
        await client.run_turn(reasond.TurnReentry(turn_id=turn.turn_id, etag=turn.handoff.etag, results=results))
        result = turns_pb2.TurnResult()
        assert (await waiting).response.Unpack(result)
        assert result.answer == "Done."


async def test_waiting_ends_when_a_turn_hands_calls_off() -> None:
    gate = asyncio.Event()
    held = reply("a.txt")
    async with serving([Reply(text=held.text, tool_calls=held.tool_calls, hold=gate)]) as (server, client):
        start = reasond.TurnStart(message="Look", client_tools=[turns_pb2.ClientTool(**OPEN_FILE)])
        events = client.execute_turn(start)
        name = f"operations/{(await anext(events)).turn_id}"
        waiting = asyncio.create_task(call(server, "WaitOperation", name=name))
        gate.set()
        found = await waiting
        assert (found.done, metadata_of(found).state) == (False, execution_pb2.EXECUTION_STATE_SUSPENDED)


async def test_waiting_answers_before_the_deadline_of_the_call() -> None:
    async with (
        serving([Reply(text=ANSWER, hold=asyncio.Event())]) as (server, client),
        client.reason_iterations(QUERY, **COT) as events,
    ):
        name = f"operations/{(await anext(events)).execution_id}"
        assert not (await call(server, "WaitOperation", deadline_s=3.0, name=name)).done
        assert not (await call(server, "WaitOperation", name=name, timeout=duration_pb2.Duration())).done
        refused = await get_error(
            call(server, "WaitOperation", name=name, timeout=duration_pb2.Duration(seconds=1, nanos=-1))
        )
        assert refused[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_waiting_ends_when_the_server_drains() -> None:
    environ = {**ENVIRON, "REASOND_CONFIG": os.devnull, "REASOND__SERVER__GRPC_ADDRESS": "127.0.0.1:0"}
    with ScriptedModel([reply("a.txt")], has_native_tools=True) as model:
        server = Server(load(None, environ), environ=environ, dev=True, model=model)
        listening = await server.start()
        async with reasond.AsyncClient(listening.grpc, token=listening.token) as client:
            start = reasond.TurnStart(message="Look", client_tools=[turns_pb2.ClientTool(**OPEN_FILE)])
            turn = (await client.run_turn(start)).turn.turn_id
            name, token = f"operations/{turn}", listening.token
            waiting = asyncio.create_task(get_error(call(listening, "WaitOperation", token=token, name=name)))
            while not server._take_snapshot().rpcs:  # noqa: ASYNC110 - a call that waits tells nobody
                await asyncio.sleep(0.01)
            await server.drain()
            code, _, details = await waiting

    assert (code, details["ErrorInfo"].reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")


async def test_each_kind_has_its_permission() -> None:
    async with serving([ANSWER, "Hello.", "1. Do it."]) as (server, client):
        task = (await client.reason(QUERY, **COT)).execution_id
        turn = (await client.run_turn(reasond.TurnStart(message="Hello"))).turn.turn_id
        repair = (await client.repair(reasond.repair_task("Plan it.", files={"a.py": "x\n"}, **PLAN))).execution_id
        kinds = {
            task: ("executions:read", "reasoning:execute:chain_of_thought"),
            turn: ("turns:read", "turns:execute"),
            repair: ("executions:read", "repair:execute"),
        }
        for reading in ("executions:read", "turns:read"):
            listed = await call(server, "ListOperations", token=mint(reading))
            may_read = {name for name, (permission, _) in kinds.items() if permission == reading}
            assert {each.name.removeprefix("operations/") for each in listed.operations} == may_read
            for name in kinds:
                for rpc in ("GetOperation", "WaitOperation"):
                    answer = call(server, rpc, token=mint(reading), name=f"operations/{name}")
                    await (answer if name in may_read else require_denied(answer))
        endings = {ending for _, ending in kinds.values()} | {"executions:read", "reasoning:execute:react"}
        for name, (_, ending) in kinds.items():
            for other in (*sorted(endings - {ending}), ending):
                for rpc in ("CancelOperation", "DeleteOperation"):
                    answer = call(server, rpc, token=mint(other), name=f"operations/{name}")
                    await (answer if other == ending else require_denied(answer))
        assert not (await call(server, "ListOperations")).operations


async def require_denied(answer: Any) -> None:
    code, message, details = await get_error(answer)
    assert (code, details["ErrorInfo"].reason) == (grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_MISSING")
    assert details["ErrorInfo"].metadata["permission"] in message


async def test_deleting_stops_nothing_and_mistakes_are_named() -> None:
    async with (
        serving([Reply(text=ANSWER, hold=asyncio.Event())]) as (server, client),
        client.reason_iterations(QUERY, **COT) as events,
    ):
        name = f"operations/{(await anext(events)).execution_id}"
        mistakes: Sequence[tuple[str, dict[str, Any], str]] = (
            ("DeleteOperation", {"name": name.partition("/")[2]}, "name"),
            ("GetOperation", {"name": name.partition("/")[2]}, "name"),
            ("CancelOperation", {"name": "operations/"}, "name"),
            ("ListOperations", {"name": "projects/1"}, "name"),
            ("ListOperations", {"filter": "done=true"}, "filter"),
            ("ListOperations", {"page_token": "x"}, "page_token"),
        )
        for rpc, values, field in mistakes:
            code, _, details = await get_error(call(server, rpc, **values))
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert [each.field for each in details["BadRequest"].field_violations] == [field]
        code, message, details = await get_error(call(server, "DeleteOperation", name=name))
        assert (code, details["ErrorInfo"].reason) == (grpc.StatusCode.FAILED_PRECONDITION, "EXECUTION_RUNNING")
        assert details["PreconditionFailure"].violations[0].type == "EXECUTION_RUNNING"
        assert message == f"'{name}' is not done, and deleting does not stop it. Cancel it first."
        code, message, _ = await get_error(call(server, "GetOperation", token="", name=name))
        assert (code, "authorization" in message) == (grpc.StatusCode.UNAUTHENTICATED, True)
        assert not (await call(server, "GetOperation", name=name)).done
