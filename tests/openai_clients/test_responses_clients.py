"""Clients that call /v1/responses by default, unmodified, against a real server and a model that follows a script."""

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

BY_TOOL, SHOUTED = "40 plus 2 is 42.", "I said: IT IS 42"


async def test_the_clients_of_python_speak_responses(tmp_path: Path) -> None:
    python = await asyncio.to_thread(find_python)
    async with serve(tmp_path) as (listening, model):
        seen = await see([str(python), str(HERE / "python_responses.py")], listening, model)
    own = seen["openai"]
    assert (own["answer"], own["streamed"], own["parsed"], own["tokens"]) == ("42", "42", 42, 30)
    assert (own["first"], own["last"]) == ("response.created", "response.completed")
    assert (own["by_tool"], own["arguments"]) == (BY_TOOL, {"a": 40, "b": 2})
    assert own["metadata"] == {"run": "7"}
    assert own["is_whole"]
    assert (own["cancelled"], own["items"]) == ("completed", 1)
    assert own["errors"] == [[404, "EXECUTION_NOT_FOUND"], [400, "model_not_found"]]
    assert (seen["openresponses"]["checked"], seen["openresponses"]["wrong"]) == (15, [])
    assert seen["langchain"] == {"by_tool": BY_TOOL, "streamed": "42", "parsed": 42}
    agents = {"by_text": SHOUTED, "by_tool": BY_TOOL, "streamed": BY_TOOL, "parsed": 42}
    assert seen["openai-agents"] == agents
    # The model is shown the calls of the history, and answers them.
    assert seen["pydantic-ai"] == {
        "by_tool": BY_TOOL,
        "streamed": BY_TOOL,
        "later": BY_TOOL,
        "parsed": 42,
        "background": [BY_TOOL, BY_TOOL],
    }


async def test_the_clients_of_node_speak_responses(tmp_path: Path) -> None:
    node, program = await asyncio.to_thread(find_node_program, "node_responses.mjs")
    async with serve(tmp_path) as (listening, model):
        seen = await see([node, str(program)], listening, model)
    assert seen["openai-node"] == {
        "answer": "42",
        "streamed": "42",
        "by_tool": BY_TOOL,
        "error": [400, "model_not_found"],
    }
    assert seen["ai-sdk"] == {
        "answer": "42",
        "reasoning": "6 times 7 is 42.",
        "by_text": SHOUTED,
        "by_tool": BY_TOOL,
        "parsed": 42,
    }
