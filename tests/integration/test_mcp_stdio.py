"""`reasond mcp`, started by the unmodified client of the package `mcp` as a host starts it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from mcp import StdioServerParameters
from mcp.client import Client

from tests.faults.upstream import upstream
from tests.unit.protocols.mcp.hosting import text_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.upstream import Conversation

MODES = pytest.mark.parametrize("mode", ["auto", "legacy"])


def host(folder: Path, **environ: str) -> StdioServerParameters:
    chosen = {"REASOND_CONFIG": os.devnull, "REASOND__STORE__URL": f"sqlite:///{folder / 'reasond.db'}", **environ}
    return StdioServerParameters(
        command=sys.executable, args=["-m", "reasond_server", "mcp"], env={"PATH": os.environ["PATH"], **chosen}
    )


@MODES
async def test_a_host_starts_it_and_finds_earlier_executions_again(mode: Any, tmp_path: Path) -> None:
    told: list[str | None] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:  # noqa: ARG001 - the package's
        told.append(message)

    async with Client(host(tmp_path), mode=mode) as client:
        result = await client.call_tool("reason", {"query": "What is 15% of 240?"}, progress_callback=note)
        wrong = await client.call_tool("reason", {"query": ""})
    async with Client(host(tmp_path), mode=mode) as client:
        read = await client.call_tool("read_execution", {"execution_id": result.structured_content["execution_id"]})
    assert (text_of(result), text_of(read), wrong.is_error) == ("36", "36", True)
    assert told[-1] == "Step 1: 0.15 of 240 = 36"


@MODES
async def test_a_call_that_is_cancelled_ends_its_model_call(mode: Any, tmp_path: Path) -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    async def wait(conversation: Conversation) -> None:
        if b'"messages"' not in conversation.body:
            await conversation.answer("404 Not Found", b"{}")
            return
        asked.set()
        await conversation.until_gone()
        ended.set()

    async with upstream(wait) as model:
        own = {"PROVIDER": "openai", "BASE_URL": model.address, "MODEL": "fake"}
        told = {f"REASOND__LLM__{name}": value for name, value in own.items()}
        parameters = host(tmp_path, OPENAI_API_KEY="none", **told)
        async with Client(parameters, mode=mode) as client:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.call_tool, "reason_direct", {"query": "What is 6 times 7?"})
                await asked.wait()
                tasks.cancel_scope.cancel()
            await ended.wait()


@pytest.mark.parametrize("number", [None, signal.SIGINT, signal.SIGTERM], ids=["closed", "SIGINT", "SIGTERM"])
async def test_it_ends_when_its_host_does_or_a_signal_says_so(number: signal.Signals | None, tmp_path: Path) -> None:
    parameters = host(tmp_path)
    process = await asyncio.create_subprocess_exec(
        parameters.command,
        *parameters.args,
        env=parameters.env,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
    assert json.loads(await process.stdout.readline()) == {"jsonrpc": "2.0", "id": 1, "result": {}}
    if number is None:
        process.stdin.close()
    else:
        process.send_signal(number)
    assert await process.wait() == 0
