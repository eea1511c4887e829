"""The metrics of a real server during a fault and after it."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from reasond import AsyncClient, ReasondError
from reasond.v1 import execution_pb2, reasoning_service_pb2, reasoning_service_pb2_grpc
from reasond_server.assembly.stores import migrate_stores
from reasond_server.testing import FunctionModel, running_server
from tests.engines.postgres import running_postgres
from tests.engines.redis_server import running_redis
from tests.engines.served import serving
from tests.faults.parts import Misbehaving, endless_steps
from tests.faults.upstream import chunk, refusing, streaming, upstream, usage
from tests.http_clients import make_http_client

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.faults.upstream import Conversation

pytestmark = pytest.mark.slow

LIMIT_S = 180.0
OWN_LISTENER = {"REASOND__METRICS__ADDRESS": "127.0.0.1:0"}
GOOD = streaming(chunk("<answer>42</answer>"), chunk(finish="stop"), usage(11, 4))
Found = dict[str, float]


async def scrape(address: str) -> Found:
    async with make_http_client() as client:
        text = (await client.get(address)).text
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


async def until(address: str, holds: Callable[[Found], bool]) -> Found:
    """Scrape until `holds`."""
    async with asyncio.timeout(LIMIT_S):
        while not holds(found := await scrape(address)):  # noqa: ASYNC110 - the state is visible only in a scrape
            await asyncio.sleep(0.05)
    return found


async def ask(target: str, token: str) -> str:
    """Send one request; return the answer, or the reason of the error."""
    async with AsyncClient(target, token=token) as client:
        try:
            return (await client.reason("What is 6 * 7?", strategy="chain_of_thought", timeout_s=20)).answer
        except ReasondError as error:
            return error.reason


async def ask_without_id(target: str, token: str) -> None:
    """Send a request without a request id, so that nobody can come back for it; the client always sends an id."""
    task = execution_pb2.ReasoningTask(query="What is 6 * 7?", strategy="chain_of_thought")
    async with grpc.aio.insecure_channel(target) as channel:
        stub: Any = reasoning_service_pb2_grpc.ReasoningServiceStub(channel)
        metadata = (("authorization", f"Bearer {token}"),)
        with suppress(grpc.aio.AioRpcError):
            await stub.Reason(reasoning_service_pb2.ReasonRequest(task=task), metadata=metadata, timeout=180)


def endless() -> Mapping[str, Any]:
    """A strategy that writes without end, and settings with a short write timeout."""
    strategy = Misbehaving(endless_steps)
    return {"strategies": [strategy], "environ": {**OWN_LISTENER, "REASOND__SERVER__WRITE_TIMEOUT_S": "0.2"}}


async def test_a_grpc_client_that_does_not_read_is_a_slow_consumer() -> None:
    slow = 'reasond_slow_consumers_total{transport="grpc"}'
    options = endless()
    task = execution_pb2.ReasoningTask(query="Go.", strategy=options["strategies"][0].name)
    async with running_server(**options) as listening, grpc.aio.insecure_channel(listening.grpc) as channel:
        assert (await scrape(listening.metrics))[slow] == 0
        stub: Any = reasoning_service_pb2_grpc.ReasoningServiceStub(channel)
        stream = stub.ReasonIterations(
            reasoning_service_pb2.ReasonIterationsRequest(task=task),
            metadata=(("authorization", f"Bearer {listening.token}"),),
        )
        await stream.read()
        found = await until(listening.metrics, lambda found: found[slow] > 0)
        stream.cancel()
    assert found[slow] == 1
    assert found['reasond_slow_consumers_total{transport="http"}'] == 0


async def test_an_http_client_that_does_not_read_is_a_slow_consumer() -> None:
    slow = 'reasond_slow_consumers_total{transport="http"}'
    options = endless()
    async with running_server(**options) as listening:
        params = {"query": "Go.", "strategy": options["strategies"][0].name, "auth_token": listening.token}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "reasoning.execute", "params": params}).encode()
        head = "POST /api/v1/jsonrpc HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        host, port = listening.http.removeprefix("http://").split(":")
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, (host, int(port)))
            await loop.sock_sendall(client, head.encode() + body)
            found = await until(listening.metrics, lambda found: found[slow] > 0)
            found = await until(listening.metrics, lambda found: not found['reasond_streams_open{transport="jsonrpc"}'])
    assert found[slow] == 1
    assert found['reasond_slow_consumers_total{transport="grpc"}'] == 0


async def test_a_breaker_is_seen_to_open_to_let_one_call_through_and_to_close() -> None:
    def state(found: Found) -> list[str]:
        names = ("closed", "half_open", "open")
        return [name for name in names if found[f'reasond_model_breaker_state{{backend="llm",state="{name}"}}']]

    async with upstream(*[refusing("503 Busy")] * 10, GOOD) as server:
        environ = {
            **OWN_LISTENER,
            "REASOND__LLM__PROVIDER": "openai",
            "REASOND__LLM__MODEL": "m",
            "REASOND__LLM__BASE_URL": server.address,
            "REASOND__LLM__MAX_ATTEMPTS": "1",
        }
        async with running_server(environ=environ) as listening:
            assert state(await scrape(listening.metrics)) == ["closed"]
            # The client would wait until the breaker lets a call through.
            for _ in range(11):
                await ask_without_id(listening.grpc, listening.token)
            found = await scrape(listening.metrics)
            assert state(found) == ["open"]
            # A call that the breaker refused was never sent.
            assert found['reasond_model_calls_total{model="m",outcome="MODEL_UNAVAILABLE"}'] == 11
            assert server.calls == 10
            await until(listening.metrics, lambda found: state(found) == ["half_open"])
            assert await ask(listening.grpc, listening.token) == "42"
            assert state(await scrape(listening.metrics)) == ["closed"]


async def test_limits_are_degraded_while_redis_is_gone() -> None:
    async with running_redis() as redis:
        environ = {
            **OWN_LISTENER,
            "REASOND__LIMITS__STORAGE": "redis",
            "REASOND__LIMITS__REDIS_URL": redis.url,
            "REASOND__LIMITS__REQUESTS_PER_MINUTE": "1000",
        }
        model = FunctionModel(lambda _: "<answer>42</answer>")
        async with running_server(model=model, environ=environ) as listening:
            seen = []
            for change in (lambda: None, redis.kill, redis.start):
                changed = change()
                if changed is not None:
                    await changed
                expected = 1.0 if change == redis.kill else 0.0
                async with asyncio.timeout(LIMIT_S):
                    while True:
                        assert await ask(listening.grpc, listening.token) == "42"
                        now = (await scrape(listening.metrics))["reasond_limits_degraded"]
                        if now == expected:
                            break
                seen.append(now)
    assert seen == [0, 1, 0]


async def test_a_database_that_is_gone_is_counted_as_a_failure_of_the_store(tmp_path: Path) -> None:
    failures = 'reasond_store_failures_total{reason="STORE_UNAVAILABLE"}'
    with running_postgres() as postgres:
        url = postgres.new_database()
        await asyncio.to_thread(migrate_stores, url=url, data_dir="")
        environ = {**OWN_LISTENER, "REASOND__STORE__URL": url}
        async with serving(tmp_path, "one", environ) as served:
            assert await ask(served.grpc, served.token) == "42"
            assert (await scrape(served.metrics))[failures] == 0
            await asyncio.to_thread(postgres.stop)
            # This request waits for no commit, so it is answered; the next one is refused.
            await ask_without_id(served.grpc, served.token)
            found = await until(served.metrics, lambda found: found[failures] > 0)
            assert await ask(served.grpc, served.token) == "STORE_UNAVAILABLE"
            found = await scrape(served.metrics)
            assert found['reasond_denials_total{kind="store"}'] >= 1
            await asyncio.to_thread(postgres.start)
            async with asyncio.timeout(LIMIT_S):
                while await ask(served.grpc, served.token) != "42":
                    pass


async def test_a_run_of_a_dead_process_is_counted_by_the_one_that_resumes_it(tmp_path: Path) -> None:
    began = asyncio.Event()

    async def never(conversation: Conversation) -> None:
        began.set()
        await conversation.until_gone()

    async with upstream(never, GOOD) as server:
        environ = {
            **OWN_LISTENER,
            "REASOND__LLM__PROVIDER": "openai",
            "REASOND__LLM__MODEL": "m",
            "REASOND__LLM__BASE_URL": server.address,
            "REASOND__STORE__URL": f"sqlite:///{tmp_path}/reasond.db",
            "REASOND__STORE__LEASE_S": "1",
        }
        async with serving(tmp_path, "one", environ) as served, grpc.aio.insecure_channel(served.grpc) as channel:
            stub: Any = reasoning_service_pb2_grpc.ReasoningServiceStub(channel)
            task = execution_pb2.ReasoningTask(query="What is 6 * 7?", strategy="chain_of_thought")
            request = reasoning_service_pb2.ReasonIterationsRequest(task=task, keep_running=True)
            stream = stub.ReasonIterations(request, metadata=(("authorization", f"Bearer {served.token}"),))
            await stream.read()
            async with asyncio.timeout(LIMIT_S):
                await began.wait()
            served.process.kill()
        async with serving(tmp_path, "two", environ) as served:
            ended = 'reasond_executions_total{finish_reason="answered",strategy="chain_of_thought"}'
            found = await until(served.metrics, lambda found: found.get(ended, 0) > 0)
    assert found['reasond_recoveries_total{outcome="resumed"}'] == 1
    assert found['reasond_recoveries_total{outcome="written_off"}'] == 0
