from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc  # type: ignore[import-untyped]  # shipped without py.typed
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # likewise

from reasond.v1 import execution_pb2, reasoning_service_pb2, reasoning_service_pb2_grpc
from reasond_server.errors.base import SettingsError
from tests.unit.grpc_api.parts import (
    AUTHORIZED,
    EVENTS,
    SOON,
    VIEW,
    ScriptedReasoning,
    get_error,
    new_server,
    serving,
)
from tests.unit.runs.conftest import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.reasoning.service import ExecutionView
    from reasond_server.types import StreamEvent

REASON = reasoning_service_pb2.ReasonRequest(task=execution_pb2.ReasoningTask(query="q"))


async def test_a_call_in_progress_ends_well_within_the_grace() -> None:
    release = asyncio.Event()

    async def execute() -> ExecutionView:
        await release.wait()
        return VIEW

    reasoning = ScriptedReasoning(on_execute=execute)
    async with serving(reasoning) as served:
        call = asyncio.ensure_future(served.reasoning.Reason(REASON, metadata=AUTHORIZED))
        await asyncio.wait_for(reasoning.entered.wait(), SOON)
        stopping = asyncio.create_task(served.server.stop(grace_s=3600))
        release.set()
        answer = await asyncio.wait_for(call, SOON)
        await asyncio.wait_for(stopping, SOON)

    assert answer.reasoning.answer == "42"


async def test_stop_returns_after_the_handlers_that_were_cut_have_unwound() -> None:
    cleaned = False

    async def events() -> AsyncGenerator[StreamEvent, None]:
        nonlocal cleaned
        try:
            yield EVENTS[0]
            await asyncio.Event().wait()
        finally:
            await asyncio.get_running_loop().run_in_executor(None, str)
            cleaned = True

    async with serving(ScriptedReasoning(on_stream=events)) as served:
        call = served.reasoning.ReasonIterations(
            reasoning_service_pb2.ReasonIterationsRequest(task=REASON.task), metadata=AUTHORIZED
        )
        await call.read()
        await asyncio.wait_for(served.server.stop(grace_s=0), SOON)

        assert cleaned


async def test_calls_are_still_taken_while_the_drain_begins() -> None:
    async with serving(ScriptedReasoning()) as served:
        served.server.begin_drain()
        answer = await served.reasoning.Reason(REASON, metadata=AUTHORIZED)

    assert answer.reasoning.answer == "42"


class Stuck:
    """A gRPC server that never stops."""

    async def stop(self, _grace_s: float) -> None:
        await asyncio.Event().wait()


@in_virtual_time
async def test_what_grpc_does_not_stop_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    server = new_server(ScriptedReasoning())
    server._servers.append(Stuck())  # type: ignore[arg-type]  # only `stop` is called
    await asyncio.wait_for(server.stop(grace_s=7), 7 + 5 + 1)
    assert "gRPC does not stop" in caplog.text


async def test_stopping_twice_and_before_the_start_does_no_harm() -> None:
    server = new_server()
    await server.stop(grace_s=0)
    async with serving(ScriptedReasoning()) as served:
        await asyncio.gather(served.server.stop(grace_s=3600), served.server.stop(grace_s=0))


async def test_a_second_stop_shortens_the_grace_of_the_first() -> None:
    async def execute() -> ExecutionView:
        await asyncio.Event().wait()
        return VIEW

    reasoning = ScriptedReasoning(on_execute=execute)
    async with serving(reasoning) as served:
        call = asyncio.ensure_future(served.reasoning.Reason(REASON, metadata=AUTHORIZED))
        await asyncio.wait_for(reasoning.entered.wait(), SOON)
        patient = asyncio.create_task(served.server.stop(grace_s=3600))
        await served.server.stop(grace_s=0)
        await asyncio.wait_for(patient, SOON)
        await asyncio.wait([call])

    assert call.exception() is not None


async def test_a_start_that_fails_frees_what_it_has_bound() -> None:
    server = new_server(admin_address="0.0.0.0:0")
    with pytest.raises(SettingsError):
        await server.start()
    successor = new_server(grpc_address=f"127.0.0.1:{server.port}")
    await successor.start()
    await successor.stop(grace_s=0)


@pytest.mark.parametrize(("size", "is_refused"), [(6000, False), (9000, True)])
async def test_metadata_over_the_limit_is_refused(size: int, *, is_refused: bool) -> None:
    async with serving(ScriptedReasoning()) as served:
        call = served.reasoning.Reason(REASON, metadata=(*AUTHORIZED, ("x-padding", "x" * size)))
        if is_refused:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        else:
            await call


