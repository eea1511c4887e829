"""The blocking client's connection: a channel, the token of each call, its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import grpc

from reasond.connection import authorization
from reasond.errors import error_from
from reasond.v1.agent_service_pb2_grpc import AgentServiceStub
from reasond.v1.reasoning_service_pb2_grpc import ReasoningServiceStub

if TYPE_CHECKING:
    from reasond.connection import Connection
    from reasond.sync_stream import SyncCall
    from reasond.v1.reasoning_service_pb2 import ReasonIterationsRequest

Token: TypeAlias = str | Callable[[], str]
RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class SyncLink:
    """Carries the calls of one `Client`, from any thread."""

    def __init__(self, connection: Connection, token: Token | None) -> None:
        self.connection = connection
        self._token = token
        self._is_closed = False
        self._channel = _channel(connection)
        self._reasoning = ReasoningServiceStub(self._channel)
        self._agents = AgentServiceStub(self._channel)

    @property
    def reasoning(self) -> ReasoningServiceStub:
        """The stub of the reasoning service; raises RuntimeError after closing."""
        self._raise_if_closed()
        return self._reasoning

    @property
    def agents(self) -> AgentServiceStub:
        """The stub of the agent service; raises RuntimeError after closing."""
        self._raise_if_closed()
        return self._agents

    def close(self) -> None:
        """Cancel the calls that still run and close the channel."""
        self._is_closed = True
        self._channel.close()

    def answer(
        self, method: grpc.UnaryUnaryMultiCallable[RequestT, ResponseT], request: RequestT, timeout_s: float | None
    ) -> ResponseT:
        """Call `method` and return its answer; raises ReasondError where it fails."""
        # a future, because a plain call that Ctrl-C interrupts would go on on the server
        call = method.future(request, timeout=self.connection.deadline_s(timeout_s), metadata=self._metadata())
        try:
            return call.result()
        except grpc.RpcError as failure:
            raise error_from(failure) from failure
        finally:
            call.cancel()

    def open_events(self, request: ReasonIterationsRequest, seconds: float | None) -> SyncCall:
        """Begin a call of ReasonIterations that ends after `seconds`."""
        return self.reasoning.ReasonIterations(request, timeout=seconds, metadata=self._metadata())

    def _raise_if_closed(self) -> None:
        if self._is_closed:
            raise RuntimeError("the client is closed")

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return authorization((self._token() if callable(self._token) else self._token) or "")


def _channel(connection: Connection) -> grpc.Channel:
    credentials = connection.credentials()
    if credentials is None:
        return grpc.insecure_channel(connection.target, options=connection.channel_arguments())
    return grpc.secure_channel(connection.target, credentials, options=connection.channel_arguments())
