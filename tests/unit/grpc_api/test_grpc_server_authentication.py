from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # shipped without py.typed

from reasond.v1 import agent_service_pb2, execution_service_pb2, reasoning_service_pb2
from reasond_server.errors.base import InternalError
from reasond_server.grpc_api.grpc_server import EXEMPT_SERVICES, Authentication
from reasond_server.grpc_api.guard import RpcCall, begin, get_current_call, get_current_principal
from tests.unit.grpc_api.parts import AUTHORIZED, PRINCIPAL, SOON, ScriptedReasoning, authenticate, get_error, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SERVICES = (
    reasoning_service_pb2.DESCRIPTOR.services_by_name["ReasoningService"],
    agent_service_pb2.DESCRIPTOR.services_by_name["AgentService"],
)
METHODS = [(service.full_name, method.name) for service in SERVICES for method in service.methods]
GET = execution_service_pb2.GetExecutionRequest(execution_id="run-1")


async def outcome(*metadata: tuple[str, str]) -> tuple[grpc.StatusCode, str, str]:
    async with serving(ScriptedReasoning()) as served:
        code, message, details = await get_error(served.executions.GetExecution(GET, metadata=metadata))
    return code, message, details["ErrorInfo"].reason


async def test_the_principal_of_the_token_reaches_the_core() -> None:
    reasoning = ScriptedReasoning()
    async with serving(reasoning) as served:
        await served.executions.GetExecution(GET, metadata=AUTHORIZED)

    assert reasoning.calls[0]["caller"] is PRINCIPAL


@pytest.mark.parametrize("value", ["bearer good", "BEARER good", "Bearer  good", " Bearer good "])
async def test_the_scheme_may_be_written_in_any_case(value: str) -> None:
    async with serving(ScriptedReasoning()) as served:
        found = await served.executions.GetExecution(GET, metadata=(("authorization", value),))

    assert found.execution.execution_id == "run-1"


async def test_without_a_token_the_message_says_where_to_put_it() -> None:
    assert await outcome() == (
        grpc.StatusCode.UNAUTHENTICATED,
        "Authentication required: Missing JWT token. Send metadata 'authorization: Bearer <token>'",
        "TOKEN_MISSING",
    )


@pytest.mark.parametrize("value", ["Basic Z29vZA==", "good", "Bearer", "Bearer ", "Bearer good two", ""])
async def test_anything_else_than_one_bearer_token_is_refused(value: str) -> None:
    code, message, reason = await outcome(("authorization", value))

    assert (code, reason) == (grpc.StatusCode.UNAUTHENTICATED, "TOKEN_INVALID")
    assert message.startswith("Authentication failed: the authorization header is not 'Bearer <token>'")


async def test_two_tokens_are_refused_even_when_both_are_good() -> None:
    code, message, reason = await outcome(*AUTHORIZED, *AUTHORIZED)

    assert (code, reason) == (grpc.StatusCode.UNAUTHENTICATED, "TOKEN_INVALID")
    assert "more than one authorization header" in message


@pytest.mark.parametrize(("token", "reason"), [("expired", "TOKEN_EXPIRED"), ("forged-xyz", "TOKEN_INVALID")])
async def test_a_bad_token_is_refused_without_being_repeated(token: str, reason: str) -> None:
    code, message, found = await outcome(("authorization", f"Bearer {token}"))

    assert (code, found) == (grpc.StatusCode.UNAUTHENTICATED, reason)
    assert "xyz" not in message


async def test_a_missing_permission_is_named() -> None:
    assert await outcome(("authorization", "Bearer powerless")) == (
        grpc.StatusCode.PERMISSION_DENIED,
        "Authorization failed: Missing required permission 'executions:read'",
        "PERMISSION_MISSING",
    )


