"""Observers follow any execution by its id over each wire; they neither keep it running nor cancel it."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

import reasond
from reasond_server.access.token_keys import SigningKey
from reasond_server.access.tokens import TokenMinter
from reasond_server.testing import Reply, ScriptedModel, running_server
from tests.http_clients import make_http_client
from tests.rest_calls import find_detail, make_request

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from reasond_server.assembly.app import Listening

WIRES = ("grpc", "jsonrpc", "rest")
SECRET = "a key of the test that nobody guesses 8f1c"
ENVIRON = {"REASOND__AUTH__KEYS": f'[{{ id = "test", secret = "{SECRET}" }}]', "REASOND__REPAIR__ENABLED": "true"}
QUERY = "What is six times seven?"
ANSWER = "<answer>42</answer>"
LIMIT_S = 180.0
COMMON = ("execution_id", "turn_id", "sequence", "create_time")
EVENTS = [("started", 1), ("iteration", 2), ("completed", 3)]

Seen = tuple[str, int]


def mint(*permissions: str) -> str:
    minter = TokenMinter(
        key=SigningKey(id="test", secret=SECRET.encode()), issuer="reasond", audience="reasond", max_lifetime_s=3600
    )
    return minter.mint(subject="ann", permissions=permissions, tenant="acme", lifetime_s=3600, now=datetime.now(UTC))


OWNER = mint("admin")
READER = mint("executions:read")


class RefusedError(Exception):
    """A call was refused with a reason, and the fields that are wrong."""

    def __init__(self, reason: str, fields: list[str]) -> None:
        super().__init__(reason, fields)


async def observe(
    server: Listening, wire: str, execution_id: str, *, token: str = READER, **options: Any
) -> AsyncGenerator[Seen, None]:
    """Yield name and sequence of each event but heartbeats, to the end of the execution."""
    over = {"grpc": over_grpc, "jsonrpc": over_jsonrpc, "rest": over_rest}[wire]
    async with aclosing(over(server, token, {"execution_id": execution_id, **options})) as events:
        async for name, sequence in events:
            if name != "heartbeat":
                yield name, sequence


async def over_grpc(server: Listening, token: str, params: dict[str, Any]) -> AsyncGenerator[Seen, None]:
    async with reasond.AsyncClient(server.grpc, token=token) as client:
        try:
            async with client.follow_execution(**params, timeout_s=LIMIT_S) as events:
                async for response in events:
                    event = getattr(response, str(response.WhichOneof("event")))
                    yield event.WhichOneof("event"), event.sequence
        except reasond.ReasondError as error:
            raise RefusedError(error.reason, [violation.field for violation in error.violations]) from error


async def over_jsonrpc(
    server: Listening, token: str, params: dict[str, Any], headers: Mapping[str, str] | None = None
) -> AsyncGenerator[Seen, None]:
    body = {"jsonrpc": "2.0", "id": 1, "method": "executions.follow", "params": params}
    about = {"authorization": f"Bearer {token}", "accept": "text/event-stream", **(headers or {})}
    async with (
        make_http_client(timeout=LIMIT_S) as client,
        client.stream("POST", f"{server.http}/api/v1/jsonrpc", json=body, headers=about) as answer,
    ):
        name = ""
        async for line in answer.aiter_lines():
            key, _, value = line.partition(": ")
            if key == "event":
                name = value
            elif key == "data":
                told = json.loads(value)
                if name == "error":
                    data = told["data"]
                    raise RefusedError(data["reason"], [each["field"] for each in data.get("violations", ())])
                assert name in told
                assert told["execution_id"] == params["execution_id"]
                yield name, told["sequence"]


async def over_rest(server: Listening, token: str, params: dict[str, Any]) -> AsyncGenerator[Seen, None]:
    request = make_request("FollowExecution", {name: str(value).lower() for name, value in params.items()})
    async with (
        make_http_client(base_url=server.http, timeout=LIMIT_S) as client,
        client.stream(**request, headers={"authorization": f"Bearer {token}"}) as answer,
    ):
        if answer.status_code != 200:
            status = json.loads(await answer.aread())
            violations = find_detail(status, "BadRequest").get("field_violations", [])
            raise RefusedError(find_detail(status, "ErrorInfo")["reason"], [each["field"] for each in violations])
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                ((_, event),) = json.loads(line.removeprefix("data: ")).items()
                yield next(name for name in event if name not in COMMON), int(event["sequence"])


async def read_all(events: AsyncGenerator[Seen, None]) -> list[Seen]:
    return [event async for event in events]


@pytest.mark.parametrize("wire", WIRES)
async def test_an_observer_sees_every_event_and_leaves_without_effect(wire: str) -> None:
    gate = asyncio.Event()
    with ScriptedModel([Reply(text=ANSWER, hold=gate)]) as model:
        async with (
            running_server(model=model, environ=ENVIRON) as server,
            reasond.AsyncClient(server.grpc, token=OWNER) as client,
            client.reason_iterations(QUERY, strategy="chain_of_thought", timeout_s=LIMIT_S) as owned,
        ):
            name = (await anext(owned)).execution_id
            leaving = observe(server, wire, name)
            assert await anext(leaving) == ("started", 1)
            await leaving.aclose()
            staying = observe(server, wire, name, include_deltas=True)
            assert await anext(staying) == ("started", 1)
            gate.set()
            seen = await read_all(staying)
            assert [event async for event in owned][-1].completed.answer == "42"
            assert [event for event in seen if event[0] != "delta"] == EVENTS[1:]
            assert ("delta", 1) in seen
            for after in range(4):
                assert await read_all(observe(server, wire, name, after_sequence=after)) == EVENTS[after:]


@pytest.mark.parametrize("wire", WIRES)
async def test_an_observer_does_not_keep_a_run_whose_owner_leaves(wire: str) -> None:
    with ScriptedModel([Reply(text=ANSWER, hold=asyncio.Event())]) as model:
        async with (
            running_server(model=model, environ=ENVIRON) as server,
            reasond.AsyncClient(server.grpc, token=OWNER) as client,
        ):
            async with client.reason_iterations(QUERY, strategy="chain_of_thought", timeout_s=LIMIT_S) as owned:
                name = (await anext(owned)).execution_id
                observer = observe(server, wire, name)
                assert await anext(observer) == ("started", 1)
            assert await read_all(observer) == [("completed", 2)]
            found = await client.get_execution(name)
            assert found.execution.finish_reason == reasond.FinishReason.FINISH_REASON_CANCELLED


@pytest.mark.parametrize("wire", WIRES)
async def test_turns_and_repairs_are_observed_like_tasks(wire: str) -> None:
    with ScriptedModel(["Hello.", "1. Do it."]) as model:
        async with (
            running_server(model=model, environ=ENVIRON) as server,
            reasond.AsyncClient(server.grpc, token=OWNER) as client,
        ):
            turn = (await client.run_turn(reasond.TurnStart(message="Hello"))).turn.turn_id
            task = reasond.repair_task(
                "Plan it.", files={"a.py": "x = 1\n"}, is_plan=True, config={"num_candidates": 1, "max_candidates": 1}
            )
            repair = (await client.repair(task)).execution_id
            seen = await read_all(observe(server, wire, turn, token=mint("turns:read")))
            assert [name for name, _ in seen] == ["started", "model_call", "completed"]
            seen = await read_all(observe(server, wire, repair))
            assert [*[name for name, _ in seen][:2], seen[-1][0]] == ["started", "candidate", "completed"]
            assert [sequence for _, sequence in seen] == list(range(1, len(seen) + 1))


@pytest.mark.parametrize("wire", WIRES)
async def test_reading_is_the_permission_of_an_observer_and_turns_have_their_own(wire: str) -> None:
    with ScriptedModel([ANSWER, "Hello."]) as model:
        async with (
            running_server(model=model, environ=ENVIRON) as server,
            reasond.AsyncClient(server.grpc, token=OWNER) as client,
        ):
            task = (await client.reason(QUERY, strategy="chain_of_thought")).execution_id
            turn = (await client.run_turn(reasond.TurnStart(message="Hello"))).turn.turn_id
            assert await read_all(observe(server, wire, task)) == EVENTS
            for token, name in ((READER, turn), (mint("turns:read"), task), (mint("reasoning:execute"), task)):
                with pytest.raises(RefusedError, match="PERMISSION_MISSING"):
                    await read_all(observe(server, wire, name, token=token))


@pytest.mark.parametrize("wire", WIRES)
async def test_bad_input_is_named(wire: str) -> None:
    async with (
        running_server(environ=ENVIRON) as server,
        reasond.AsyncClient(server.grpc, token=OWNER) as client,
    ):
        name = (await client.reason(QUERY, strategy="chain_of_thought")).execution_id
        mistakes: tuple[tuple[dict[str, Any], str, str | None], ...] = (
            ({"after_sequence": 4}, "INVALID_REQUEST", "after_sequence"),
            ({"after_sequence": -1}, "INVALID_REQUEST", "after_sequence"),
            ({"execution_id": ""}, "INVALID_REQUEST", "execution_id"),
            ({"execution_id": "nobody"}, "EXECUTION_NOT_FOUND", None),
        )
        for wrong, reason, field in mistakes:
            if wire == "rest" and not wrong.get("execution_id", name):
                # A path has no empty field.
                continue
            with pytest.raises(RefusedError) as refused:
                await read_all(observe(server, wire, **{"execution_id": name, **wrong}))
            assert refused.value.args == (reason, [field] if field else [])


async def test_over_jsonrpc_it_needs_a_stream_and_goes_on_after_the_last_event() -> None:
    async with (
        running_server(environ=ENVIRON) as server,
        reasond.AsyncClient(server.grpc, token=OWNER) as client,
    ):
        name = (await client.reason(QUERY, strategy="chain_of_thought")).execution_id
        params = {"execution_id": name}
        rest = over_jsonrpc(server, READER, params, {"last-event-id": f"{name}:2"})
        assert await read_all(rest) == EVENTS[2:]
        with pytest.raises(RefusedError) as refused:
            await read_all(over_jsonrpc(server, READER, params, {"last-event-id": "another:2"}))
        assert refused.value.args == ("INVALID_REQUEST", ["Last-Event-ID"])
        body = {"jsonrpc": "2.0", "id": 1, "method": "executions.follow", "params": {**params, "auth_token": READER}}
        async with make_http_client() as http:
            error = (await http.post(f"{server.http}/api/v1/jsonrpc", json=body)).json()["error"]
        assert error["data"]["violations"][0]["field"] == "Accept"
