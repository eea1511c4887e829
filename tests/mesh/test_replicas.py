"""Two servers behind a proxy: restarted in turn under callers that never pause, and killed in the middle of a run."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

import reasond
from reasond_server.cli.processes import reserve_port
from tests.faults.server_process import ServerProcess
from tests.faults.test_rolling_restarts import BETWEEN, ENVIRON, load_on, one_server
from tests.faults.test_workers import PATIENCE_S, make_token
from tests.faults.upstream import DONE, STREAM_HEAD, chunk, upstream, usage
from tests.mesh.proxies import Backends, running_proxy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.faults.upstream import Conversation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

RESTARTS = 2
DRAIN_DELAY_S = "1.5"
# Proxies look five times in the drain delay, as they do in that of 5 s with their own intervals of 1 s.
QUICK = {
    "envoy": {" interval: 1s": " interval: 0.3s", "no_traffic_interval: 1s": "no_traffic_interval: 0.3s"},
    "nginx": {},
    "haproxy": {"inter 1s fastinter 1s downinter 1s": "inter 300ms fastinter 300ms downinter 300ms"},
}


async def test_no_call_fails_while_servers_behind_proxies_are_restarted_in_turn(tmp_path: Path) -> None:
    token = await make_token({**os.environ, **ENVIRON})
    async with AsyncExitStack() as stack:
        ports = [stack.enter_context(reserve_port("127.0.0.1:0", setting="x")) for _ in range(4)]
        grpc, http = ports[:2], ports[2:]

        async def serve(number: int) -> Callable[[str], Awaitable[None]]:
            more = {"REASOND__SERVER__HTTP_ADDRESS": http[number], "REASOND__SERVER__DRAIN_DELAY_S": DRAIN_DELAY_S}
            return await servers[number].enter_async_context(one_server(tmp_path, grpc[number], **more))

        servers = [await stack.enter_async_context(AsyncExitStack()) for _ in grpc]
        await asyncio.gather(*map(serve, range(2)))
        loads = []
        for name, replacements in QUICK.items():
            behind = running_proxy(name, tmp_path, Backends(grpc=grpc, http=http), replacements=replacements)
            proxy = await stack.enter_async_context(behind)
            loads.append(await stack.enter_async_context(load_on(proxy.grpc, token, connections=2)))
        for number in range(RESTARTS):
            await asyncio.gather(*(load.until_more(BETWEEN) for load in loads))
            await servers[number % 2].aclose()
            await asyncio.gather(*(load.until_more(BETWEEN) for load in loads))
            until_logged = await serve(number % 2)
            await until_logged("ReasoningService/Reason OK")
        await asyncio.gather(*(load.until_more(BETWEEN) for load in loads))
    assert {name: load.failed for name, load in zip(QUICK, loads, strict=True)} == {name: [] for name in QUICK}


@dataclass
class HeldModel:
    """A model that answers nobody until it is released; `asked_by` are the names of the servers that asked."""

    asked_by: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, conversation: Conversation) -> None:
        if not conversation.json.get("messages"):
            await conversation.answer("404 Not Found", b"{}")
            return
        self.asked_by.put_nowait(conversation.head.split("/")[1])
        await self.released.wait()
        events = (chunk("an answer"), chunk(finish="stop"), usage(10, 5), DONE)
        await conversation.send(STREAM_HEAD + b"connection: close\r\n\r\n" + b"".join(events))


async def start_pair(
    stack: AsyncExitStack, folder: Path, store_url: str, model_url: str
) -> tuple[dict[str, ServerProcess], list[str]]:
    """Start two servers on one store, each of which has its name in its requests to the model."""
    environ = {
        "REASOND__STORE__URL": store_url,
        "REASOND__STORE__LEASE_S": "3",
        "REASOND__LLM__PROVIDER": "openai",
        "REASOND__LLM__MODEL": "fake",
        "REASOND__LLM__API_KEY_ENV": "",
        "REASOND__AUTH__KEYS": ENVIRON["REASOND__AUTH__KEYS"],
        "ROLLING_KEY": ENVIRON["ROLLING_KEY"],
    }
    servers, http = {}, []
    for name in ("one", "two"):
        place = stack.enter_context(reserve_port("127.0.0.1:0", setting="x"))
        own = {
            "REASOND__SERVER__HTTP_ADDRESS": place,
            "REASOND__SERVER__SO_REUSEPORT": "true",
            "REASOND__LLM__BASE_URL": model_url.replace("/v1", f"/{name}/v1"),
        }
        servers[name] = ServerProcess.start(folder, name, environ | own)
        stack.callback(servers[name].kill)
        http.append(place)
    for server in servers.values():
        await server.until_ready()
    return servers, http


async def test_requests_that_are_repeated_after_their_server_was_killed_are_one_execution_each(
    tmp_path: Path, postgres_url: str
) -> None:
    """No proxy repeats what had reached a server; the client does, and finds the execution again."""
    held = HeldModel()
    token = await make_token({**os.environ, **ENVIRON})
    query = json.dumps({"tag": "q", "steps": [{"calls": 1, "tool": ""}]})

    async def ask(client: reasond.AsyncClient, request_id: str) -> reasond.Reasoning:
        return await client.reason(query, strategy="listed", request_id=request_id, timeout_s=PATIENCE_S)

    async def repeat(client: reasond.AsyncClient, request_id: str) -> reasond.Reasoning:
        """Ask until the proxy has noticed which server is gone."""
        while True:
            try:
                return await ask(client, request_id)
            except reasond.UnavailableError:
                await asyncio.sleep(0.1)

    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
        model = await stack.enter_async_context(upstream(held.answer))
        servers, http = await start_pair(stack, tmp_path, postgres_url, model.address)
        pair = Backends(grpc=[each.target for each in servers.values()], http=http)
        calls: dict[str, asyncio.Task[reasond.Reasoning]] = {}
        cut: dict[str, reasond.AsyncClient] = {}
        for name, replacements in QUICK.items():
            behind = running_proxy(name, tmp_path, pair, replacements=replacements)
            proxy = await stack.enter_async_context(behind)
            without_retries = {"grpc.enable_retries": 0}
            client = reasond.AsyncClient(proxy.grpc, token=token, options=without_retries)
            await stack.enter_async_context(client)
            server = ""
            while server != "one":
                request_id = f"{name}-{len(calls)}"
                calls[request_id] = asyncio.create_task(ask(client, request_id))
                server = await held.asked_by.get()
            cut[request_id] = client
        servers["one"].kill()
        for request_id, client in cut.items():
            with pytest.raises(reasond.UnavailableError):
                await calls[request_id]
            calls[request_id] = asyncio.create_task(repeat(client, request_id))
        for _ in cut:
            assert await held.asked_by.get() == "two"
        held.released.set()
        results = await asyncio.gather(*calls.values())
        listed = [each.execution_id async for each in client.list_executions()]
    assert sorted(listed) == sorted(each.execution_id for each in results)
    assert held.asked_by.empty()
