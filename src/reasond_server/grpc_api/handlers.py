"""RPC handlers: wraps handlers of the four kinds, and adds those of services to a server.

grpc.aio inspects the function to find its kind, so every wrapper is a coroutine function; an async-generator
handler is iterated and closed inside the RPC's own task (grpc issues 28728 and 42295).
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
    """Return a handler of the same kind that calls `around(run, request, context)`; `run` runs `handler`."""
    run = runner_of(behaviour_of(handler), is_stream=handler.response_streaming)

    # A plain function: grpc.aio inspects it with every call, and other callables take longer to inspect.
    async def serve(request: object, context: Context) -> object:
        try:
            return await around(run, request, context)
        finally:
            # grpc.aio keeps the error of a refused call, and so this frame, until the next garbage collection.
            del request

    return with_behaviour(handler, serve, decode=handler.request_deserializer, encode=handler.response_serializer)


def wrap_unread_handler(handler: Handler, around: Around) -> Handler:
    """Return `handler` wrapped by `around`, as a stream handler, whose messages grpc does not read by itself.

    For a unary request, grpc reads the message before `around` runs; if the call ends without a message, grpc drops
    the call and the client never gets a status. On the wire one message equals a stream of one message. A handler of
    a unary request has to decode it by itself; a handler of a stream is wrapped as it is.
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
    """Return the function of a handler of any kind."""
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
    """Return a coroutine function that runs `behaviour` to its end; its kind is inspected only once, here.

    A handler with one response is a coroutine function or a plain function. A handler with a response stream writes
    its responses, or is an async generator.
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
    """Adds to `server` the handlers that the generated functions `add_…Servicer_to_server` register.

    They register every handler twice, as a generic handler and by name; only the generic one is added.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Add `handlers` to the server."""
        self._server.add_generic_rpc_handlers(tuple(handlers))

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Handler]) -> None:
        """Ignore them: they are registered as generic handlers too."""


class Declared(Protocol):
    """The declaration of a service: its full name, and the operation of each RPC by its path."""

    @property
    def name(self) -> str:
        """The full name in the protos."""

    @property
    def operations(self) -> Mapping[str, Operation]:
        """The operation that needs permission, for each RPC by its path."""


class GrpcService(Protocol):
    """A service that can be added to a server."""

    @property
    def declaration(self) -> Declared:
        """The declaration of the service."""

    @property
    def register(self) -> Callable[[GenericRegistry], None]:
        """Adds its RPCs to a server."""
