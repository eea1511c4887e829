"""The asynchronous client's connection: a channel made on first use, the token of each call, its answer."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

import grpc

from reasond.async_stream import raise_if_only_the_call_was_cancelled
from reasond.connection import authorization
from reasond.errors import error_from
from reasond.v1.agent_service_pb2_grpc import AgentServiceStub
from reasond.v1.reasoning_service_pb2_grpc import ReasoningServiceStub

if TYPE_CHECKING:
    from reasond.async_stream import AsyncCall
    from reasond.connection import Connection
    from reasond.v1.agent_service_pb2_grpc import AgentServiceAsyncStub
    from reasond.v1.reasoning_service_pb2 import ReasonIterationsRequest
    from reasond.v1.reasoning_service_pb2_grpc import ReasoningServiceAsyncStub

AsyncToken: TypeAlias = str | Callable[[], str | Awaitable[str]]
RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bound:
    """A channel, its stubs, and the event loop that they belong to."""

    loop: asyncio.AbstractEventLoop
    channel: grpc.aio.Channel
    reasoning: ReasoningServiceAsyncStub
    agents: AgentServiceAsyncStub


class AsyncLink:
    """Carries the calls of one `AsyncClient`."""

    def __init__(self, connection: Connection, token: AsyncToken | None) -> None:
        self.connection = connection
        self._token = token
        self._bound: _Bound | None = None
        self._is_closed = False

    @property
    def reasoning(self) -> ReasoningServiceAsyncStub:
        """The stub of the reasoning service; raises RuntimeError in another event loop or after closing."""
        return self._connected().reasoning

    @property
    def agents(self) -> AgentServiceAsyncStub:
        """The stub of the agent service; raises RuntimeError in another event loop or after closing."""
        return self._connected().agents

    async def close(self) -> None:
        """Cancel the calls that still run and close the channel."""
        self._is_closed = True
        bound, self._bound = self._bound, None
        if bound is not None:
            await bound.channel.close()

    async def answer(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT],
        request: RequestT,
        timeout_s: float | None,
    ) -> ResponseT:
        """Call `method` and return its answer; raises ReasondError where it fails."""
        seconds = self.connection.deadline_s(timeout_s)
        metadata = await self._metadata()
        try:
            return await method(request, timeout=seconds, metadata=metadata)
        except grpc.aio.AioRpcError as failure:
            raise error_from(failure) from failure
        except asyncio.CancelledError:
            raise_if_only_the_call_was_cancelled()
            raise

    async def open_events(self, request: ReasonIterationsRequest, seconds: float | None) -> AsyncCall:
        """Begin a call of ReasonIterations that ends after `seconds`."""
        metadata = await self._metadata()
        return self.reasoning.ReasonIterations(request, timeout=seconds, metadata=metadata)

    def _connected(self) -> _Bound:
        if self._is_closed:
            raise RuntimeError("the client is closed")
        loop = asyncio.get_running_loop()
        if self._bound is None:
            # made on first use, because a channel belongs to the event loop that runs when it is made
            channel = self._channel()
            self._bound = _Bound(
                loop=loop,
                channel=channel,
                reasoning=cast("ReasoningServiceAsyncStub", ReasoningServiceStub(channel)),
                agents=cast("AgentServiceAsyncStub", AgentServiceStub(channel)),
            )
        if self._bound.loop is not loop:
            raise RuntimeError("the client belongs to another event loop; make one client for each")
        return self._bound

    def _channel(self) -> grpc.aio.Channel:
        target, arguments = self.connection.target, self.connection.channel_arguments()
        credentials = self.connection.credentials()
        if credentials is None:
            return grpc.aio.insecure_channel(target, options=arguments)
        return grpc.aio.secure_channel(target, credentials, options=arguments)

    async def _metadata(self) -> tuple[tuple[str, str], ...]:
        token = self._token() if callable(self._token) else self._token
        return authorization((await token if inspect.isawaitable(token) else token) or "")
