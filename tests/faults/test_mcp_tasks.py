"""A task of MCP outlives its server: it is killed, and another one over the same store tells how the task ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.engines.served import serving
from tests.faults.upstream import DONE, STREAM_HEAD, chunk, upstream, usage
from tests.unit.protocols.mcp.hosting import QUESTION, answer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.upstream import Conversation

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_task_survives_its_server_and_is_polled_at_another(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path / 'reasond.db'}" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    asked, calls = asyncio.Event(), []

    async def reply(conversation: Conversation) -> None:
        """Leave the first call open, whose server is killed meanwhile, and answer the others."""
        if b'"messages"' not in conversation.body:
            await conversation.answer("404 Not Found", b"{}")
            return
        calls.append(1)
        if len(calls) == 1:
            asked.set()
            await conversation.until_gone()
            return
        await conversation.send(STREAM_HEAD + b"connection: close\r\n\r\n")
        await conversation.send(chunk("42") + chunk(finish="stop") + usage(20, 10) + DONE)

    async with upstream(reply) as model:
        environ = {
            "OPENAI_API_KEY": "none",
            "REASOND__STORE__URL": url,
            "REASOND__STORE__LEASE_S": "3",
            "REASOND__LLM__PROVIDER": "openai",
            "REASOND__LLM__BASE_URL": model.address,
            "REASOND__LLM__MODEL": "fake",
        }
        async with serving(tmp_path, "first", environ) as first:
            task = await answer(first, "tools/call", {"name": "reason_direct", "arguments": QUESTION})
            await asked.wait()
            assert task["status"] == "working"
            first.process.kill()
            first.process.wait()
            async with serving(tmp_path, "second", environ) as second:
                handle = {"taskId": task["taskId"]}
                while (found := await answer(second, "tasks/get", handle))["status"] == "working":  # noqa: ASYNC110 - polled
                    await asyncio.sleep(0.1)
    assert (found["status"], found["result"]["content"][0]["text"]) == ("completed", "42")
    assert len(calls) == 2
