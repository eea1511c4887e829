"""A real gRPC server on a loopback port that returns scripted answers and records every call."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import grpc
import pytest
from google.protobuf import message_factory
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # it ships no types
from grpc_status import rpc_status

from reasond.v1 import (
    agent_service_pb2,
    execution_service_pb2,
    reasoning_service_pb2,
    repair_service_pb2,
    turn_service_pb2,
)

LIMIT_S = 180.0
STREAMING = ("ExecuteTurn", "FollowExecution", "ReasonIterations", "RepairSteps")
METHODS = {
    method.name: message_factory.GetMessageClass(method.input_type)
    for file in (
        agent_service_pb2,
        execution_service_pb2,
        reasoning_service_pb2,
        repair_service_pb2,
        turn_service_pb2,
    )
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A status that is not OK, with the error details that reasond sends; no ErrorInfo without a `reason`."""

    code: grpc.StatusCode
    message: str = "it failed"
    reason: str = ""
    domain: str = "reasond"
    metadata: Mapping[str, str] = field(default_factory=dict)
    violations: Sequence[tuple[str, str]] = ()
    retry_after: float | None = None
    raw_details: bytes | None = None

    def details(self) -> Iterator[Message]:
        if self.reason:
            yield error_details_pb2.ErrorInfo(reason=self.reason, domain=self.domain, metadata=self.metadata)
        if self.violations:
            violation = error_details_pb2.BadRequest.FieldViolation
            yield error_details_pb2.BadRequest(
                field_violations=[violation(field=path, description=text) for path, text in self.violations]
            )
        if self.retry_after is not None:
            delay = Duration()
            delay.FromNanoseconds(round(self.retry_after * 1e9))
            yield error_details_pb2.RetryInfo(retry_delay=delay)

    def end(self, context: grpc.ServicerContext) -> None:
        if self.raw_details is not None:
            context.set_trailing_metadata((("grpc-status-details-bin", self.raw_details),))
            context.abort(self.code, self.message)
        packed = []
        for detail in self.details():
            packed.append(AnyMessage())
            packed[-1].Pack(detail)
        if not packed:
            context.abort(self.code, self.message)
        status = status_pb2.Status(code=self.code.value[0], message=self.message, details=packed)
        context.abort_with_status(rpc_status.to_status(status))


@dataclass(frozen=True, kw_only=True)
class Received:
    """A received call; `ended` is set when the call ends on the server, for any reason."""

    method: str
    request: Any
    metadata: Mapping[str, str]
    time_remaining_s: float | None
    ended: threading.Event = field(default_factory=threading.Event)


Reply: TypeAlias = Message | Failure | threading.Event


class ScriptedServer(grpc.GenericRpcHandler):
    """Answers each method with its scripted replies in turn, or with an empty message if there is none.

    A stream's reply is a sequence of messages, failures and events to wait for.
    """

    def __init__(self) -> None:
        self.calls: list[Received] = []
        self.target = ""
        self._scripts: dict[str, deque[Reply | Iterable[Reply]]] = defaultdict(deque)
        self._arrived = threading.Condition()
        self._running: grpc.Server | None = None

    def answers(self, method: str, *replies: Reply | Iterable[Reply]) -> None:
        self._scripts[method].extend(replies)

    def of(self, method: str) -> list[Received]:
        return [call for call in self.calls if call.method == method]

    def nth(self, number: int) -> Received:
        """Wait for the call with the index `number`, counted from 0, and return it."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.calls) > number, LIMIT_S)
            return self.calls[number]

    def start(self, address: str = "127.0.0.1:0", credentials: grpc.ServerCredentials | None = None) -> None:
        options = (("grpc.so_reuseport", 0),)
        self._running = grpc.server(ThreadPoolExecutor(8), handlers=[self], options=options)
        if credentials is None:
            port = self._running.add_insecure_port(address)
        else:
            port = self._running.add_secure_port(address, credentials)
        self.target = f"127.0.0.1:{port}"
        self._running.start()

    def stop(self) -> None:
        if self._running is not None:
            self._running.stop(0).wait(LIMIT_S)
            self._running = None

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        method = handler_call_details.method.rpartition("/")[2]
        parse = METHODS[method].FromString
        if method in STREAMING:
            return grpc.unary_stream_rpc_method_handler(partial(self._events, method), parse, serialize)
        return grpc.unary_unary_rpc_method_handler(self._unary(method), parse, serialize)

    def _unary(self, method: str) -> Callable[[Any, grpc.ServicerContext], Message]:
        def serve(request: Any, context: grpc.ServicerContext) -> Message:
            call = self._receive(method, request, context)
            script = self._scripts[method]
            reply = script.popleft() if script else METHODS[method].FromString(b"")
            if isinstance(reply, threading.Event):
                wait_for(reply, call)
                reply = METHODS[method].FromString(b"")
            if isinstance(reply, Failure):
                reply.end(context)
            assert isinstance(reply, Message)
            return reply

        return serve

    def _events(self, method: str, request: Any, context: grpc.ServicerContext) -> Iterator[Message]:
        call = self._receive(method, request, context)
        replies = self._scripts[method].popleft()
        assert isinstance(replies, Iterable)
        for reply in replies:
            if isinstance(reply, Failure):
                reply.end(context)
            elif isinstance(reply, threading.Event):
                wait_for(reply, call)
            else:
                yield reply

    def _receive(self, method: str, request: Any, context: grpc.ServicerContext) -> Received:
        metadata = {str(key): str(value) for key, value in context.invocation_metadata()}
        call = Received(method=method, request=request, metadata=metadata, time_remaining_s=context.time_remaining())
        if not context.add_callback(call.ended.set):
            call.ended.set()
        with self._arrived:
            self.calls.append(call)
            self._arrived.notify_all()
        return call


def serialize(message: Message) -> bytes:
    return message.SerializeToString()


def wait_for(event: threading.Event, call: Received) -> None:
    """Wait until `event` is set or the call has ended; raise TimeoutError after 10 s."""
    for _ in range(1000):
        if event.wait(0.01) or call.ended.is_set():
            return
    raise TimeoutError("neither was the event set nor the call left")


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    scripted = ScriptedServer()
    scripted.start()
    yield scripted
    scripted.stop()


@pytest.fixture
def failure() -> type[Failure]:
    """The class of scripted failures."""
    return Failure
