"""A strategy whose steps a test releases one by one, so that the test sees each message pass a proxy as it comes."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reasond_server.strategies.strategy import ReasoningStrategy, RunContext, StrategyConfig, StrategyEvent
from reasond_server.testing import running_server
from tests.faults.parts import outcome, step
from tests.mesh.proxies import Backends

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.assembly.app import Listening
    from reasond_server.types import Task

MATERIAL = "a line of a long book\n" * 90_909
"""2 MB, the most that a task may have."""


class Gated(ReasoningStrategy[StrategyConfig]):
    """Takes as many steps as the query says, each after a release; answers with a digest of the material."""

    name = "gated"
    description = "Waits for releases."
    config_type = StrategyConfig

    def __init__(self) -> None:
        self.releases = asyncio.Semaphore(0)

    async def run(self, task: Task, context: RunContext[StrategyConfig]) -> AsyncGenerator[StrategyEvent, None]:
        del context
        for number in range(int(task.query)):
            await self.releases.acquire()
            yield step(number=number)
        yield outcome(digest_of(task.material))


def digest_of(material: str) -> str:
    """Return the answer of `Gated`."""
    return hashlib.sha256(material.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class GatedServer:
    """A server with that strategy."""

    listening: Listening
    gated: Gated

    @property
    def backends(self) -> Backends:
        """The server, for a proxy in front."""
        return Backends(grpc=[self.listening.grpc], http=[self.listening.http.removeprefix("http://")])

    @property
    def bearer(self) -> dict[str, str]:
        """The header with a token that has all permissions."""
        return {"authorization": f"Bearer {self.listening.token}"}


@asynccontextmanager
async def gated_server(**settings: str) -> AsyncGenerator[GatedServer, None]:
    """Run the server inside the context."""
    gated = Gated()
    environ = {f"REASOND__{name.upper()}": value for name, value in settings.items()}
    async with running_server(strategies=[gated], environ=environ) as listening:
        yield GatedServer(listening=listening, gated=gated)