async def test_a_call_over_the_limit_of_a_connection_waits_for_a_place_instead_of_being_refused() -> None:
    release = asyncio.Event()

    async def execute() -> ExecutionView:
        await release.wait()
        return VIEW

    reasoning = ScriptedReasoning(on_execute=execute)
    async with serving(reasoning, max_concurrent_streams=1) as served:
        first = served.reasoning.Reason(REASON, metadata=AUTHORIZED)
        await asyncio.wait_for(reasoning.entered.wait(), SOON)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.reasoning.Reason(REASON, metadata=AUTHORIZED, timeout=0.2)
        waiting = served.reasoning.Reason(REASON, metadata=AUTHORIZED)
        assert len(reasoning.calls) == 1
        release.set()
        await asyncio.wait_for(asyncio.gather(first, waiting), SOON)

    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert len(reasoning.calls) == 2


@pytest.mark.parametrize("calls", [500, 1000])
async def test_quick_calls_at_once_on_one_connection_are_all_answered(calls: int) -> None:
    async def execute() -> ExecutionView:
        return VIEW

    async with serving(ScriptedReasoning(on_execute=execute)) as served:
        channel = grpc.aio.insecure_channel(
            f"127.0.0.1:{served.server.port}",
            options=(("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)),
        )
        async with channel:
            stub: Any = reasoning_service_pb2_grpc.ReasoningServiceStub(channel)
            await stub.Reason(REASON, metadata=AUTHORIZED)
            answers = await asyncio.gather(*(stub.Reason(REASON, metadata=AUTHORIZED) for _ in range(calls)))

    assert {answer.reasoning.answer for answer in answers} == {"42"}


async def test_connections_over_the_limit_are_closed_and_those_that_are_there_are_served() -> None:
    async with serving(ScriptedReasoning(), max_grpc_connections=2) as served:
        await served.reasoning.Reason(REASON, metadata=AUTHORIZED)
        _, second = await asyncio.open_connection("127.0.0.1", served.server.port)
        reader, third = await asyncio.open_connection("127.0.0.1", served.server.port)
        refusal = await asyncio.wait_for(reader.read(), SOON)
        answer = await served.reasoning.Reason(REASON, metadata=AUTHORIZED)
        for writer in (second, third):
            writer.close()

    assert refusal == b""
    assert answer.reasoning.answer == "42"


async def test_the_message_of_a_stranger_is_not_read_before_the_token_is_looked_at() -> None:
    async with serving(ScriptedReasoning()) as served:
        call: Any = served.channel.stream_unary("/reasond.v1.ReasoningService/Reason")()
        # The client sends only the headers: no message, and no end of the call.
        code, _, details = await asyncio.wait_for(get_error(call), SOON)

    assert (code, details["ErrorInfo"].reason) == (grpc.StatusCode.UNAUTHENTICATED, "TOKEN_MISSING")


async def test_the_admin_listener_shows_the_servers_of_the_process_and_health() -> None:
    async with (
        serving(ScriptedReasoning(), admin_address="127.0.0.1:0") as served,
        grpc.aio.insecure_channel(f"127.0.0.1:{served.server.admin_port}") as channel,
    ):
        channelz = channelz_pb2_grpc.ChannelzStub(channel)
        servers = await channelz.GetServers(channelz_pb2.GetServersRequest())
        health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())

    assert sum(bool(each.listen_socket) for each in servers.server) >= 2
    assert health.status == health_pb2.HealthCheckResponse.SERVING


async def test_channelz_is_not_on_the_public_listener() -> None:
    async with serving(ScriptedReasoning(), admin_address="127.0.0.1:0") as served:
        call: Any = served.channel.unary_unary("/grpc.channelz.v1.Channelz/GetServers")
        code, _, _ = await get_error(call(b"", metadata=AUTHORIZED))

    assert code is grpc.StatusCode.UNIMPLEMENTED


async def test_an_admin_listener_that_others_could_reach_is_refused() -> None:
    with pytest.raises(SettingsError, match="not on a loopback address"):
        await new_server(admin_address="0.0.0.0:0").start()


async def test_without_channelz_the_admin_listener_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [])
    for name in ("grpc_channelz", "grpc_channelz.v1", "grpc_channelz.v1.channelz"):
        monkeypatch.delitem(__import__("sys").modules, name, raising=False)

    with pytest.raises(SettingsError, match="needs grpcio-channelz") as refusal:
        await new_server(admin_address="127.0.0.1:0").start()

    assert "reasond-server[channelz]" in refusal.value.remedy
