"""Calls and connections while a server's listeners close: calls end normally, and clients are told to disconnect."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import grpc

from reasond.v1 import execution_pb2, reasoning_service_pb2, reasoning_service_pb2_grpc
from tests.unit.grpc_api.parts import AUTHORIZED, SOON, ScriptedReasoning, new_server

CONNECTIONS = 10
CALLERS = 10
ROUNDS = 3
REASON = reasoning_service_pb2.ReasonRequest(task=execution_pb2.ReasoningTask(query="q"))


async def test_no_call_of_a_hundred_looping_callers_is_cut_while_the_listeners_close() -> None:
    ended: Counter[str] = Counter()
    for _ in range(ROUNDS):
        ended += await endings_of_calls_around_a_stop()
    assert set(ended) == {"OK", "refused"}, ended


async def endings_of_calls_around_a_stop() -> Counter[str]:
    """Let callers loop on a few connections, stop the server, and return the outcomes of their calls with counts."""
    ended: Counter[str] = Counter()
    server = new_server(ScriptedReasoning())
    await server.start()
    is_busy = asyncio.Event()

    async def call_again_and_again(channel: grpc.aio.Channel) -> None:
        stub = reasoning_service_pb2_grpc.ReasoningServiceStub(channel)
        while True:
            try:
                await stub.Reason(REASON, metadata=AUTHORIZED)  # type: ignore[misc]  # one class serves both kinds
            except grpc.aio.AioRpcError as error:
                if "Failed to connect" in (error.details() or ""):
                    ended["refused"] += 1
                    return
                ended[f"{error.code().name}: {error.details()}"] += 1
            else:
                ended["OK"] += 1
                if ended["OK"] >= 3 * CONNECTIONS * CALLERS:
                    is_busy.set()

    async with AsyncExitStack() as stack, asyncio.timeout(SOON), asyncio.TaskGroup() as callers:
        for _ in range(CONNECTIONS):
            channel = grpc.aio.insecure_channel(
                f"127.0.0.1:{server.port}", options=(("grpc.use_local_subchannel_pool", 1),)
            )
            await stack.enter_async_context(channel)
            for _ in range(CALLERS):
                callers.create_task(call_again_and_again(channel))
        await is_busy.wait()
        await server.stop(grace_s=60)
    return ended


async def test_a_peer_that_does_not_answer_pings_is_let_go_after_the_time_that_is_configured() -> None:
    server = new_server(ScriptedReasoning(), keepalive_time_s=0.5, keepalive_timeout_s=0.5)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000" + "000000040100000000"))
    # grpc's own ping ends after a minute, whatever the configuration; 30 s is enough for the configured second.
    async with asyncio.timeout(30):
        while await reader.read(65_536):
            pass
    writer.close()
    await server.stop(grace_s=0)
