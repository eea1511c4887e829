"""What is told of a conversation that did not reach the model whole, over every wire, at answers and at hand-offs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from reasond_server.testing import FunctionModel, Reply
from reasond_server.types import ToolCall
from tests.unit.protocols.chat.chatting import CHAT, serve_chats

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reasond_server.llm.model import ChatRequest

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
SCHEMA: Final = {"type": "object", "properties": {}}
FUNCTION: Final = {"name": "look", "description": "Looks.", "parameters": SCHEMA}
LONG: Final = "word " * 900


def say(count: int, question: str) -> list[dict[str, Any]]:
    """Return a conversation with `count` exchanges before the question."""
    said = [{"role": role, "content": f"{place} {LONG}"} for place in range(count) for role in ("user", "assistant")]
    return [*said, {"role": "user", "content": question}]


WIRES: Final[Mapping[str, Any]] = {
    CHAT: lambda *said: {"messages": say(*said), "tools": [{"type": "function", "function": FUNCTION}]},
    RESPONSES: lambda *said: {"input": say(*said), "tools": [{"type": "function", **FUNCTION}]},
    MESSAGES: lambda *said: {
        "messages": say(*said),
        "max_tokens": 500,
        "tools": [{"name": "look", "description": "Looks.", "input_schema": SCHEMA}],
    },
}


def reply(request: ChatRequest) -> Reply | str:
    if "Look." in request.messages[-1].content:
        return Reply(tool_calls=(ToolCall(call_id="c1", name="look", arguments_json="{}"),))
    return "It is 42."


@pytest.mark.parametrize("path", WIRES)
@pytest.mark.parametrize("question", ["What is 6 times 7?", "Look."])
async def test_a_turn_tells_how_much_of_the_conversation_it_left_out_and_what_to_do(path: str, question: str) -> None:
    model = FunctionModel(reply, context_window=16_384, has_native_tools=True)
    async with serve_chats(model) as site:
        told = {}
        for count in (0, 8):
            answer = await site.client.post(path, json={"model": "reasond", **WIRES[path](count, question)})
            assert answer.status_code == 200, answer.text
            told[count] = [one for one in answer.json()["reasond"]["warnings"] if "conversation" in one]
    assert told[0] == []
    (warning,) = told[8]
    shown = {place for place in range(8) if any(f"{place} word" in one.content for one in model.requests[-1].messages)}
    assert 0 < len(shown) < 8
    assert warning.startswith(f"The {8 - len(shown)} oldest exchanges of the conversation")
    assert "Send a shorter conversation" in warning
