from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import weakref
from typing import Any

import grpc
import pytest

from reasond.v1.execution_service_pb2 import GetExecutionRequest
from reasond_server.errors.limits import OverloadedError
from reasond_server.errors.request import InvalidRequestError
from reasond_server.grpc_api.guard import ErrorGuard, get_current_call
from tests.unit.grpc_api.parts import (
    AUTHORIZED,
    SOON,
    ScriptedReasoning,
    bare_server,
    get_error,
    serving,
    status_in,
)


def guard() -> ErrorGuard:
    ids, times = itertools.count(1), itertools.count(0, 0.25)
    return ErrorGuard(new_call_id=lambda: f"minted-{next(ids)}", monotonic=lambda: next(times))


async def echo_request_id(_request: bytes, _context: Any) -> bytes:
    return get_current_call().call_id.encode()


ECHO: dict[str, Any] = {"Echo": grpc.unary_unary_rpc_method_handler(echo_request_id)}


async def echo(*metadata: tuple[str, str]) -> str:
    """Return the request id that the server used; check that the trailers have the same one."""
    async with bare_server(ECHO, guard()) as channel:
        call = channel.unary_unary("/test.Bare/Echo")(b"", metadata=metadata)
        answer: bytes = await call
        assert (await call.trailing_metadata())["x-request-id"] == answer.decode()
    return answer.decode()


async def test_a_well_formed_request_id_is_kept() -> None:
    assert await echo(("x-request-id", "7f3a:b/c+d=e.f_g-1")) == "7f3a:b/c+d=e.f_g-1"


@pytest.mark.parametrize("value", ["", "with space", "x" * 129, "-leading", "semi;colon"])
async def test_any_other_is_replaced(value: str) -> None:
    assert await echo(("x-request-id", value)) == "minted-1"


async def test_without_a_request_id_one_is_minted() -> None:
    assert await echo() == "minted-1"


async def test_the_first_well_formed_of_several_counts() -> None:
    assert await echo(("x-request-id", "not this"), ("x-request-id", "this"), ("x-request-id", "late")) == "this"


async def test_an_unknown_method_is_told_so_with_details() -> None:
    async with bare_server({}, guard()) as channel:
        code, message, details = await get_error(channel.unary_unary("/reasond.v1.Nothing/Here")(b""))

    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert message.startswith("Method not found: '/reasond.v1.Nothing/Here'")
    assert details["ErrorInfo"].reason == "METHOD_NOT_FOUND"


@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream", "stream_unary", "stream_stream"])
async def test_an_unknown_method_answers_callers_of_every_kind(kind: str) -> None:
    async with bare_server({}, guard()) as channel:
        request: Any = iter([b""]) if kind.startswith("stream") else b""
        code, _, _ = await get_error(getattr(channel, kind)("/reasond.v1.Nothing/Here")(request))

    assert code is grpc.StatusCode.UNIMPLEMENTED


async def test_the_access_log_has_one_line_for_each_call_and_no_content(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "reasond.grpc"):
        async with bare_server(ECHO, guard()) as channel:
            await channel.unary_unary("/test.Bare/Echo")(b"content", metadata=(("x-request-id", "mine"),))
    lines: list[Any] = [record for record in caplog.records if record.name == "reasond.grpc"]

    assert len(lines) == 1
    line = lines[0]
    assert (line.method, line.code, line.call_id, line.subject) == ("/test.Bare/Echo", "OK", "mine", "")
    assert (line.duration_ms, line.levelno, line.reason) == (250.0, logging.INFO, "")
    assert "content" not in str(vars(line))


async def test_the_access_log_shortens_a_method_that_a_stranger_made_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "reasond.grpc"):
        async with bare_server({}, guard()) as channel:
            await get_error(channel.unary_unary(f"/made.up/{'x' * 4000}")(b""))
    (line,) = [record for record in caplog.records if record.name == "reasond.grpc"]

    assert line.__dict__["method"].startswith("'/made.up/xxx")
    assert len(line.getMessage()) < 200
    assert len(line.__dict__["method"]) < 200


async def test_the_access_log_names_the_caller_and_the_reason_of_a_refusal(caplog: pytest.LogCaptureFixture) -> None:
    async def full() -> Any:
        raise OverloadedError("full")

    with caplog.at_level(logging.INFO, "reasond.grpc"):
        async with serving(ScriptedReasoning(on_execute=full)) as served:
            with pytest.raises(grpc.aio.AioRpcError):
                await served.executions.GetExecution(GetExecutionRequest(execution_id="run-1"), metadata=AUTHORIZED)
    lines: list[Any] = [record for record in caplog.records if record.name == "reasond.grpc"]

    assert [(line.code, line.reason, line.subject) for line in lines] == [("UNAVAILABLE", "OVERLOADED", "ann")]
    assert "good" not in caplog.text


async def test_probes_do_not_fill_the_access_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "reasond.grpc"):
        async with serving(ScriptedReasoning()) as served:
            await served.channel.unary_unary("/grpc.health.v1.Health/Check")(b"")  # type: ignore[arg-type]  # bytes pass as they are
    lines = [record for record in caplog.records if record.name == "reasond.grpc"]

    assert [line.levelno for line in lines] == [logging.DEBUG]


