"""Requests as clients really send them, each recorded from the client that its row names: answered, or refused by name.

A row was recorded by calling the client against a server that kept the body and refused it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from reasond_server.testing import FunctionModel, Reply
from reasond_server.types import ToolCall
from tests.unit.protocols.chat.chatting import serve_chats

if TYPE_CHECKING:
    from reasond_server.llm.model import ChatRequest

ROWS: Final = [json.loads(line) for line in (Path(__file__).parent / "shapes.jsonl").read_text("utf-8").splitlines()]
# What cannot be done, by the parameter that its refusal names. The model of this test sees no images.
REFUSED: Final = {
    "chat audio": "modalities",
    "chat audio in": "messages.0.content.0",
    "chat functions": "functions",
    "chat image": "messages",
    "chat logprobs": "logprobs",
    "chat provider options": "logprobs",
    "chat web": "web_search_options",
    "openai image": "input",
    "openai-chat image": "messages",
    "responses conversation": "conversation",
    "responses file url": "input.0.content.0.file_data",
    "responses image": "input",
    "responses prompt": "prompt",
}


def reply(request: ChatRequest) -> Reply | str:
    """Call what is forced, and answer whatever is asked, as JSON where that is wanted."""
    names = [tool.name for tool in request.tools]
    if request.tool_choice not in {"auto", "none"} and names:
        name = names[0] if request.tool_choice == "required" else request.tool_choice
        return Reply(tool_calls=(ToolCall(call_id="c", name=name, arguments_json='{"city": "Paris", "n": 42}'),))
    if any("JSON Schema" in message.content for message in request.messages):
        return '{"n": 42}' if names else '<answer>{"n": 42}</answer>'
    return "It is 42." if names else "It is 42.<answer>42</answer>"


async def test_every_shape_is_answered_or_refused_for_a_reason_that_names_what_to_change() -> None:
    seen: dict[str, Any] = {}
    model = FunctionModel(reply, has_native_tools=True)
    async with serve_chats(model) as site:
        for row in ROWS:
            answer = await site.client.post(row["path"], json=row["body"])
            told = answer.json()["error"]["param"] if answer.status_code == 400 else ""
            if answer.status_code not in {200, 400} or told:
                seen[row["shape"]] = told if answer.status_code == 400 else answer.text[:200]
            if "data: " in answer.text:
                assert "[DONE]" in answer.text, (row["shape"], answer.text[-300:])
    assert seen == REFUSED


def test_there_are_at_least_150_shapes_of_chats_and_each_names_the_client_that_sent_it() -> None:
    assert sum("chat" in row["path"] for row in ROWS) >= 150
    assert len({(row["path"], json.dumps(row["body"], sort_keys=True)) for row in ROWS}) == len(ROWS)
    assert all(row["source"].split()[-1][0].isdigit() for row in ROWS)
