"""Each service is added once, so the cost of waiting for a call does not depend on the number of methods."""

from __future__ import annotations

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # shipped without py.typed

from reasond_server.grpc_api.standard_services import HealthServicer
from tests.unit.grpc_api.parts import SOON, new_server


def _waiting() -> list[str]:
    """Return the names of the tasks in which the servers of this loop wait, one for each task."""
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return [name.partition(".")[2] for name in names if name.startswith("AioServer.")]


async def _ask(port: int) -> int:
    """Check the health of the server; after its answer, the server waits for the next call."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        answer = await check(health_pb2.HealthCheckRequest(), timeout=SOON)
    return int(answer.status)


async def test_generated_code_alone_makes_a_task_wait_for_each_method() -> None:
    """Check the assumption of the tests below: grpc.aio starts a task for each registered method."""
    server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(services=()), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        await _ask(port)
        assert _waiting().count("_request_registered_call") > 1
    finally:
        await server.stop(0)


async def test_the_whole_server_waits_for_calls_with_no_task_for_a_method() -> None:
    server = new_server()
    await server.start()
    server.health.set_ready()
    try:
        assert await _ask(server.port) == health_pb2.HealthCheckResponse.SERVING
        assert _waiting()
        assert "_request_registered_call" not in _waiting()
    finally:
        await server.stop(grace_s=0)