async def access_log_of_a_lost_call(caplog: pytest.LogCaptureFixture, *, timeout_s: float | None) -> Any:
    entered = asyncio.Event()

    async def wait(_request: bytes, _context: Any) -> bytes:
        entered.set()
        await asyncio.Event().wait()
        return b""

    watch = guard()
    with caplog.at_level(logging.INFO, "reasond.grpc"):
        async with bare_server({"Wait": grpc.unary_unary_rpc_method_handler(wait)}, watch) as channel:
            call = channel.unary_unary("/test.Bare/Wait")(b"", timeout=timeout_s)
            await asyncio.wait_for(entered.wait(), SOON)
            running = watch.running
            if timeout_s is None:
                call.cancel()
            await asyncio.wait(running, timeout=SOON)
            assert watch.running == frozenset()
            del call
    line: Any = caplog.records[-1]
    return line.code


async def test_a_call_that_its_peer_left_is_logged_as_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    assert await access_log_of_a_lost_call(caplog, timeout_s=None) == "CANCELLED"


async def test_a_call_whose_deadline_passed_is_logged_as_such(caplog: pytest.LogCaptureFixture) -> None:
    assert await access_log_of_a_lost_call(caplog, timeout_s=0.3) == "DEADLINE_EXCEEDED"


async def test_the_code_that_a_foreign_servicer_has_set_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def abort(_request: bytes, context: Any) -> None:
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, "far")

    watch = guard()
    with caplog.at_level(logging.INFO, "reasond.grpc"):
        async with bare_server({"Abort": grpc.unary_unary_rpc_method_handler(abort)}, watch) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await channel.unary_unary("/test.Bare/Abort")(b"")
            # The caller knows its status before the server has written its line, and a stopped server writes none.
            if watch.running:
                await asyncio.wait(watch.running, timeout=SOON)
    line: Any = caplog.records[-1]

    assert line.code == "OUT_OF_RANGE"


async def test_a_write_that_fails_while_the_peer_is_there_is_answered_internal() -> None:
    async def fail(_request: bytes, _context: Any) -> None:
        raise grpc.aio.InternalError("execute_batch failed")

    async with bare_server({"Fail": grpc.unary_unary_rpc_method_handler(fail)}, guard()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/test.Bare/Fail")(b"", timeout=SOON)

    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INTERNAL, "internal error")
    assert status_in(caught.value) is None


async def test_an_error_that_no_status_can_hold_is_a_fault_and_does_not_show_its_cause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(_request: bytes, _context: Any) -> bytes:
        raise OverloadedError("full", retry_after_s=float("nan"))

    async with bare_server({"Fail": grpc.unary_unary_rpc_method_handler(fail)}, guard()) as channel:
        with caplog.at_level(logging.ERROR, "reasond.grpc"):
            code, message, details = await get_error(channel.unary_unary("/test.Bare/Fail")(b""))

    assert (code, message) == (grpc.StatusCode.INTERNAL, "internal error")
    assert details["ErrorInfo"].reason == "INTERNAL"
    assert "cannot convert float NaN" in caplog.text


class Message:
    """A parsed request; a finalizer reports when it is freed."""


async def test_a_request_that_fails_goes_without_the_garbage_collector() -> None:
    """A caller could fill the memory with large requests before the collector runs."""
    gone = asyncio.Event()

    def read(_raw: bytes) -> Message:
        message = Message()
        weakref.finalize(message, gone.set)
        return message

    async def fail(_request: Message, _context: Any) -> bytes:
        raise InvalidRequestError("no")

    handlers: dict[str, Any] = {"Fail": grpc.unary_unary_rpc_method_handler(fail, read)}
    gc.disable()
    try:
        async with bare_server(handlers, guard()) as channel, asyncio.timeout(SOON):
            await get_error(channel.unary_unary("/test.Bare/Fail")(b""))
            await gone.wait()
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/reasond.v1.ReasoningService/Reason", grpc.StatusCode.INVALID_ARGUMENT),
        ("/reasond.v1.ReasoningService/ReasonIterations", grpc.StatusCode.INVALID_ARGUMENT),
        ("/reasond.v1.AgentService/GetAgentCard", grpc.StatusCode.INVALID_ARGUMENT),
        ("/grpc.health.v1.Health/Check", grpc.StatusCode.INVALID_ARGUMENT),
        ("/grpc.health.v1.Health/Watch", grpc.StatusCode.INVALID_ARGUMENT),
        ("/reasond.v1.ReasoningService/Nothing", grpc.StatusCode.UNIMPLEMENTED),
    ],
)
async def test_a_call_that_ends_without_a_message_gets_a_status(path: str, code: grpc.StatusCode) -> None:
    async with serving(ScriptedReasoning()) as served:
        call: Any = served.channel.stream_stream(path)(iter(()), metadata=AUTHORIZED, timeout=SOON)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in call:
                pass
    assert caught.value.code() is code
