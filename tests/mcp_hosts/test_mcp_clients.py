"""Clients of MCP by other makers, unmodified, each in an environment of its own, against a real server."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.testing import FunctionModel, running_server
from tests.openai_clients.client_environments import install_packages, make, run_or_leave

if TYPE_CHECKING:
    from collections.abc import Sequence

# The first run installs the clients.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

HERE = Path(__file__).resolve().parent
PINS = HERE / "requirements.txt"
WHOLE = {
    "has": True,
    "answer": "42",
    "step": "6 times 7 is 42.",
    "wrong": [True, "INVALID_REQUEST"],
    "read": "42",
}


def find_python() -> Path:
    """Return the interpreter of the environment with fastmcp."""

    def install(home: Path) -> None:
        venv.create(home)
        pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install", "-q", "--no-compile"]
        run_or_leave([*pip, "--disable-pip-version-check", "-r", str(PINS)], home)

    return make("mcp-python", PINS.read_bytes() + sys.version.encode(), install) / "bin" / "python"


def find_node_program() -> Sequence[str]:
    """Return the command of the script, which stands beside its packages."""
    node, home = install_packages("mcp-node", HERE / "package.json")
    return node, str(shutil.copy(HERE / "node_hosts.mjs", home))


async def see(command: Sequence[str]) -> Any:
    """Return what the clients of a program saw."""
    async with running_server(model=FunctionModel(lambda _: "6 times 7 is 42.<answer>42</answer>")) as listening:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "REASOND_MCP_URL": f"{listening.http}/mcp", "REASOND_TOKEN": listening.token},
        )
        printed, _ = await process.communicate()
    assert process.returncode == 0
    return json.loads(printed)


async def test_fastmcp_uses_the_tools() -> None:
    python = await asyncio.to_thread(find_python)
    assert await see([str(python), str(HERE / "python_hosts.py")]) == {"fastmcp": WHOLE}


async def test_the_clients_of_typescript_use_the_tools() -> None:
    command = await asyncio.to_thread(find_node_program)
    assert await see(command) == {"sdk": WHOLE, "client": WHOLE, "modern": WHOLE}
