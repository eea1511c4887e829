from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # shipped without py.typed

from reasond_server.grpc_api.standard_services import HealthServicer
from reasond_server.services import DECLARED
from tests.unit.grpc_api.parts import SOON, ScriptedReasoning, serving

Response = health_pb2.HealthCheckResponse
SERVICES = [service.name for service in DECLARED]
NAMES = ("", *SERVICES)


def request(service: str = "") -> Any:
    return health_pb2.HealthCheckRequest(service=service)


async def statuses_of(stub: Any) -> set[int]:
    return {(await stub.Check(request(name))).status for name in NAMES}


async def test_every_service_and_the_server_follow_readiness_and_drain() -> None:
    async with serving(ScriptedReasoning()) as served:
        stub = health_pb2_grpc.HealthStub(served.channel)
        served.health.set_ready(is_ready=False)
        assert await statuses_of(stub) == {Response.NOT_SERVING}
        served.health.set_ready()
        assert await statuses_of(stub) == {Response.SERVING}
        served.server.begin_drain()
        assert await statuses_of(stub) == {Response.NOT_SERVING}
        served.health.set_ready()
        assert await statuses_of(stub) == {Response.NOT_SERVING}
        assert served.health.is_draining


async def test_it_starts_as_not_serving() -> None:
    health = HealthServicer(services=SERVICES)

    assert {(await health.Check(request(name), None)).status for name in NAMES} == {Response.NOT_SERVING}  # type: ignore[arg-type]  # the context is for unknown services


async def test_one_service_may_be_reported_apart() -> None:
    async with serving(ScriptedReasoning()) as served:
        stub = health_pb2_grpc.HealthStub(served.channel)
        served.health.set_ready(is_ready=False, service=SERVICES[1])

        listed = await stub.List(health_pb2.HealthListRequest())

    expected = dict.fromkeys(["", *SERVICES], Response.SERVING) | {SERVICES[1]: Response.NOT_SERVING}
    assert {name: entry.status for name, entry in listed.statuses.items()} == expected


async def test_check_of_an_unknown_service_is_not_found() -> None:
    async with serving(ScriptedReasoning()) as served:
        stub = health_pb2_grpc.HealthStub(served.channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Check(request("nothing"))

    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_watch_tells_every_change_and_ends_when_the_listeners_close() -> None:
    async with serving(ScriptedReasoning()) as served:
        watch = health_pb2_grpc.HealthStub(served.channel).Watch(request(SERVICES[0]))
        seen = [(await watch.read()).status]
        served.health.set_ready(is_ready=False)
        seen.append((await watch.read()).status)
        served.health.set_ready(is_ready=False)
        served.health.set_ready()
        seen.append((await watch.read()).status)
        served.server.begin_drain()
        served.health.end_watches()
        seen.append((await watch.read()).status)
        end = await asyncio.wait_for(watch.read(), SOON)

    assert seen == [Response.SERVING, Response.NOT_SERVING, Response.SERVING, Response.NOT_SERVING]
    assert end is grpc.aio.EOF


async def test_a_client_that_watches_its_server_is_served_until_it_has_to_go() -> None:
    async with serving(ScriptedReasoning()) as served:
        stub = health_pb2_grpc.HealthStub(served.channel)
        early = stub.Watch(request())
        seen = [(await early.read()).status]
        served.server.begin_drain()
        late = stub.Watch(request())
        seen.append((await late.read()).status)
        assert (await stub.Check(request())).status == Response.NOT_SERVING
        assert set(served.health._is_ready.values()) == {True}, "watchers were told"
        closing = asyncio.create_task(served.server.close_listeners())
        seen += [(await early.read()).status, (await late.read()).status]
        await closing

    assert seen == [Response.SERVING, Response.SERVING, Response.NOT_SERVING, Response.NOT_SERVING]


async def test_watch_of_an_unknown_service_waits_for_it() -> None:
    async with serving(ScriptedReasoning()) as served:
        watch = health_pb2_grpc.HealthStub(served.channel).Watch(request("later"))
        seen = [(await watch.read()).status]
        served.health.set_ready(service="later")
        seen.append((await watch.read()).status)

    assert seen == [Response.SERVICE_UNKNOWN, Response.SERVING]


class StalledContext:
    """The context of a watcher whose writes never complete."""

    def __init__(self) -> None:
        self.is_writing = asyncio.Event()

    async def write(self, _message: Any) -> None:
        self.is_writing.set()
        await asyncio.Event().wait()


class PromptContext:
    """The context of a watcher whose writes complete at once."""

    def __init__(self) -> None:
        self.seen: asyncio.Queue[int] = asyncio.Queue()

    async def write(self, message: Any) -> None:
        self.seen.put_nowait(message.status)


async def test_a_stalled_watcher_holds_up_nobody() -> None:
    health = HealthServicer(services=SERVICES)
    stalled, prompt = StalledContext(), PromptContext()
    stuck = asyncio.create_task(health.Watch(request(), stalled))  # type: ignore[arg-type]  # it has the one method that Watch calls
    await asyncio.wait_for(stalled.is_writing.wait(), SOON)
    watching = asyncio.create_task(health.Watch(request(), prompt))  # type: ignore[arg-type]  # likewise

    assert await asyncio.wait_for(prompt.seen.get(), SOON) == Response.NOT_SERVING
    health.set_ready()
    assert await asyncio.wait_for(prompt.seen.get(), SOON) == Response.SERVING
    health.end_watches()
    await asyncio.wait_for(watching, SOON)

    stuck.cancel()
    await asyncio.wait([stuck])
