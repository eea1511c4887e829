"""A real Redis on a free port of this machine, started for a test and stopped after it."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


@dataclass(slots=True, kw_only=True)
class RedisServer:
    """The server; `url` is its address while it runs."""

    port: int
    folder: str
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"redis://127.0.0.1:{self.port}/0"

    async def start(self) -> None:
        """Start it, and wait until it answers."""
        self.process = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", self.folder],
            stdout=subprocess.DEVNULL,
        )
        client = Redis(host="127.0.0.1", port=self.port)
        try:
            async with asyncio.timeout(120):
                while not await _answers(client):  # noqa: ASYNC110 - another process cannot set an event here
                    await asyncio.sleep(0.02)
        finally:
            await client.aclose()

    def kill(self) -> None:
        """End it without warning."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@asynccontextmanager
async def running_redis() -> AsyncGenerator[RedisServer, None]:
    """Run a Redis while the context lasts; if it is not installed, the test is skipped, or fails if CI=true."""
    if shutil.which("redis-server") is None:
        message = "redis-server is not installed"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(port=port, folder=folder)
        try:
            await server.start()
            yield server
        finally:
            server.kill()


async def _answers(client: Redis) -> bool:
    try:
        return bool(await client.ping())
    except (RedisError, OSError):
        return False
