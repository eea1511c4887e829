"""Rolling restarts under load: callers keep calling while servers and workers are replaced, and no call fails."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

import reasond
from reasond_server.cli.processes import reserve_port
from tests.faults.test_workers import PATIENCE_S, make_token, together
from tests.forking import ForkedProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux spreads the connections of a shared port"),
]

RESTARTS = 4
CALLERS = 8
BETWEEN = 40
"""The number of answered calls before the next server is restarted."""


@dataclass
class Load:
    """Callers that repeat their call after each answer, and the outcomes of their calls."""

    answered: int = 0
    failed: list[str] = field(default_factory=list)
    grown: asyncio.Condition = field(default_factory=asyncio.Condition)
    is_over: bool = False

    async def call(self, client: reasond.AsyncClient) -> None:
        """Call again and again, with short random waits: without them the callers take the time of the starts."""
        while not self.is_over:
            await asyncio.sleep(random.uniform(0, 0.3))  # noqa: S311 - no secret
            try:
                await client.reason("why?", strategy="chain_of_thought")
            except reasond.ReasondError as error:
                self.failed.append(f"{type(error).__name__} {error}")
            async with self.grown:
                self.answered += 1
                self.grown.notify_all()

    async def until_more(self, count: int) -> None:
        """Wait until `count` more calls have ended."""
        wanted = self.answered + count
        async with self.grown, asyncio.timeout(PATIENCE_S):
            await self.grown.wait_for(lambda: self.answered >= wanted)


@asynccontextmanager
async def load_on(target: str, token: str, *, connections: int) -> AsyncIterator[Load]:
    """Keep callers calling `target` while the context lasts."""
    load = Load()
    async with AsyncExitStack() as clients, asyncio.TaskGroup() as callers:
        for number in range(CALLERS):
            if number < connections:
                options = {"grpc.use_local_subchannel_pool": 1}
                client = reasond.AsyncClient(target, token=token, options=options)
                await clients.enter_async_context(client)
            callers.create_task(load.call(client))
        yield load
        load.is_over = True


ENVIRON = {
    "REASOND_CONFIG": os.devnull,
    "REASOND__SERVER__HTTP_ADDRESS": "",
    "REASOND__SERVER__SO_REUSEPORT": "true",
    "REASOND__SERVER__DRAIN_DELAY_S": "0.2",
    # A busy machine may take long to end a call.
    "REASOND__SERVER__DRAIN_GRACE_S": f"{PATIENCE_S:g}",
    "REASOND__STORE__URL": "memory:",
    "REASOND__LLM__PROVIDER": "demo",
    "REASOND__LOGS__FORMAT": "json",
    "REASOND__AUTH__KEYS": '[{ id = "main", secret_env = "ROLLING_KEY" }]',
    "ROLLING_KEY": "0f9c1d7ab36e48e5a2d4b8c7f6019e3d",
}


@asynccontextmanager
async def one_server(folder: Path, address: str, **more: str) -> AsyncIterator[Callable[[str], Awaitable[None]]]:
    """Serve at `address` in a separate process, drain it at the end; yield a function that waits for a log text."""
    log = folder / f"{address.rpartition(':')[2]}.log"
    log.write_bytes(b"")
    process = ForkedProcess(
        "serve",
        environ={**os.environ, **ENVIRON, "REASOND__SERVER__GRPC_ADDRESS": address, **more},
        folder=folder,
        stdout=folder / "out",
        stderr=log,
    )

    async def until_logged(text: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while text not in (logged := log.read_text("utf-8")):
                assert process.poll() is None, logged[-3000:]
                await asyncio.sleep(0.05)

    try:
        await until_logged('"ready"')
        yield until_logged
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait)


async def test_no_call_fails_while_two_servers_are_restarted_in_turn(tmp_path: Path) -> None:
    token = await make_token({**os.environ, **ENVIRON})
    async with AsyncExitStack() as stack:
        addresses = [stack.enter_context(reserve_port("127.0.0.1:0", setting="x")) for _ in range(2)]
        servers = [await stack.enter_async_context(AsyncExitStack()) for _ in addresses]
        for server, address in zip(servers, addresses, strict=True):
            await server.enter_async_context(one_server(tmp_path, address))
        load = await stack.enter_async_context(load_on(f"ipv4:{','.join(addresses)}", token, connections=2))
        for number in range(RESTARTS):
            server, address = servers[number % 2], addresses[number % 2]
            await load.until_more(BETWEEN)
            await server.aclose()
            await load.until_more(BETWEEN)
            until_logged = await server.enter_async_context(one_server(tmp_path, address))
            # Wait until callers have found it again, as they would during the next server's drain delay.
            await until_logged("ReasoningService/Reason OK")
    assert load.failed == []


async def test_no_call_fails_while_workers_are_restarted(tmp_path: Path, postgres_url: str) -> None:
    async with together(tmp_path, postgres_url, REASOND__SERVER__DRAIN_GRACE_S=f"{PATIENCE_S:g}") as both:
        both.gate.set()
        await both.until_told("ready")
        target = json.loads(both.ready_file.read_text("utf-8"))["grpc"]
        async with load_on(target, both.token, connections=CALLERS) as load:
            for number in range(RESTARTS // 2):
                await load.until_more(BETWEEN)
                both.process.send_signal(signal.SIGHUP)
                await both.until_told("the workers were restarted", number + 1)
            await load.until_more(BETWEEN)
        assert load.failed == []
        assert len(both.workers) == 2 + RESTARTS
        both.process.send_signal(signal.SIGTERM)
        assert await both.process.wait() == 0
