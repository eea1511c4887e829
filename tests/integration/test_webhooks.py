"""A server tells a real receiver what happens; OpenAI's client and the standard's verifier accept the messages."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from openai import OpenAI
from standardwebhooks import Webhook

from reasond import AsyncClient
from reasond_server.errors.base import SettingsError
from reasond_server.testing import Reply, ScriptedModel, running_server
from reasond_server.types import ToolCall
from tests.http_clients import make_http_client
from tests.receivers import SECRET, receiving, webhook_environ

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from pathlib import Path

    from reasond_server.base.addresses import Listening
    from tests.receivers import Message

ADD = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
}


@asynccontextmanager
async def calling(server: Listening) -> AsyncGenerator[Callable[..., Awaitable[Any]], None]:
    """A function that asks for a response and returns it."""
    async with make_http_client(base_url=server.http, headers={"authorization": f"Bearer {server.token}"}) as http:

        async def respond(**body: Any) -> Any:
            answer = await http.post("/v1/responses", json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()

        yield respond


def verify(message: Message) -> Any:
    return Webhook(SECRET).verify(message.body, dict(message.headers))


async def test_an_execution_that_ended_is_told_without_content(tmp_path: Path) -> None:
    async with receiving() as receiver:
        environ = {"REASOND__STORE__DATA_DIR": str(tmp_path), "REASOND__STORE__URL": f"sqlite:///{tmp_path}/r.db"}
        model = ScriptedModel(["<answer>forty-two</answer>"])
        async with (
            running_server(model=model, environ=environ | webhook_environ(receiver.url)) as server,
            AsyncClient(server.grpc, token=server.token) as client,
        ):
            reasoning = await client.reason("How many roads?", strategy="direct")
            (message,) = await receiver.wait_for(1)
        told = verify(message)
        assert told["type"] == "execution.ended"
        data = told["data"]
        assert (data["execution_id"], data["state"]) == (reasoning.execution_id, "succeeded")
        assert (data["finish_reason"], data["kind"], data["tenant"]) == ("answered", "reasoning", "sub:developer")
        assert message.id == f"msg_{reasoning.execution_id}_{data['sequence']}"
        assert b"forty-two" not in message.body
        assert b"roads" not in message.body


async def test_openais_client_unwraps_what_is_told_of_its_background_responses(tmp_path: Path) -> None:
    async with receiving() as receiver:
        environ = {"REASOND__STORE__URL": f"sqlite:///{tmp_path}/r.db"}
        call = ToolCall(call_id="c1", name="add", arguments_json='{"a":1}')
        model = ScriptedModel(
            [
                "<answer>not told</answer>",
                "<answer>42</answer>",
                Reply(tool_calls=(call,)),
                "43",
            ]
        )
        hooks = webhook_environ(receiver.url, form="openai")
        async with running_server(model=model, environ=environ | hooks) as server, calling(server) as respond:
            await respond(model="reasond/direct", input="In front?")
            begun = await respond(model="reasond/direct", input="Six by seven?", background=True)
            await receiver.wait_for(1)
            asked = await respond(model="reasond", input="Add.", tools=[ADD], background=True)
            await receiver.wait_for(2)
            output = {"type": "function_call_output", "call_id": "c1", "output": "2"}
            last = await respond(
                model="reasond",
                input=[output],
                tools=[ADD],
                previous_response_id=asked["id"],
                background=True,
            )
            messages = await receiver.wait_for(3)
            openai = OpenAI(api_key="none")
            events: list[Any] = [
                openai.webhooks.unwrap(each.body, dict(each.headers), secret=SECRET) for each in messages
            ]
            assert [event.type for event in events] == ["response.completed"] * 3
            assert [event.data.id for event in events] == [begun["id"], asked["id"], last["id"]]


async def test_a_turn_that_waits_is_told_with_what_it_waits_for(tmp_path: Path) -> None:
    async with receiving() as receiver, receiving() as other:
        call = ToolCall(call_id="c1", name="add", arguments_json='{"a":1}')
        model = ScriptedModel([Reply(tool_calls=(call,))])
        environ = {"REASOND__STORE__URL": f"sqlite:///{tmp_path}/r.db"}
        environ |= webhook_environ(receiver.url) | webhook_environ(other.url, "others", tenants='["other"]')
        async with running_server(model=model, environ=environ) as server:
            async with calling(server) as respond:
                await respond(model="reasond", input="Add.", tools=[ADD])
            (message,) = await receiver.wait_for(1)
        told = verify(message)
        assert (told["type"], told["data"]["state"]) == ("turn.waiting", "suspended")
        assert told["data"]["waits_for"] == ["execute"]
        assert told["data"]["expire_time"]
        assert not other.messages


async def test_a_budget_near_its_end_is_told(tmp_path: Path) -> None:
    async with receiving() as receiver:
        environ = {
            "REASOND__STORE__URL": f"sqlite:///{tmp_path}/r.db",
            "REASOND__LIMITS__TOKENS_PER_DAY": "2000",
            "REASOND__WEBHOOKS__BUDGET_SHARE": "0.9",
        }
        async with (
            running_server(environ=environ | webhook_environ(receiver.url, events='["budget.near_end"]')) as server,
            AsyncClient(server.grpc, token=server.token) as client,
        ):
            for _ in range(4):
                await client.reason("What is 6 times 7? " * 30, strategy="direct")
            (message,) = await receiver.wait_for(1)
        told = verify(message)
        assert told["type"] == "budget.near_end"
        assert told["data"]["subject"] == "developer"
        assert 0 < told["data"]["left_ratio"] <= 0.9


async def test_a_store_in_memory_cannot_hold_an_outbox() -> None:
    with pytest.raises(SettingsError, match="outlives the process"):
        async with running_server(environ=webhook_environ("https://hooks.example/")):
            pass
