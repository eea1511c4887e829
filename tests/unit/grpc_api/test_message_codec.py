from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf import json_format, struct_pb2

from reasond.v1 import execution_service_pb2, reasoning_service_pb2
from reasond_server.grpc_api.guard import ErrorGuard
from reasond_server.telemetry.observers import Observer
from tests.unit.grpc_api.parts import AUTHORIZED, ScriptedReasoning, bare_server, get_error, serving

REASON = "/reasond.v1.ReasoningService/Reason"


async def refusal_of(raw: bytes, *, method: str = REASON) -> tuple[grpc.StatusCode, str, str]:
    async with serving(ScriptedReasoning()) as served:
        call: Any = served.channel.unary_unary(method)
        code, message, details = await get_error(call(raw, metadata=AUTHORIZED))
    return code, message, details["ErrorInfo"].reason


@pytest.mark.parametrize("method", [REASON, "/reasond.v1.ReasoningService/ReasonIterations"])
@pytest.mark.parametrize("raw", [b"\xff\xff\xff", b"\x0a\x7f", b"\x0a\x04\x0a\x02\xc3\x28"])
async def test_bytes_that_are_no_message_are_the_callers_mistake(raw: bytes, method: str) -> None:
    code, message, reason = await refusal_of(raw, method=method)

    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
    assert message.startswith(f"Request validation failed: the {len(raw)} bytes of the request are not a message")


@pytest.mark.parametrize("depth", [17, 25, 31, 32, 33, 40])
async def test_a_deep_struct_is_refused_whether_it_can_be_parsed_or_not(depth: int) -> None:
    code, message, reason = await refusal_of(bomb(depth))

    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
    assert "Error parsing" not in message


def bomb(depth: int) -> bytes:
    """Return the bytes of a request whose Struct has `depth` nested levels."""
    inner = b""
    for _ in range(depth):
        value = b"\x2a" + length(inner) + inner
        entry = b"\x0a\x01x\x12" + length(value) + value
        inner = b"\x0a" + length(entry) + entry
    task = b"\x0a\x01q\x1a\x04mine\x4a" + length(inner) + inner
    return b"\x0a" + length(task) + task


def length(raw: bytes) -> bytes:
    size, found = len(raw), bytearray()
    while size > 0x7F:
        found.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*found, size])


async def test_a_parser_bomb_is_refused_and_the_server_lives_on() -> None:
    async with serving(ScriptedReasoning()) as served:
        call: Any = served.channel.unary_unary(REASON)
        code, _, _ = await get_error(call(bomb(20_000), metadata=AUTHORIZED))
        answer = await served.executions.GetExecution(
            execution_service_pb2.GetExecutionRequest(execution_id="run-1"), metadata=AUTHORIZED
        )

    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert answer.execution.execution_id == "run-1"


def test_the_bomb_is_one() -> None:
    request = reasoning_service_pb2.ReasonRequest.FromString(bomb(3))

    assert json_format.MessageToDict(request)["task"] == {
        "query": "q",
        "strategy": "mine",
        "custom": {"x": {"x": {"x": {}}}},
    }


async def test_an_unreadable_message_of_a_request_stream_is_the_callers_mistake() -> None:
    async def join(requests: Any, _context: Any) -> bytes:
        return b"".join([request.SerializeToString() async for request in requests])

    handler: Any = grpc.stream_unary_rpc_method_handler(join, request_deserializer=struct_pb2.Struct.FromString)
    async with bare_server({"Join": handler}, ErrorGuard(new_call_id=lambda: "r")) as channel:
        code, _, _ = await get_error(channel.stream_unary("/test.Bare/Join")(iter([b"", b"\xff\xff"])))

    assert code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(("size", "is_refused"), [(100, False), (101, True)])
async def test_a_response_may_be_as_large_as_the_limit(size: int, *, is_refused: bool) -> None:
    async def answer(_request: bytes, _context: Any) -> bytes:
        return b"x" * size

    handlers: dict[str, Any] = {"Answer": grpc.unary_unary_rpc_method_handler(answer)}
    async with bare_server(handlers, ErrorGuard(new_call_id=lambda: "r")) as channel:
        call = channel.unary_unary("/test.Bare/Answer")(b"")
        if is_refused:
            code, message, _ = await get_error(call)
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert message.startswith(
                "the response holds 101 bytes, over the limit of 100 for one message. Ask for less"
            )
        else:
            assert await call == b"x" * size


class Sizes(Observer):
    """Keeps method, code, received and sent bytes of each call."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, int, int]] = []

    def rpc_ended(self, method: str, code: str, *, received_bytes: int, sent_bytes: int) -> None:
        self.told.append((method.removeprefix("test.Bare/"), code, received_bytes, sent_bytes))


async def test_the_bytes_of_all_messages_of_a_call_are_told_whatever_its_kind_and_its_end() -> None:
    async def echo(request: bytes, _context: Any) -> bytes:
        if request == b"fail":
            raise ValueError
        return request[:50]

    async def repeat(request: bytes, context: Any) -> None:
        for _ in range(3):
            await context.write(request)

    async def join(requests: Any, _context: Any) -> bytes:
        return b"".join([request async for request in requests])

    async def chat(requests: Any, _context: Any) -> Any:
        async for request in requests:
            yield request * 2

    handlers: dict[str, Any] = {
        "Echo": grpc.unary_unary_rpc_method_handler(echo),
        "Repeat": grpc.unary_stream_rpc_method_handler(repeat),
        "Join": grpc.stream_unary_rpc_method_handler(join),
        "Chat": grpc.stream_stream_rpc_method_handler(chat),
    }
    sizes = Sizes()
    async with bare_server(handlers, ErrorGuard(new_call_id=lambda: "r", observer=sizes)) as channel:
        await channel.unary_unary("/test.Bare/Echo")(b"12345")
        # The library unpacks it, and does not tell how long it was before.
        await channel.unary_unary("/test.Bare/Echo")(b"x" * 5000, compression=grpc.Compression.Gzip)
        await get_error(channel.unary_unary("/test.Bare/Echo")(b"fail"))
        await get_error(channel.unary_unary("/test.Bare/Nothing")(b"12345"))
        assert [each async for each in channel.unary_stream("/test.Bare/Repeat")(b"12345")] == [b"12345"] * 3
        await channel.stream_unary("/test.Bare/Join")(iter([b"12", b"", b"345"]))
        assert len([each async for each in channel.stream_stream("/test.Bare/Chat")(iter([b"1", b"23"]))]) == 2
    assert sizes.told == [
        ("Echo", "OK", 5, 5),
        ("Echo", "OK", 5000, 50),
        ("Echo", "INTERNAL", 4, 0),
        ("Nothing", "UNIMPLEMENTED", 0, 0),
        ("Repeat", "OK", 5, 15),
        ("Join", "OK", 5, 5),
        ("Chat", "OK", 3, 6),
    ]
