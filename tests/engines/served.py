"""Real `reasond serve --dev` processes for tests, with settings of their own."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.faults.parts import FREE_PORTS
from tests.forking import ForkedProcess

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from pathlib import Path

START_LIMIT_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A server's addresses: host:port of gRPC and HTTP, the URL of its metrics; and a token with all permissions."""

    grpc: str
    http: str
    metrics: str
    token: str
    process: ForkedProcess


@asynccontextmanager
async def serving(folder: Path, name: str, environ: Mapping[str, str]) -> AsyncGenerator[Served, None]:
    """Run a server while the context lasts."""
    ready, log = folder / f"{name}.ready", folder / f"{name}.log"
    process = ForkedProcess(
        *("serve", "--dev", "--ready-file", ready),
        environ={**os.environ, **FREE_PORTS, **environ},
        folder=folder,
        stderr=log,
    )
    try:
        async with asyncio.timeout(START_LIMIT_S):
            while not ready.exists():
                assert process.poll() is None, log.read_text("utf-8", "replace")
                await asyncio.sleep(0.02)
        told = json.loads(ready.read_text("utf-8"))
        yield Served(**told, process=process)
    finally:
        process.kill()
        process.wait()
