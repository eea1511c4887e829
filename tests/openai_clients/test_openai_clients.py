"""The clients that people use, against a real server and a model server that follows a script.

Each program tells, as a line of JSON, what its clients saw. The second model call of a chat that thinks slowly is
answered only after the program has told of the first step.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.testing import running_server
from tests.faults.upstream import DONE, chunk, streaming, upstream, usage
from tests.openai_clients.client_environments import HERE, find_node_program, find_python

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from pathlib import Path

    from reasond_server.assembly.app import Listening
    from tests.faults.upstream import Conversation

# The first run installs the clients.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

LIMIT_S = 480.0
CONFIG = """
[llm]
provider = "openai"
model = "scripted"
api_key_env = ""
base_url = "{base_url}"

[openai.models.in-windows]
strategy = "bounded_context"
config = {{ carryover_mode = "tail", max_iterations = 2 }}
"""
ADD = {"name": "add", "arguments": '{"a": 40, "b": 2}'}
ANSWER = streaming(chunk("6 times 7 is 42.<answer>42</answer>"), chunk(finish="stop"), usage(20, 10), DONE)
JSON_ANSWER = streaming(chunk('<answer>{"n": 42}</answer>'), chunk(finish="stop"), usage(20, 10), DONE)


def calling(function: dict[str, str]) -> Callable[[Conversation], Awaitable[None]]:
    """Return a reply that calls a function."""
    call = {"index": 0, "id": "p1", "type": "function", "function": function}
    return streaming(chunk(delta={"tool_calls": [call]}), chunk(finish="tool_calls"), usage(20, 10), DONE)


CALL = calling(ADD)
SHOUT = calling({"name": "shout", "arguments": '{"input": "it is 42"}'})
SHOUTED = streaming(chunk("I said: IT IS 42"), chunk(finish="stop"), usage(30, 5), DONE)
FORM = calling({"name": "Number", "arguments": '{"n": 42}'})
BY_TOOL = streaming(chunk("40 plus 2 is 42."), chunk(finish="stop"), usage(30, 5), DONE)
FIRST_PART = streaming(chunk("Part one."), chunk(finish="length"), usage(20, 5), DONE)


@dataclass(slots=True)
class ScriptedModel:  # same name: scripts a model server here
    """Answers at once; of a slow chat, the second call waits for a release, and of an endless one, for its client."""

    releases: asyncio.Queue[None] = field(default_factory=asyncio.Queue)
    left: asyncio.Queue[None] = field(default_factory=asyncio.Queue)
    calls: int = 0

    async def answer(self, conversation: Conversation) -> None:
        self.calls += 1
        asked = conversation.body.decode()
        is_slow, is_endless = "Think slowly" in asked, "Think forever" in asked
        if (is_slow or is_endless) and "Part one." not in asked:
            await FIRST_PART(conversation)
        elif is_endless:
            await conversation.until_gone()
            self.left.put_nowait(None)
        elif "Use the tool" in asked:
            await (BY_TOOL if '"tool_call_id"' in asked else CALL)(conversation)
        elif "Shout that" in asked:
            await (SHOUTED if "IT IS 42" in asked else SHOUT)(conversation)
        elif '"name":"Number"' in asked:
            await FORM(conversation)
        elif "as JSON" in asked:
            assert "You are exact." in asked
            await JSON_ANSWER(conversation)
        else:
            if is_slow:
                await self.releases.get()
            await ANSWER(conversation)


@asynccontextmanager
async def serve(folder: Path) -> AsyncIterator[tuple[Listening, ScriptedModel]]:
    """Run a server, and its model."""
    model = ScriptedModel()
    async with upstream(model.answer) as place:
        config = folder / "config.toml"
        config.write_text(CONFIG.format(base_url=place.address), encoding="utf-8")
        async with running_server(environ={"REASOND_CONFIG": str(config)}) as listening:
            yield listening, model


async def see(command: Sequence[str], listening: Listening, model: ScriptedModel) -> dict[str, dict[str, Any]]:
    """Run a program, and return what each of its clients saw."""
    seen: dict[str, dict[str, Any]] = {}
    process = await asyncio.create_subprocess_exec(
        *command,
        f"{listening.http}/v1",
        listening.token,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    complaints = asyncio.create_task(process.stderr.read())
    try:
        async with asyncio.timeout(LIMIT_S):
            async for line in process.stdout:
                told = json.loads(line)
                seen.setdefault(told.pop("client"), {}).update(told)
                if "first_step" in told:
                    model.releases.put_nowait(None)
                if "has_left" in told:
                    await model.left.get()
            assert await process.wait() == 0, (await complaints).decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await complaints
    return seen


STREAMED = {"first_step": "Part one.", "steps": "Part one.\n\n6 times 7 is 42.42", "streamed": "42"}


async def test_the_clients_of_python(tmp_path: Path) -> None:
    python = await asyncio.to_thread(find_python)
    async with serve(tmp_path) as (listening, model):
        seen = await see([str(python), str(HERE / "python_clients.py")], listening, model)
    own = seen["openai"]
    assert own["models"][0] == "reasond"
    assert "in-windows" in own["models"]
    assert (own["model"], own["answer"], own["reasoning"]) == ("reasond/react", "42", "6 times 7 is 42.")
    assert (own["finish"], own["tokens"], own["strategy"]) == ("stop", 30, "chain_of_thought")
    assert own["request_id"]
    assert {name: own[name] for name in STREAMED} == STREAMED
    assert own["streamed_tokens"] == 55
    assert own["ids_of_one_key"] == 1
    assert own["errors"] == [
        ["NotFoundError", "STRATEGY_NOT_FOUND", "model"],
        ["BadRequestError", "INVALID_REQUEST", "n"],
        ["BadRequestError", "INVALID_CONFIG", "reasond.config.max_tokens"],
        ["AuthenticationError", "TOKEN_INVALID", None],
    ]
    assert own["parsed"] == seen["pydantic-ai"]["parsed"] == 42
    assert own["has_left"]
    assert {name: seen[name].pop("by_tool") for name in ("langchain", "pydantic-ai")} == dict.fromkeys(
        ("langchain", "pydantic-ai"), "40 plus 2 is 42."
    )
    assert [seen[name].pop("sums") for name in ("langchain", "pydantic-ai")] == [[[40, 2]]] * 2
    assert seen["pydantic-ai"]["tool_tokens"] == 65
    assert seen["langchain"] == {"answer": "42", "tokens": 30, "streamed": "42", "streamed_tokens": 30}
    thinking = seen["pydantic-ai"]
    assert (thinking["answer"], thinking["reasoning"], thinking["tokens"]) == ("42", "6 times 7 is 42.42", 30)
    assert (thinking["first_step"], thinking["steps"]) == (STREAMED["first_step"], STREAMED["steps"])


async def test_the_clients_of_node(tmp_path: Path) -> None:
    node, program = await asyncio.to_thread(find_node_program)
    async with serve(tmp_path) as (listening, model):
        seen = await see([node, str(program)], listening, model)
    for name in ("openai-node", "ai-sdk"):
        found = seen[name]
        assert (found["answer"], found["reasoning"], found["tokens"]) == ("42", "6 times 7 is 42.", 30)
        assert {each: found[each] for each in STREAMED} == STREAMED
        assert found["streamed_tokens"] == 55
        assert (found["by_tool"], found["sums"]) == ("40 plus 2 is 42.", [[40, 2]])
    assert "reasond/react" in seen["openai-node"]["models"]
    assert seen["openai-node"]["error"] == ["BadRequestError", "INVALID_REQUEST", "n"]
    assert seen["openai-node"]["has_left"]
    assert seen["ai-sdk"]["parsed"] == 42
    assert seen["ai-sdk"]["error"] == [404, "STRATEGY_NOT_FOUND"]
