"""The client of @a2a-js/sdk, unmodified, over all three bindings."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from reasond_server.testing import FunctionModel, Reply, running_server
from reasond_server.types import ToolCall
from tests.openai_clients.client_environments import install_packages
from tests.unit.protocols.a2a.agents import BINDINGS

# The first run installs the client.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
HERE = Path(__file__).resolve().parent


def answer(request: object) -> Reply:
    said = str(request)
    if "search" in said and "found" not in said:
        return Reply(text="", tool_calls=(ToolCall(call_id="call_1", name="search", arguments_json="{}"),))
    return Reply(text="It is found." if "found" in said else "6 times 7 is 42.<answer>42</answer>")


async def test_the_client_of_node_speaks_all_bindings() -> None:
    node, home = await asyncio.to_thread(install_packages, "a2a", HERE / "package.json")
    # Node looks for packages beside the script.
    program = shutil.copy(HERE / "node_agents.mjs", home)
    environ = {"REASOND__A2A__ENABLED": "true"}
    async with running_server(model=FunctionModel(answer), environ=environ) as listening:
        command = [node, str(program), listening.http, listening.token]
        run = asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False, timeout=600)
        done = await run
    assert done.returncode == 0, done.stderr
    seen = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["client"] for each in seen] == [*BINDINGS]
    for each in seen:
        assert (each["answer"], each["settled"], each["error"]) == ("42", "It is found.", "TaskNotFoundError")
        assert each["kinds"] == ["task", "artifactUpdate", "artifactUpdate", "statusUpdate"]
        assert each["history"] == [True, False, True]
