"""RPC handlers: how those of any of the four kinds are wrapped, and how services add theirs to a server.

grpc.aio tells the kinds apart by inspecting the function, so every wrapper is a coroutine function; an
async-generator handler is driven and closed inside the RPC's own task (grpc issues 28728 and 42295).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import grpc

from reasond_server.errors import InvalidRequestError

if TYPE_CHECKING:
    from reasond_server.access.permissions import Operation

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Behaviour: TypeAlias = Callable[[Any, Any], Any]
Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]"
Around: TypeAlias = Callable[[Behaviour, Any, Any], Awaitable[Any]]

_FACTORIES: Final[dict[tuple[bool, bool], Callable[..., Handler]]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


def wrap_handler(handler: Handler, around: Around) -> Handler:
    """Return a handler of its kind that serves by `around(run, request, context)`; `run` does what `handler` does."""
    run = runner_of(behaviour_of(handler), is_stream=handler.response_streaming)

    # A plain function: grpc.aio asks what it is with every call, and takes longer to find out of anything else.
    async def serve(request: object, context: Context) -> object:
        try:
            return await around(run, request, context)
        finally:
            # grpc.aio keeps what a refused call raises, and this frame with it, until the collector comes round.
            del request

    return with_behaviour(handler, serve, decode=handler.request_deserializer, encode=handler.response_serializer)


def wrap_unread_handler(handler: Handler, around: Around) -> Handler:
    """Return `handler` behind `around`, of a kind whose only message grpc does not read by itself.

    Of the other kind grpc reads the message before `around` runs, and if the call ends without one it forgets the call:
    the client never gets a status. On the wire both are the same: one message is a stream of one. A handler of one
    message has to decode it by itself; one of a stream is wrapped as it is.
    """
    if handler.request_streaming:
        return wrap_handler(handler, around)
    run_inner = runner_of(behaviour_of(handler), is_stream=handler.response_streaming)

    async def read_and_run(_requests: object, context: Context) -> object:
        request = await context.read()
        if request is grpc.aio.EOF:
            raise InvalidRequestError(
                "Request validation failed: the call ended without a message",
                remedy="Send one message, an empty one at least.",
            )
        try:
            return await run_inner(request, context)
        finally:
            # As in `wrap_handler`.
            del request

    async def serve(requests: object, context: Context) -> object:
        return await around(read_and_run, requests, context)

    return _FACTORIES[True, handler.response_streaming](serve, None, handler.response_serializer)


def behaviour_of(handler: Handler) -> Behaviour:
    """Return the function that serves, whatever the kind."""
    found: Any = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    behaviour: Behaviour = found
    return behaviour


def with_behaviour(
    handler: Handler,
    behaviour: Behaviour,
    *,
    decode: Callable[[bytes], Any] | None,
    encode: Callable[[Any], bytes] | None,
) -> Handler:
    """Return a handler of `handler`'s kind with another function and codec; None passes bytes through."""
    return _FACTORIES[handler.request_streaming, handler.response_streaming](behaviour, decode, encode)


def runner_of(behaviour: Behaviour, *, is_stream: bool) -> Behaviour:
    """Return a function that runs `behaviour` to its end when it is awaited; what kind it is, is found out now.

    A handler of one response may be a coroutine function or a plain one; one of many writes its responses, or is an
    async generator of them.
    """
    if is_stream and inspect.isasyncgenfunction(behaviour):
        return _writing(behaviour)
    return behaviour if inspect.iscoroutinefunction(behaviour) else _awaiting(behaviour)


def _awaiting(behaviour: Behaviour) -> Behaviour:
    async def run(request: object, context: Context) -> object:
        response = behaviour(request, context)
        return await response if inspect.isawaitable(response) else response

    return run


def _writing(behaviour: Behaviour) -> Behaviour:
    async def run(request: object, context: Context) -> None:
        async with aclosing(behaviour(request, context)) as responses:
            async for response in responses:
                await context.write(response)

    return run


class GenericRegistry:
    """Takes what the `add_…Servicer_to_server` functions of generated code add to `server`.

    They add every handler twice, as a generic one and by name; here the first is enough.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Add `handlers` to the server."""
        self._server.add_generic_rpc_handlers(tuple(handlers))

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Handler]) -> None:
        """Leave them out: they are among the generic ones."""


class Declared(Protocol):
    """What a server knows of a service: its full name, and what each RPC asks permission for, by its path."""

    @property
    def name(self) -> str:
        """The full name in the protos."""

    @property
    def operations(self) -> Mapping[str, Operation]:
        """What each RPC asks permission for, by the path that it is called by."""


class GrpcService(Protocol):
    """A service that can be added to a server."""

    @property
    def declaration(self) -> Declared:
        """What is known of it before it runs."""

    @property
    def register(self) -> Callable[[GenericRegistry], None]:
        """Adds its RPCs to a server."""
