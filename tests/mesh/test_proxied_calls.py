"""What passes Envoy, nginx and HAProxy with the configurations of `deploy/`, in front of a real server."""

from __future__ import annotations

import asyncio
import json
import subprocess
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

import reasond
from tests.http_clients import make_http_client
from tests.mesh.gated import MATERIAL, digest_of, gated_server
from tests.mesh.proxies import Backends, find_program, running_proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import httpx

    from tests.mesh.gated import GatedServer

pytestmark = pytest.mark.slow

LIMIT_S = 120.0
ALL = ("envoy", "nginx", "haproxy")
HEARTBEAT_S = 0.25
IDLE_S = 6
IDLE = {
    "envoy": {"stream_idle_timeout: 300s": f"stream_idle_timeout: {IDLE_S}s"},
    "nginx": {"grpc_read_timeout 900s": f"grpc_read_timeout {IDLE_S}s"},
    "haproxy": {"timeout client 900s": f"timeout client {IDLE_S}s", "timeout server 900s": f"timeout server {IDLE_S}s"},
}

RARE_CHECKS: dict[str, dict[str, str]] = {
    "envoy": {" interval: 1s": " interval: 60s", "no_traffic_interval: 1s": "no_traffic_interval: 60s"},
    "nginx": {},
    "haproxy": {"inter 1s fastinter 1s downinter 1s": "inter 60s fastinter 60s downinter 60s"},
}


def read_sequences(answer: httpx.Response) -> AsyncIterator[str]:
    """Return the ids of server-sent events."""
    return (line.removeprefix("id: ") async for line in answer.aiter_lines() if line.startswith("id: "))


def call_body(query: str, **more: Any) -> dict[str, Any]:
    """Return the JSON-RPC call that asks `Gated`."""
    params = {"query": query, "strategy": "gated", **more}
    return {"jsonrpc": "2.0", "id": 1, "method": "reasoning.execute", "params": params}


