"""Codex CLI, unmodified, to the end of a task of 20 tool calls over two servers, of which one is killed in a call.

By hand, because its package has 450 MB, and without a network but the loopback; the packages must be there before:
`unshare -n sh -c 'ip link set lo up && CODEX_TASK=1 pytest -n0 tests/openai_clients/test_codex.py'`.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from reasond_server.cli.commands.keys import create
from tests.engines.served import serving
from tests.faults.test_response_cuts import KEY
from tests.faults.upstream import DONE, STREAM_HEAD, chunk, event, upstream, usage
from tests.mesh.proxies import Backends, running_proxy
from tests.openai_clients.client_environments import find_codex

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.upstream import Conversation

# The first run installs Codex.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif("CODEX_TASK" not in os.environ, reason="CODEX_TASK=1 runs it: the package has 450 MB"),
]

CALLS = 20
KILLED_AFTER = 7
LIMIT_S = 600.0
CONFIG = """
model = "reasond"
model_provider = "reasond"
approval_policy = "never"
sandbox_mode = "danger-full-access"

[model_providers.reasond]
name = "reasond"
base_url = "http://{address}/v1"
env_key = "REASOND_TOKEN"
wire_api = "responses"
"""


@dataclass
class Task:  # same name: what Codex works on here
    """The model of both servers, which asks for a command until it has seen enough results, and the file of these.

    Attributes:
        asked: how often it was asked after so many results.
        held: the server whose call it never ends: the first one after KILLED_AFTER results.
    """

    file: Path
    asked: Counter[int] = field(default_factory=Counter)
    held: asyncio.Queue[str] = field(default_factory=asyncio.Queue)

    async def answer(self, conversation: Conversation) -> None:
        """Answer one model call."""
        if b'"messages"' not in conversation.body:
            await conversation.answer("404 Not Found", b"{}")
            return
        results = sum(message["role"] == "tool" for message in conversation.json["messages"])
        self.asked[results] += 1
        await conversation.send(STREAM_HEAD + b"connection: close\r\n\r\n")
        if results == CALLS:
            reply = chunk(f"All done after {results} calls.") + chunk(finish="stop")
        else:
            await conversation.send(chunk(f"Step {results + 1}."))
            arguments = json.dumps({"cmd": f"echo step {results + 1} >> {self.file}"})
            call = {"index": 0, "id": f"u{results}", "type": "function"}
            call["function"] = {"name": "exec_command", "arguments": arguments}
            reply = event({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}) + chunk(finish="tool_calls")
        if results == KILLED_AFTER and self.asked[results] == 1:
            self.held.put_nowait(KEY.findall(conversation.head)[0])
            await conversation.until_gone()
        await conversation.send(reply + usage(10, 5) + DONE)

    @property
    def lines(self) -> list[str]:
        """What the commands have written."""
        return self.file.read_text("utf-8").splitlines() if self.file.exists() else []


async def test_codex_ends_its_task_although_a_server_is_killed_in_the_middle_of_a_model_call(
    tmp_path: Path, postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    codex = await asyncio.to_thread(find_codex)
    task = Task(file=tmp_path / "steps.txt")
    home = tmp_path / "home"
    home.mkdir()
    async with upstream(task.answer) as model, AsyncExitStack() as stack:
        environ = {
            "REASOND_CONFIG": "/dev/null",
            "REASOND__AUTH__API_KEYS_FILE": str(tmp_path / "keys.json"),
            "REASOND__STORE__URL": postgres_url,
            "REASOND__STORE__LEASE_S": "3",
            "REASOND__LLM__PROVIDER": "openai",
            "REASOND__LLM__BASE_URL": model.address,
            "REASOND__LLM__MODEL": "fake",
        }
        create(subject="codex", permission=["admin"], config=None, environ=environ)
        key = capsys.readouterr().out.strip()
        servers = {
            name: await stack.enter_async_context(serving(tmp_path, name, {**environ, "OPENAI_API_KEY": name}))
            for name in ("one", "other")
        }
        behind = Backends(grpc=[each.grpc for each in servers.values()], http=[each.http for each in servers.values()])
        proxy = await stack.enter_async_context(running_proxy("envoy", tmp_path, behind))
        (home / "config.toml").write_text(CONFIG.format(address=proxy.http), "utf-8")
        process = await asyncio.create_subprocess_exec(
            *(*codex, "exec", "--skip-git-repo-check", "Do the task."),
            cwd=tmp_path,
            env={**os.environ, "CODEX_HOME": str(home), "REASOND_TOKEN": key},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        told, held = asyncio.create_task(process.communicate()), asyncio.create_task(task.held.get())
        try:
            async with asyncio.timeout(LIMIT_S):
                await asyncio.wait({held, told}, return_when=asyncio.FIRST_COMPLETED)
                if held.done():
                    dead = servers[held.result()].process
                    dead.kill()
                    dead.wait()
                out, complaints = await told
        finally:
            if process.returncode is None:
                process.kill()
            held.cancel()
    assert process.returncode == 0, complaints.decode()[-3000:]
    assert f"All done after {CALLS} calls." in out.decode()
    assert task.lines == [f"step {number}" for number in range(1, CALLS + 1)]
    # Only the call that was under way when its server was killed, which nobody had recorded, was made again.
    assert task.asked == dict.fromkeys(range(CALLS + 1), 1) | {KILLED_AFTER: 2}