@pytest.mark.parametrize(("service", "method"), METHODS)
async def test_no_method_is_open(service: str, method: str) -> None:
    async with serving(ScriptedReasoning()) as served:
        code, _, _ = await get_error(served.channel.unary_unary(f"/{service}/{method}")(b""))  # type: ignore[arg-type]  # bytes pass as they are

    assert code is grpc.StatusCode.UNAUTHENTICATED


async def test_an_unknown_method_never_hangs() -> None:
    async with serving(ScriptedReasoning()) as served:
        for method in ("/reasond.v1.ReasoningService/Nothing", "/reasond.v1.Nothing/Reason", "/x", "//"):
            code, _, _ = await get_error(served.channel.unary_unary(method)(b""))  # type: ignore[arg-type]  # bytes pass as they are
            assert code is grpc.StatusCode.UNIMPLEMENTED


async def test_health_and_reflection_need_no_token() -> None:
    async with serving(ScriptedReasoning()) as served:
        health = health_pb2_grpc.HealthStub(served.channel)
        answer = await health.Check(health_pb2.HealthCheckRequest())

    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert {service.split(".")[-1] for service in EXEMPT_SERVICES} == {"Health", "OpenRcaService", "ServerReflection"}


def test_a_method_that_no_service_declares_is_not_added() -> None:
    authentication = Authentication(authenticate=authenticate, require=lambda *_: None, operations={})
    with pytest.raises(InternalError, match="no service declares"):
        authentication.wrap("/test.Bare/Serve", grpc.unary_unary_rpc_method_handler(lambda *_: b""))


async def test_the_message_of_a_caller_who_is_refused_is_not_read() -> None:
    async def requests() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async with serving(ScriptedReasoning()) as served:
        reason: Any = served.channel.stream_unary("/reasond.v1.ReasoningService/Reason")
        code, _, _ = await get_error(reason(requests(), timeout=SOON))

    assert code is grpc.StatusCode.UNAUTHENTICATED


def test_a_servicer_outside_the_guard_is_a_fault() -> None:
    with pytest.raises(InternalError, match="outside the guard"):
        get_current_call()


async def test_an_exempt_method_has_no_caller_to_ask_for() -> None:
    begin(RpcCall(method="/grpc.health.v1.Health/Check", call_id="r"))

    with pytest.raises(InternalError, match="exempt from authentication"):
        get_current_principal()


async def test_every_call_is_made_by_whoever_makes_it_however_many_have_called_before() -> None:
    reasoning = ScriptedReasoning()
    powerless = (("authorization", "Bearer powerless"),)
    async with serving(reasoning) as served:
        for _ in range(2):
            await served.executions.GetExecution(GET, metadata=AUTHORIZED)
            for metadata, code in (((), "UNAUTHENTICATED"), (powerless, "PERMISSION_DENIED")):
                found, _, _ = await get_error(served.executions.GetExecution(GET, metadata=metadata))
                assert found.name == code

    assert [call["caller"] for call in reasoning.calls] == [PRINCIPAL, PRINCIPAL]


async def test_who_was_refused_first_does_not_close_the_method_for_others() -> None:
    async with serving(ScriptedReasoning()) as served:
        code, _, _ = await get_error(served.executions.GetExecution(GET))
        answer = await served.executions.GetExecution(GET, metadata=AUTHORIZED)

    assert (code, answer.execution.execution_id) == (grpc.StatusCode.UNAUTHENTICATED, "run-1")


async def test_calls_of_several_callers_at_once_are_not_mixed_up() -> None:
    reasoning = ScriptedReasoning()
    tokens = ["good", "powerless", "expired"] * 20
    async with serving(reasoning) as served:
        calls = [served.executions.GetExecution(GET, metadata=(("authorization", f"Bearer {one}"),)) for one in tokens]
        ends = await asyncio.gather(*calls, return_exceptions=True)

    codes = [end.code().name if isinstance(end, grpc.aio.AioRpcError) else "OK" for end in ends]
    assert codes == ["OK", "PERMISSION_DENIED", "UNAUTHENTICATED"] * 20
