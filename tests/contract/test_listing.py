"""Executions are listed by state and time over both wires, page by page, and what is wrong with a filter is named."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import reasond
from reasond.v1 import execution_service_pb2 as pb
from reasond.v1.execution_pb2 import ExecutionState
from reasond_server.errors.model import ModelFailedError
from reasond_server.testing import Reply, ScriptedModel, running_server
from tests.http_clients import make_http_client

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.assembly.app import Listening

WIRES = ("grpc", "jsonrpc")
ANSWER = "<answer>42</answer>"
OPTIONS: Mapping[str, Any] = {"strategy": "chain_of_thought", "timeout_s": 180}


class RefusedError(Exception):
    """A list was refused; the arguments are the fields that are wrong."""


async def find(server: Listening, wire: str, **filters: Any) -> Sequence[str]:
    """Return the ids of all executions that fit, in their order; pages are of one execution."""
    over = find_over_grpc if wire == "grpc" else find_over_jsonrpc
    return await over(server, filters)


async def find_over_grpc(server: Listening, filters: dict[str, Any]) -> Sequence[str]:
    if "state" in filters:
        filters["state"] = ExecutionState.Value(f"EXECUTION_STATE_{filters['state'].upper()}")
    async with reasond.AsyncClient(server.grpc, token=server.token) as client:
        try:
            return [each.execution_id async for each in client.list_executions(page_size=1, **filters)]
        except reasond.InvalidRequestError as error:
            raise RefusedError(*(each.field for each in error.violations)) from None


async def find_over_jsonrpc(server: Listening, filters: dict[str, Any]) -> Sequence[str]:
    told = {name: each.isoformat() if isinstance(each, datetime) else each for name, each in filters.items()}
    params = {"auth_token": server.token, "page_size": 1, "page_token": "", **told}
    found: list[str] = []
    async with make_http_client(base_url=server.http) as http:
        while True:
            body = {"jsonrpc": "2.0", "id": 1, "method": "executions.list", "params": params}
            answer = (await http.post("/api/v1/jsonrpc", json=body)).json()
            if "error" in answer:
                raise RefusedError(*(each["field"] for each in answer["error"]["data"]["violations"]))
            found += [each["execution_id"] for each in answer["result"]["executions"]]
            if not (token := answer["result"]["next_page_token"]):
                return found
            params["page_token"] = token


@pytest.mark.parametrize("wire", WIRES)
async def test_executions_are_found_by_state_and_time(wire: str) -> None:
    failing = Reply(text="no", error=ModelFailedError("The model broke off"), error_after=1)
    replies = [Reply(text=ANSWER), failing, Reply(text=ANSWER), Reply(text=ANSWER, hold=asyncio.Event())]
    with ScriptedModel(replies) as model:
        async with (
            running_server(model=model) as server,
            reasond.AsyncClient(server.grpc, token=server.token) as client,
        ):
            first = (await client.reason("one", **OPTIONS)).execution_id
            with pytest.raises(reasond.ReasondError) as failed:
                await client.reason("two", **OPTIONS)
            second = str(failed.value.execution_id)
            third = (await client.reason("three", **OPTIONS)).execution_id
            async with client.reason_iterations("four", **OPTIONS) as stream:
                fourth = (await anext(stream)).execution_id
                began = [
                    (await client.get_execution(name)).execution.create_time.ToDatetime(UTC)
                    for name in (first, second, third, fourth)
                ]
                assert await find(server, wire) == [fourth, third, second, first]
                assert await find(server, wire, state="succeeded") == [third, first]
                assert await find(server, wire, state="failed") == [second]
                assert await find(server, wire, state="running") == [fourth]
                assert await find(server, wire, state="suspended") == []
                assert await find(server, wire, create_time_after=began[2]) == [fourth, third]
                assert await find(server, wire, create_time_before=began[2]) == [second, first]
                assert await find(server, wire, create_time_after=began[1], create_time_before=began[3]) == [
                    third,
                    second,
                ]
                assert await find(server, wire, state="succeeded", create_time_before=began[2]) == [first]


@pytest.mark.parametrize("wire", WIRES)
async def test_times_that_include_nothing_are_refused_by_name(wire: str) -> None:
    now = datetime.now(UTC)
    async with running_server() as server:
        for before in (now, now - timedelta(seconds=1)):
            with pytest.raises(RefusedError) as refused:
                await find(server, wire, create_time_after=now, create_time_before=before)
            assert refused.value.args == ("create_time_before",)


@pytest.mark.parametrize("wrong", ["yesterday", "2026-11-23T10:00:00", "", 1795396672, None, []])
async def test_what_is_no_time_in_json_is_refused_by_name(wrong: Any) -> None:
    async with running_server() as server:
        if wrong is None:
            assert await find_over_jsonrpc(server, {"create_time_after": wrong}) == []
            return
        with pytest.raises(RefusedError) as refused:
            await find_over_jsonrpc(server, {"create_time_after": wrong})
    assert refused.value.args == ("create_time_after",)


async def test_a_state_that_is_none_is_refused_by_name() -> None:
    async with running_server() as server:
        with pytest.raises(RefusedError) as refused:
            await find_over_jsonrpc(server, {"state": "done"})
        assert refused.value.args == ("state",)
        async with reasond.AsyncClient(server.grpc, token=server.token) as client:
            with pytest.raises(reasond.InvalidRequestError) as unknown:
                _ = [each async for each in client.list_executions(state=99)]  # type: ignore[arg-type]  # no state
            assert [each.field for each in unknown.value.violations] == ["state"]


@pytest.mark.parametrize(("seconds", "nanos"), [(2**62, 0), (-(2**62), 0), (0, -1), (0, 10**9)])
async def test_what_is_no_timestamp_is_refused_by_name(seconds: int, nanos: int) -> None:
    request = pb.ListExecutionsRequest()
    request.create_time_before.seconds, request.create_time_before.nanos = seconds, nanos
    async with running_server() as server, reasond.AsyncClient(server.grpc, token=server.token) as client:
        with pytest.raises(reasond.InvalidRequestError) as refused:
            await client._link.answer(client._link.executions.ListExecutions, request, 180)
    assert [each.field for each in refused.value.violations] == ["create_time_before"]


async def test_a_page_token_belongs_to_its_state_and_times() -> None:
    with ScriptedModel([ANSWER, ANSWER]) as model:
        async with (
            running_server(model=model) as server,
            reasond.AsyncClient(server.grpc, token=server.token) as client,
        ):
            for query in ("one", "two"):
                await client.reason(query, **OPTIONS)
            succeeded = ExecutionState.EXECUTION_STATE_SUCCEEDED
            request = pb.ListExecutionsRequest(page_size=1, state=succeeded)
            page = await client._link.answer(client._link.executions.ListExecutions, request, 180)
            request = pb.ListExecutionsRequest(page_size=1, page_token=page.next_page_token)
            with pytest.raises(reasond.InvalidRequestError, match="with the same filters"):
                await client._link.answer(client._link.executions.ListExecutions, request, 180)


async def list_over(server: Listening, wire: str, **filters: Any) -> list[dict[str, Any]]:
    """Return the lines of the executions as JSON, over one wire."""
    names = ("execution_id", "question", "outcome", "client", "wire")
    if wire == "jsonrpc":
        body = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "executions.list",
            "params": {**filters, "auth_token": server.token},
        }
        async with make_http_client(base_url=server.http) as http:
            answer = (await http.post("/api/v1/jsonrpc", json=body)).json()
        return [{name: each[name] for name in names} for each in answer["result"]["executions"]]
    async with reasond.AsyncClient(server.grpc, token=server.token) as client:
        return [{name: getattr(each, name) for name in names} async for each in client.list_executions(**filters)]


@pytest.mark.parametrize("wire", WIRES)
async def test_a_list_tells_what_was_asked_what_came_of_it_and_who_asked_by_which_wire(wire: str) -> None:
    failing = Reply(text="no", error=ModelFailedError("The model broke off"), error_after=1)
    with ScriptedModel([Reply(text="So.<answer>\nNewton,\nin 1704</answer>"), failing]) as model:
        async with (
            running_server(model=model) as server,
            reasond.AsyncClient(server.grpc, token=server.token) as client,
        ):
            first = (await client.reason("\n  Who wrote\tthe Opticks?\nAnd when?", **OPTIONS)).execution_id
            params = {"query": "And who read it?", "strategy": "chain_of_thought", "auth_token": server.token}
            async with make_http_client(base_url=server.http, timeout=180) as http:
                body = {"jsonrpc": "2.0", "id": 1, "method": "reasoning.execute", "params": params}
                await http.post("/api/v1/jsonrpc", json=body)
            second, told = await list_over(server, wire)
    assert (told["execution_id"], told["question"], told["outcome"]) == (first, "Who wrote the Opticks?", "Newton,")
    assert (told["wire"], second["wire"]) == ("grpc", "jsonrpc")
    assert second["question"] == "And who read it?"
    assert second["outcome"].startswith("MODEL_FAILED: The model broke off")
    assert told["client"] == second["client"] != ""


@pytest.mark.parametrize("wire", WIRES)
async def test_executions_are_found_by_a_text_in_what_was_asked_or_answered(wire: str) -> None:
    with ScriptedModel(["<answer>Äpfel</answer>", "<answer>Birnen</answer>", "<answer>100 %</answer>"]) as model:
        async with (
            running_server(model=model) as server,
            reasond.AsyncClient(server.grpc, token=server.token) as client,
        ):
            ids = [
                (await client.reason(query, **OPTIONS)).execution_id
                for query in ("What grows?", "What else?", "How much?")
            ]
            assert await find(server, wire, text="WHAT") == [ids[1], ids[0]]
            assert await find(server, wire, text="äPFEL") == [ids[0]]
            assert await find(server, wire, text="%") == [ids[2]]
            assert await find(server, wire, text="_") == []
            assert await find(server, wire, text=ids[1][:12]) == [ids[1]]
            assert await find(server, wire, text=" what ", state="failed") == []
            with pytest.raises(RefusedError) as refused:
                await find(server, wire, text="x" * 201)
            assert refused.value.args == ("text",)


@pytest.mark.parametrize("wire", WIRES)
async def test_where_no_content_is_kept_a_list_has_none_and_names_the_reason_of_a_failure(wire: str) -> None:
    failing = Reply(text="CANARY", error=ModelFailedError("CANARY"), error_after=1)
    with ScriptedModel(["<answer>CANARY</answer>", failing]) as model:
        environ = {"REASOND__STORE__RECORD_CONTENT": "false"}
        async with (
            running_server(model=model, environ=environ) as server,
            reasond.AsyncClient(server.grpc, token=server.token) as client,
        ):
            await client.reason("CANARY?", **OPTIONS)
            with pytest.raises(reasond.ReasondError):
                await client.reason("CANARY?", **OPTIONS)
            failed, answered = await list_over(server, wire)
    assert (answered["question"], answered["outcome"]) == ("", "")
    assert (failed["question"], failed["outcome"]) == ("", "MODEL_FAILED")
    assert answered["wire"] == "grpc"
