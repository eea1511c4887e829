"""Clients that speak Anthropic's Messages, unmodified, against a real server and a model that follows a script."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.openai_clients.client_environments import HERE, find_node_program, find_python
from tests.openai_clients.test_openai_clients import see, serve

if TYPE_CHECKING:
    from pathlib import Path

# The first run installs the clients.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

BY_TOOL = "40 plus 2 is 42."


async def test_the_clients_of_python_speak_messages(tmp_path: Path) -> None:
    python = await asyncio.to_thread(find_python)
    async with serve(tmp_path) as (listening, model):
        seen = await see([str(python), str(HERE / "python_messages.py")], listening, model)
    own = seen["anthropic"]
    assert (own["answer"], own["stop"], own["input"]) == ("42", "end_turn", 20)
    assert (own["streamed"], own["first"], own["last"], own["output"]) == ("42", "message_start", "message_stop", 10)
    assert (own["thinking"], own["is_signed"], own["again"]) == ("6 times 7 is 42.", True, "42")
    assert own["parsed"] == {"n": 42}
    assert (own["stop_for_tool"], own["arguments"], own["by_tool"]) == ("tool_use", {"a": 40, "b": 2}, BY_TOOL)
    # The results settled the hand-off of the turn that waited, in spite of the reminder behind them.
    assert own["is_one_turn"]
    assert (own["counts"], own["models"], own["one"]) == (True, ["reasond"], "reasond")
    assert own["errors"] == [[404, "not_found_error", True], [400, "invalid_request_error", True]]
    assert seen["langchain"] == {"by_tool": BY_TOOL, "streamed": "42"}
    assert seen["pydantic-ai"] == {"by_tool": BY_TOOL}


async def test_the_clients_of_node_speak_messages(tmp_path: Path) -> None:
    node, program = await asyncio.to_thread(find_node_program, "node_messages.mjs")
    async with serve(tmp_path) as (listening, model):
        seen = await see([node, str(program)], listening, model)
    assert seen["anthropic-node"] == {
        "answer": "42",
        "streamed": "42",
        "by_tool": BY_TOOL,
        "arguments": {"a": 40, "b": 2},
        "error": [404, "not_found_error"],
    }
    assert seen["ai-sdk"] == {"answer": "42", "by_tool": BY_TOOL}
