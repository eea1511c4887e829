"""Votes on calls of tools reach the clients of every protocol: the call that most replies make, and no other."""

from __future__ import annotations

import json
from itertools import cycle
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.testing import FunctionModel, Reply
from reasond_server.types import ToolCall
from tests.unit.protocols.chat.chatting import chunks_of, serve_chats
from tests.unit.protocols.responses.responding import TOOL, respond, stream_response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.unit.protocols.chat.chatting import ChatSite

VOTING = {"REASOND__TURNS__SAMPLES": "3"}
SCHEMA = TOOL["parameters"]
CHAT_TOOL = {"type": "function", "function": {"name": "search", "description": "Searches.", "parameters": SCHEMA}}
ASKED = [{"role": "user", "content": "Search."}]


def search_in_turn() -> FunctionModel:
    """Return a model that searches for x, y and y again."""
    words = cycle("xyy")

    def reply(_: Any) -> Reply:
        call = ToolCall(call_id="p", name="search", arguments_json=json.dumps({"q": next(words)}))
        return Reply(text="I search.", tool_calls=(call,))

    return FunctionModel(reply, has_native_tools=True)


async def ask_chat(site: ChatSite) -> str:
    body = (await site.ask(messages=ASKED, tools=[CHAT_TOOL])).json()
    assert body["choices"][0]["message"]["reasoning_content"].count("I search.") == 1
    (call,) = body["choices"][0]["message"]["tool_calls"]
    return str(call["function"]["arguments"])


async def stream_chat(site: ChatSite) -> str:
    deltas = [each["choices"][0]["delta"] for each in chunks_of(await site.stream(messages=ASKED, tools=[CHAT_TOOL]))]
    assert "".join(delta.get("reasoning") or "" for delta in deltas).count("I search.") == 1
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    return "".join(call["function"]["arguments"] for call in calls)


async def ask_responses(site: ChatSite) -> str:
    (call,) = [each for each in (await respond(site, input="Search.", tools=[TOOL]))["output"] if "arguments" in each]
    return str(call["arguments"])


async def stream_responses(site: ChatSite) -> str:
    events = await stream_response(site, input="Search.", tools=[TOOL])
    (call,) = [each for each in events[-1]["response"]["output"] if "arguments" in each]
    return str(call["arguments"])


async def ask_messages(site: ChatSite) -> str:
    tool = {"name": "search", "description": "Searches.", "input_schema": SCHEMA}
    sent = {"model": "reasond", "max_tokens": 500, "messages": ASKED, "tools": [tool]}
    answer = await site.client.post("/v1/messages", json=sent, headers={"anthropic-version": "2023-06-01"})
    (call,) = [each for each in answer.json()["content"] if each["type"] == "tool_use"]
    return json.dumps(call["input"])


async def ask_jsonrpc(site: ChatSite) -> str:
    tool = {"name": "search", "description": "Searches.", "parameters_json": json.dumps(SCHEMA)}
    start = {"message": "Search.", "client_tools": [tool]}
    request = {"jsonrpc": "2.0", "id": 1, "method": "turns.start", "params": start}
    result = (await site.client.post("/api/v1/jsonrpc", json=request)).json()["result"]
    (pending,) = result["turn"]["handoff"]["calls"]
    assert result["turn"]["usage"]["model_calls"] == 3
    return str(pending["call"]["arguments_json"])


@pytest.mark.parametrize(
    "ask",
    [ask_chat, stream_chat, ask_responses, stream_responses, ask_messages, ask_jsonrpc],
    ids=lambda ask: ask.__name__,
)
async def test_a_client_gets_the_call_that_most_replies_make(ask: Callable[[ChatSite], Awaitable[str]]) -> None:
    model = search_in_turn()
    async with serve_chats(model, environ=VOTING) as site:
        assert json.loads(await ask(site)) == {"q": "y"}
    assert len(model.requests) == 3