@pytest.mark.parametrize("name", ALL)
async def test_streams_pass_message_by_message(name: str, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(gated_server())
        proxy = await stack.enter_async_context(running_proxy(name, tmp_path, server.backends))
        client = await stack.enter_async_context(reasond.AsyncClient(proxy.grpc, token=server.listening.token))
        stream = client.reason_iterations("3", strategy="gated")
        sequences = []
        async for event in stream:
            sequences.append(event.sequence)
            # The next step is made only after this one has arrived.
            server.gated.releases.release()
        assert sequences == [1, 2, 3, 4, 5]
        server.gated.releases = asyncio.Semaphore(0)
        web = await stack.enter_async_context(make_http_client(base_url=f"http://{proxy.http}", timeout=LIMIT_S))
        headers = {**server.bearer, "accept": "text/event-stream"}
        ids = []
        async with web.stream("POST", "/api/v1/jsonrpc", json=call_body("3"), headers=headers) as answer:
            async for event_id in read_sequences(answer):
                ids.append(event_id)
                server.gated.releases.release()
        assert [each.rpartition(":")[2].rpartition("/")[2] for each in ids] == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize("name", ALL)
async def test_errors_keep_their_reason_and_two_megabytes_pass(name: str, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(gated_server())
        proxy = await stack.enter_async_context(running_proxy(name, tmp_path, server.backends))
        client = await stack.enter_async_context(reasond.AsyncClient(proxy.grpc, token=server.listening.token))
        with pytest.raises(reasond.InvalidRequestError) as refused:
            await client.reason("", strategy="gated")
        assert [each.field for each in refused.value.violations] == ["task.query"]
        with pytest.raises(reasond.AuthenticationError) as unknown:
            async with reasond.AsyncClient(proxy.grpc, token="nonsense") as stranger:
                await stranger.reason("0")
        assert unknown.value.reason == "TOKEN_INVALID"
        assert (await client.reason("0", material=MATERIAL, strategy="gated")).answer == digest_of(MATERIAL)
        web = await stack.enter_async_context(make_http_client(base_url=f"http://{proxy.http}", timeout=LIMIT_S))
        body = call_body("0", material=MATERIAL)
        answer = await web.post("/api/v1/jsonrpc", json=body, headers=server.bearer)
        assert answer.json()["result"]["answer"] == digest_of(MATERIAL)
        assert (await web.get("/v1/models", headers=server.bearer)).status_code == 200


async def test_heartbeats_carry_a_stream_through_the_silence_of_a_model(tmp_path: Path) -> None:
    """The silence is longer than each proxy allows between two messages."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(gated_server(server__heartbeat_interval_s=str(HEARTBEAT_S)))
        silent = round(1.3 * IDLE_S / HEARTBEAT_S)

        async def follow(name: str) -> list[int]:
            async with (
                running_proxy(name, tmp_path, server.backends, replacements=IDLE[name]) as proxy,
                reasond.AsyncClient(proxy.grpc, token=server.listening.token) as client,
            ):
                heard, sequences = 0, []
                async for event in client.reason_iterations("1", strategy="gated"):
                    if event.HasField("heartbeat"):
                        heard += 1
                        if heard == silent:
                            server.gated.releases.release()
                    else:
                        sequences.append(event.sequence)
                return sequences

        assert await asyncio.gather(*map(follow, ALL)) == [[1, 2, 3]] * len(ALL)


async def test_nginx_can_ask_the_server_whether_a_token_is_good(tmp_path: Path) -> None:
    checking = {"# auth_request /check;": "auth_request /check;"}
    async with (
        gated_server() as server,
        running_proxy("nginx", tmp_path, server.backends, replacements=checking) as proxy,
        reasond.AsyncClient(proxy.grpc, token=server.listening.token) as client,
        reasond.AsyncClient(proxy.grpc, token="nonsense") as stranger,
    ):
        assert (await client.reason("0", strategy="gated")).answer == digest_of("")
        with pytest.raises(reasond.AuthenticationError) as unknown:
            await stranger.reason("0", strategy="gated")
        # The status alone: the call has not reached the server.
        assert unknown.value.reason == "UNAUTHENTICATED"


@pytest.mark.parametrize("name", ALL)
async def test_calls_go_to_another_server_before_a_check_has_found_that_one_is_gone(name: str, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(gated_server())
        leaving = await stack.enter_async_context(AsyncExitStack())
        other = (await leaving.enter_async_context(gated_server())).backends
        pair = Backends(grpc=[*server.backends.grpc, *other.grpc], http=[*server.backends.http, *other.http])
        behind = running_proxy(name, tmp_path, pair, replacements=RARE_CHECKS[name])
        proxy = await stack.enter_async_context(behind)
        without_retries = {"grpc.enable_retries": 0}
        client = reasond.AsyncClient(proxy.grpc, token=server.listening.token, options=without_retries)
        await stack.enter_async_context(client)
        await leaving.aclose()
        answers = await asyncio.gather(*(client.reason("0", strategy="gated") for _ in range(20)))
        assert {each.answer for each in answers} == {digest_of("")}


async def stream_until(end: float, client: reasond.AsyncClient, server: GatedServer) -> int:
    """Stream again and again, check every sequence, and return how often."""
    loop, count = asyncio.get_running_loop(), 0
    while loop.time() < end:
        stream = client.reason_iterations("2", strategy="gated", reconnect=True, keep_running=True)
        sequences = []
        async for event in stream:
            server.gated.releases.release()
            sequences.append(event.sequence)
        assert sequences == [1, 2, 3, 4]
        count += 1
    return count


async def ask_until(end: float, client: reasond.AsyncClient) -> int:
    """Call again and again, check every answer, and return how often."""
    loop, count = asyncio.get_running_loop(), 0
    while loop.time() < end:
        assert (await client.reason("0", strategy="gated")).answer == digest_of("")
        count += 1
    return count


async def test_connections_that_reach_their_age_lose_nothing(tmp_path: Path) -> None:
    ages = 4
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(gated_server(server__max_connection_age_s="1"))
        clients = {}
        for name in ALL:
            proxy = await stack.enter_async_context(running_proxy(name, tmp_path, server.backends))
            client = reasond.AsyncClient(proxy.grpc, token=server.listening.token)
            clients[name] = await stack.enter_async_context(client)
        end = asyncio.get_running_loop().time() + ages
        calls = [stream_until(end, client, server) for client in clients.values() for _ in range(3)]
        calls += [ask_until(end, clients[name]) for name in ALL if not is_old_haproxy(name) for _ in range(3)]
        assert all(await asyncio.gather(*calls))


def is_old_haproxy(name: str) -> bool:
    """Return whether this is HAProxy before 3.0, which loses unary answers at the end of a connection."""
    if name != "haproxy":
        return False
    told = subprocess.run([find_program(name), "-v"], capture_output=True, text=True, check=True).stdout
    return int(told.split("version ")[1].partition(".")[0]) < 3


def test_the_material_is_as_large_as_it_may_be() -> None:
    assert 1_999_990 < len(MATERIAL.encode()) <= 2_000_000
    assert len(json.dumps(call_body("0", material=MATERIAL))) < 8 * 1024 * 1024
