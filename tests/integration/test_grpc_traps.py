"""The behaviours of grpc.aio that shaped the server, B1 to B20 of the list in docs: each on a real server."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # shipped without py.typed

from reasond.v1 import execution_pb2, reasoning_service_pb2
from reasond_server.access.permissions import Operation
from reasond_server.errors.base import SettingsError, Violation
from reasond_server.errors.limits import OverloadedError, RateLimitedError
from reasond_server.errors.request import InvalidRequestError
from reasond_server.grpc_api.grpc_server import Authentication
from reasond_server.grpc_api.guard import ErrorGuard
from reasond_server.grpc_api.handlers import wrap_handler
from reasond_server.types import TextDelta
from tests.unit.grpc_api.parts import (
    AUTHORIZED,
    EVENTS,
    PRINCIPAL,
    SOON,
    VIEW,
    ScriptedReasoning,
    bare_server,
    get_error,
    new_server,
    serving,
    stream_event,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from reasond_server.reasoning.service import ExecutionView
    from reasond_server.types import StreamEvent

TASK = execution_pb2.ReasoningTask(query="What is six times seven?")
REASON = reasoning_service_pb2.ReasonRequest(task=TASK)
ITERATIONS = reasoning_service_pb2.ReasonIterationsRequest(task=TASK)
MEBI = 1024 * 1024

OPERATIONS = {
    f"/test.Bare/{name}": Operation(name)
    for name in ("Wait", "UnaryUnary", "UnaryStream", "Writing", "StreamUnary", "StreamStream")
}


async def _anybody(_token: str) -> Any:
    return PRINCIPAL


def guard() -> ErrorGuard:
    return ErrorGuard(new_call_id=lambda: "minted")


async def a_cancelled_inner_task() -> None:
    inner = asyncio.create_task(asyncio.Event().wait())
    inner.cancel()
    await inner


async def test_b01_a_unary_call_whose_inner_task_was_cancelled_is_answered_internal_at_once() -> None:
    async def execute() -> ExecutionView:
        await a_cancelled_inner_task()
        return VIEW

    async with serving(ScriptedReasoning(on_execute=execute)) as served:
        code, message, details = await get_error(served.reasoning.Reason(REASON, metadata=AUTHORIZED))

    assert (code, message) == (grpc.StatusCode.INTERNAL, "internal error")
    assert details["ErrorInfo"].reason == "INTERNAL"


async def test_b01_a_stream_whose_inner_task_was_cancelled_is_answered_internal_at_once() -> None:
    async def events() -> AsyncGenerator[StreamEvent, None]:
        yield EVENTS[0]
        await a_cancelled_inner_task()

    async with serving(ScriptedReasoning(on_stream=events)) as served:
        code, _, _ = await get_error(served.reasoning.ReasonIterations(ITERATIONS, metadata=AUTHORIZED))

    assert code is grpc.StatusCode.INTERNAL


async def test_b02_the_peers_cancellation_passes_through_every_layer() -> None:
    seen: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    entered = asyncio.Event()

    def stand_outside(run: Any) -> Any:
        """Return a function that sees the exceptions that grpc would see."""

        async def serve(requests: Any, context: Any) -> Any:
            try:
                return await run(requests, context)
            except BaseException as error:
                seen.set_result(error)
                raise

        return serve

    async def wait(_request: bytes, _context: Any) -> bytes:
        entered.set()
        await asyncio.Event().wait()
        return b""

    authentication = Authentication(authenticate=_anybody, require=lambda *_: None, operations=OPERATIONS)
    handlers: dict[str, Any] = {"Wait": grpc.unary_unary_rpc_method_handler(wait)}
    outside = [lambda _path, handler: wrap_handler(handler, stand_outside)]
    async with bare_server(handlers, guard(), authentication.wrap, outside=outside) as channel:
        call = channel.unary_unary("/test.Bare/Wait")(b"", metadata=AUTHORIZED)
        await asyncio.wait_for(entered.wait(), SOON)
        call.cancel()
        error = await asyncio.wait_for(seen, SOON)

    assert isinstance(error, asyncio.CancelledError)


async def test_b03_a_stream_cut_while_blocked_in_flow_control_is_cleaned_up_in_its_own_task_and_context(
    caplog: pytest.LogCaptureFixture,
) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    tasks: list[Any] = []
    progress = asyncio.Event()
    cleaned = asyncio.Event()

    async def events() -> AsyncGenerator[StreamEvent, None]:
        token = variable.set("from this stream")
        tasks.append(asyncio.current_task())
        try:
            while True:
                progress.set()
                yield stream_event(1, TextDelta(iteration_index=0, text="x" * MEBI))
        finally:
            variable.reset(token)
            tasks.append(asyncio.current_task())
            cleaned.set()

    async with serving(ScriptedReasoning(on_stream=events)) as served:
        call = served.reasoning.ReasonIterations(ITERATIONS, metadata=AUTHORIZED)
        await until_still(progress)
        call.cancel()
        await asyncio.wait_for(cleaned.wait(), SOON)

    assert tasks[0] is tasks[1]
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def until_still(progress: asyncio.Event) -> None:
    """Wait until nothing has happened for half a second, so that the writer is blocked."""
    while True:
        progress.clear()
        try:
            await asyncio.wait_for(progress.wait(), 0.5)
        except TimeoutError:
            return


async def test_b04_the_text_of_a_foreign_exception_from_a_handler_never_reaches_the_peer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def execute() -> ExecutionView:
        message = "secret dsn=postgres://"
        raise ValueError(message)

    async with serving(ScriptedReasoning(on_execute=execute)) as served:
        with caplog.at_level(logging.ERROR, "reasond.grpc"):
            code, message, details = await get_error(
                served.reasoning.Reason(REASON, metadata=(*AUTHORIZED, ("x-request-id", "mine-7")))
            )

    assert (code, message) == (grpc.StatusCode.INTERNAL, "internal error")
    assert dict(details["ErrorInfo"].metadata) == {"request_id": "mine-7"}
    assert "secret" not in str(details)
    assert "secret dsn" in caplog.text


async def test_b04_the_text_of_a_foreign_exception_from_a_layer_never_reaches_the_peer() -> None:
    async def fail(*_call: Any) -> Any:
        message = "secret dsn=postgres://"
        raise ValueError(message)

    handlers: dict[str, Any] = {"Any": grpc.unary_unary_rpc_method_handler(fail)}
    async with bare_server(
        handlers, guard(), lambda _path, handler: wrap_handler(handler, lambda _run: fail)
    ) as channel:
        code, message, _ = await get_error(channel.unary_unary("/test.Bare/Any")(b""))

    assert (code, message) == (grpc.StatusCode.INTERNAL, "internal error")


async def test_b04_an_exception_group_that_holds_a_cancellation_does_not_leave_the_peer_without_a_status() -> None:
    async def execute() -> ExecutionView:
        raise BaseExceptionGroup("several", [asyncio.CancelledError(), ValueError("secret")])

    async with serving(ScriptedReasoning(on_execute=execute)) as served:
        code, message, _ = await get_error(served.reasoning.Reason(REASON, metadata=AUTHORIZED))

    assert (code, message) == (grpc.StatusCode.INTERNAL, "internal error")


async def test_b05_a_status_that_a_foreign_servicer_has_sent_is_not_replaced() -> None:
    async def abort(_request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.NOT_FOUND, "not here")
        return b""

    async with bare_server({"Abort": grpc.unary_unary_rpc_method_handler(abort)}, guard()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/test.Bare/Abort")(b"")

    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.NOT_FOUND, "not here")


async def test_b06_all_kinds_of_handlers_work_inside_all_layers() -> None:
    async def unary_unary(request: int, _context: Any) -> int:
        return request + 1

    async def unary_stream(request: int, _context: Any) -> AsyncIterator[int]:
        for number in range(request):
            yield number

    async def unary_stream_writing(request: int, context: Any) -> None:
        for number in range(request):
            await context.write(number)

    async def stream_unary(requests: AsyncIterator[int], _context: Any) -> int:
        return sum([each async for each in requests])

    async def stream_stream(requests: AsyncIterator[int], _context: Any) -> AsyncIterator[int]:
        async for each in requests:
            yield each * 2

    codec: dict[str, Any] = {"request_deserializer": int, "response_serializer": lambda number: b"%d" % number}
    handlers: dict[str, Any] = {
        "UnaryUnary": grpc.unary_unary_rpc_method_handler(unary_unary, **codec),
        "UnaryStream": grpc.unary_stream_rpc_method_handler(unary_stream, **codec),
        "Writing": grpc.unary_stream_rpc_method_handler(unary_stream_writing, **codec),
        "StreamUnary": grpc.stream_unary_rpc_method_handler(stream_unary, **codec),
        "StreamStream": grpc.stream_stream_rpc_method_handler(stream_stream, **codec),
    }
    authentication = Authentication(authenticate=_anybody, require=lambda *_: None, operations=OPERATIONS)
    async with bare_server(handlers, guard(), authentication.wrap) as channel:
        one = await channel.unary_unary("/test.Bare/UnaryUnary")(b"2", metadata=AUTHORIZED)
        many = await drain(channel.unary_stream("/test.Bare/UnaryStream")(b"2", metadata=AUTHORIZED))
        written = await drain(channel.unary_stream("/test.Bare/Writing")(b"2", metadata=AUTHORIZED))
        joined = await channel.stream_unary("/test.Bare/StreamUnary")(iter([b"2", b"3"]), metadata=AUTHORIZED)
        both = await drain(channel.stream_stream("/test.Bare/StreamStream")(iter([b"2", b"3"]), metadata=AUTHORIZED))

    assert (one, many, written, joined, both) == (b"3", [b"0", b"1"], [b"0", b"1"], b"5", [b"4", b"6"])


async def test_b07_a_watch_ends_with_the_drain_and_does_not_hold_up_the_stop() -> None:
    async with serving(ScriptedReasoning()) as served:
        watch = health_pb2_grpc.HealthStub(served.channel).Watch(health_pb2.HealthCheckRequest())
        statuses = [(await watch.read()).status]
        await asyncio.wait_for(served.server.stop(grace_s=3600), SOON)
        statuses.append((await watch.read()).status)
        end = await watch.read()

    response = health_pb2.HealthCheckResponse
    assert statuses == [response.SERVING, response.NOT_SERVING]
    assert (end, await watch.code()) == (grpc.aio.EOF, grpc.StatusCode.OK)


async def test_b08_health_is_answered_while_every_place_is_taken() -> None:
    busy, everybody, inside = asyncio.Event(), asyncio.Event(), itertools.count(1)

    async def execute() -> ExecutionView:
        if next(inside) == 100:
            everybody.set()
        await busy.wait()
        return VIEW

    async with serving(ScriptedReasoning(on_execute=execute)) as served:
        calls = [asyncio.ensure_future(served.reasoning.Reason(REASON, metadata=AUTHORIZED)) for _ in range(100)]
        await asyncio.wait_for(everybody.wait(), SOON)
        async with grpc.aio.insecure_channel(
            f"127.0.0.1:{served.server.port}", options=(("grpc.use_local_subchannel_pool", 1),)
        ) as probe:
            answer = await health_pb2_grpc.HealthStub(probe).Check(health_pb2.HealthCheckRequest(), timeout=SOON)
        busy.set()
        answers = await asyncio.wait_for(asyncio.gather(*calls), SOON)

    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert len(answers) == 100


async def test_b08_no_place_in_the_core_is_a_refusal_that_says_when_to_come_back() -> None:
    async def execute() -> ExecutionView:
        raise OverloadedError("full", remedy="Retry.", retry_after_s=1.5)

    async with serving(ScriptedReasoning(on_execute=execute)) as served:
        code, _, details = await get_error(served.reasoning.Reason(REASON, metadata=AUTHORIZED))

    assert code is grpc.StatusCode.UNAVAILABLE
    assert details["RetryInfo"].retry_delay.ToMilliseconds() == 1500


async def test_b09_a_second_server_on_the_same_port_is_refused() -> None:
    async with serving(ScriptedReasoning()) as served:
        second = new_server(grpc_address=f"127.0.0.1:{served.server.port}")
        with pytest.raises(SettingsError, match="Cannot listen on") as refusal:
            await second.start()

    assert "[server] grpc_address" in refusal.value.remedy


async def test_b09_worker_processes_may_share_a_port_where_asked() -> None:
    async with serving(ScriptedReasoning(), so_reuseport=True) as served:
        second = new_server(grpc_address=f"127.0.0.1:{served.server.port}", so_reuseport=True)
        await second.start()
        await second.stop(grace_s=0)


async def test_b10_a_stream_on_an_old_connection_ends_after_the_grace() -> None:
    async def events() -> AsyncGenerator[StreamEvent, None]:
        yield EVENTS[0]
        await asyncio.Event().wait()

    aging = {"max_connection_age_s": 0.3, "max_connection_age_grace_s": 0.3}
    reasoning = ScriptedReasoning(on_stream=events)
    async with serving(reasoning, **aging) as served:
        call = served.reasoning.ReasonIterations(ITERATIONS, metadata=AUTHORIZED)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(drain(call), SOON)
        await asyncio.wait_for(reasoning.closed.wait(), SOON)

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def drain(call: Any) -> list[Any]:
    return [each async for each in call]


async def test_b11_pings_on_a_silent_stream_are_tolerated_at_the_interval_that_is_set() -> None:
    """A strict server disconnects a client that pings too often; a lenient one receives as many pings and stays."""
    release = asyncio.Event()

    async def events() -> AsyncGenerator[StreamEvent, None]:
        yield EVENTS[0]
        await release.wait()
        yield EVENTS[-1]

    async with (
        serving(ScriptedReasoning(on_stream=events), min_ping_interval_s=300.0) as strict,
        serving(ScriptedReasoning(on_stream=events), min_ping_interval_s=0.1) as lenient,
        pinging_stream(strict.server.port) as doomed,
        pinging_stream(lenient.server.port) as patient,
    ):
        await doomed.read()
        await patient.read()
        with pytest.raises(grpc.aio.AioRpcError, match="Too many pings"):
            await asyncio.wait_for(doomed.read(), 120)
        release.set()
        last = await asyncio.wait_for(patient.read(), SOON)

    assert last.WhichOneof("event") == "completed"


@asynccontextmanager
async def pinging_stream(port: int) -> AsyncIterator[Any]:
    """Open a stream on a connection that pings every second."""
    options = (
        ("grpc.keepalive_time_ms", 1000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
    )
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        method = channel.unary_stream(
            "/reasond.v1.ReasoningService/ReasonIterations",
            request_serializer=reasoning_service_pb2.ReasonIterationsRequest.SerializeToString,
            response_deserializer=reasoning_service_pb2.ReasonIterationsResponse.FromString,
        )
        yield method(ITERATIONS, metadata=AUTHORIZED)


async def test_b12_a_request_over_the_receive_limit_is_refused() -> None:
    large = reasoning_service_pb2.ReasonRequest(task=execution_pb2.ReasoningTask(query="q", material="x" * 200_000))
    async with serving(ScriptedReasoning(), max_receive_bytes=100_000) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.reasoning.Reason(large, metadata=AUTHORIZED)

    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_b12_the_longest_material_passes_at_the_default_limits() -> None:
    longest = reasoning_service_pb2.ReasonRequest(
        task=execution_pb2.ReasoningTask(query="q" * 100_000, material="x" * 2_000_000)
    )
    reasoning = ScriptedReasoning()
    async with serving(reasoning) as served:
        await served.reasoning.Reason(longest, metadata=AUTHORIZED)

    assert len(reasoning.calls[0]["task"].material) == 2_000_000


async def test_b12_a_streamed_message_over_the_send_limit_ends_the_stream_with_the_figures() -> None:
    async def events() -> AsyncGenerator[StreamEvent, None]:
        yield EVENTS[0]
        yield stream_event(1, TextDelta(iteration_index=0, text="x" * 100_001))

    async with serving(ScriptedReasoning(on_stream=events), max_send_bytes=100_000) as served:
        code, message, details = await get_error(served.reasoning.ReasonIterations(ITERATIONS, metadata=AUTHORIZED))

    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "over the limit of 100000" in message
    assert details["ErrorInfo"].metadata["limit_allowed"] == "100000"


async def test_b13_a_thousand_violations_stay_readable_within_four_kibibytes() -> None:
    async def execute() -> ExecutionView:
        raise InvalidRequestError.of(
            *(Violation(field=f"field_{number}", description="must be — höchstens — 7") for number in range(1000))
        )

    async with serving(ScriptedReasoning(on_execute=execute)) as served:
        code, message, details = await get_error(served.reasoning.Reason(REASON, metadata=AUTHORIZED))

    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert message.startswith("Request validation failed: field_0 must be")
    assert len(details["BadRequest"].field_violations) > 10
    assert details["ErrorInfo"].metadata["violations_total"] == "1000"


async def test_b14_a_client_that_leaves_closes_the_cores_generator() -> None:
    async def events() -> AsyncGenerator[StreamEvent, None]:
        yield EVENTS[0]
        await asyncio.Event().wait()

    reasoning = ScriptedReasoning(on_stream=events)
    async with serving(reasoning) as served:
        call = served.reasoning.ReasonIterations(ITERATIONS, metadata=AUTHORIZED)
        await call.read()
        await served.channel.close()
        await asyncio.wait_for(reasoning.closed.wait(), SOON)


async def test_b14_a_client_that_gives_up_on_a_unary_call_cancels_the_core() -> None:
    async def execute() -> ExecutionView:
        await asyncio.Event().wait()
        return VIEW

    reasoning = ScriptedReasoning(on_execute=execute)
    async with serving(reasoning) as served:
        call = served.reasoning.Reason(REASON, metadata=AUTHORIZED)
        waiting = asyncio.ensure_future(call)
        await asyncio.wait_for(reasoning.entered.wait(), SOON)
        waiting.cancel()
        await asyncio.wait_for(reasoning.closed.wait(), SOON)
        await asyncio.wait([waiting])


async def test_b14_a_deadline_reaches_the_core_and_ends_the_call() -> None:
    async def execute() -> ExecutionView:
        await asyncio.Event().wait()
        return VIEW

    reasoning = ScriptedReasoning(on_execute=execute)
    async with serving(reasoning) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.reasoning.Reason(REASON, metadata=AUTHORIZED, timeout=3)
        await asyncio.wait_for(reasoning.closed.wait(), SOON)

    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    # The header carries the time in rounded units.
    assert 0 < reasoning.calls[0]["deadline_s"] < 4


async def test_b15_the_rich_status_is_read_from_the_error_of_a_stream_after_its_messages() -> None:
    async def events() -> AsyncGenerator[StreamEvent, None]:
        yield EVENTS[0]
        error = RateLimitedError("too many", retry_after_s=2.0)
        error.execution_id = "run-1"
        raise error

    async with serving(ScriptedReasoning(on_stream=events)) as served:
        code, _, details = await get_error(served.reasoning.ReasonIterations(ITERATIONS, metadata=AUTHORIZED))

    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert details["ErrorInfo"].metadata["execution_id"] == "run-1"
    assert details["QuotaFailure"].violations[0].description == "too many"


async def test_b17_handlers_run_on_the_one_loop_that_started_the_server() -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def execute() -> ExecutionView:
        loops.append(asyncio.get_running_loop())
        return VIEW

    async with serving(ScriptedReasoning(on_execute=execute)) as served:
        await served.reasoning.Reason(REASON, metadata=AUTHORIZED)

    assert loops == [asyncio.get_running_loop()]
