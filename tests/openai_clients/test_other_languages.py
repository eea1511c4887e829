"""Clients of OpenAI and Anthropic in Go and Java, and frameworks of agents, unmodified, on all that they speak."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.openai_clients.client_environments import FRAMEWORKS, HERE, find_go_program, find_java_program, find_python
from tests.openai_clients.test_openai_clients import see, serve

if TYPE_CHECKING:
    from pathlib import Path

# The first run installs and builds the clients.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

SEEN = {"answer": "42", "streamed": "42", "by_tool": "40 plus 2 is 42."}
CHAT_ERROR = [404, "STRATEGY_NOT_FOUND"]
RESPONSE_ERROR = [400, "model_not_found"]


async def test_the_clients_of_go(tmp_path: Path) -> None:
    program = await asyncio.to_thread(find_go_program)
    async with serve(tmp_path) as (listening, model):
        seen = await see([str(program)], listening, model)
    parsed = {**SEEN, "parsed": '{"n":42}'}
    assert seen == {
        "openai-go chat": {**parsed, "arguments": '{"a": 40, "b": 2}', "error": CHAT_ERROR},
        "openai-go responses": {**parsed, "error": RESPONSE_ERROR},
        "anthropic-go": {**parsed, "arguments": {"a": 40, "b": 2}, "error": [404, "not_found_error"]},
    }


async def test_the_client_of_java(tmp_path: Path) -> None:
    command = await asyncio.to_thread(find_java_program)
    async with serve(tmp_path) as (listening, model):
        seen = await see(command, listening, model)
    assert seen == {
        "openai-java chat": {**SEEN, "parsed": 42, "error": CHAT_ERROR},
        "openai-java responses": {**SEEN, "parsed": 42, "error": RESPONSE_ERROR},
    }


async def test_frameworks_of_agents(tmp_path: Path) -> None:
    python = await asyncio.to_thread(find_python, "frameworks", FRAMEWORKS)
    async with serve(tmp_path) as (listening, model):
        seen = await see([str(python), str(HERE / "python_frameworks.py")], listening, model)
    framework = {**SEEN, "by_tool_streamed": SEEN["by_tool"], "parsed": 42, "error": True}
    assert seen == {
        "agent-framework responses": framework,
        "agent-framework chat": framework,
        "strands responses": {**SEEN, "formed": 42, "parsed": 42, "error": True},
        "strands chat": {**SEEN, "formed": 42, "parsed": 42, "error": True},
    }
