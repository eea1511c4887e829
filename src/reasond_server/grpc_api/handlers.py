"""RPC handlers: wraps handlers of the four kinds, and keeps those of a server by their paths.

grpc.aio inspects the function to find its kind, so every wrapper is a coroutine function; an async-generator
handler is iterated and closed inside the RPC's own task (grpc issues 28728 and 42295).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import grpc

if TYPE_CHECKING:
    from reasond_server.access.permissions import Operation

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Behaviour: TypeAlias = Callable[[Any, Any], Any]
Layer: TypeAlias = Callable[[str, Handler], Handler]
Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]

_FACTORIES: Final[dict[tuple[bool, bool], Callable[..., Handler]]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


def wrap_handler(handler: Handler, around: Callable[[Behaviour], Behaviour]) -> Handler:
    """Return a handler of the same kind, whose function is what `around` makes of the function of `handler`.

    Both are coroutine functions. `around` returns a plain function and no other callable: grpc.aio inspects it with
    every call, and other callables take longer to inspect.
    """
    return make_handler(
        around(make_runner(find_behaviour(handler), is_stream=handler.response_streaming)),
        reads_stream=handler.request_streaming,
        writes_stream=handler.response_streaming,
        decode=handler.request_deserializer,
        encode=handler.response_serializer,
    )


def find_behaviour(handler: Handler) -> Behaviour:
    """Return the function of a handler of any kind."""
    found: Any = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    behaviour: Behaviour = found
    return behaviour


def make_handler(
    behaviour: Behaviour,
    *,
    reads_stream: bool,
    writes_stream: bool,
    decode: Callable[[bytes], Any] | None = None,
    encode: Callable[[Any], bytes] | None = None,
) -> Handler:
    """Return a handler of one of the four kinds; None for a codec passes bytes through."""
    return _FACTORIES[reads_stream, writes_stream](behaviour, decode, encode)


def make_runner(behaviour: Behaviour, *, is_stream: bool) -> Behaviour:
    """Return a coroutine function that runs `behaviour` to its end; its kind is inspected only once, here.

    A handler with one response is a coroutine function or a plain function. A handler with a response stream writes
    its responses, or is an async generator.
    """
    if is_stream and inspect.isasyncgenfunction(behaviour):
        return _make_writing(behaviour)
    return behaviour if inspect.iscoroutinefunction(behaviour) else _make_awaiting(behaviour)


def _make_awaiting(behaviour: Behaviour) -> Behaviour:
    async def run(request: object, context: Context) -> object:
        response = behaviour(request, context)
        return await response if inspect.isawaitable(response) else response

    return run


def _make_writing(behaviour: Behaviour) -> Behaviour:
    async def run(request: object, context: Context) -> None:
        async with aclosing(behaviour(request, context)) as responses:
            async for response in responses:
                await context.write(response)

    return run


class MethodTable(grpc.GenericRpcHandler):
    """The methods of one server by their paths, each wrapped once by the `layers`, of which the first is innermost.

    It is the only handler of the server: for methods that are registered by name, grpc.aio has one waiting task for
    each method, and wakes all of them for every call; and interceptors would find the same handler for every call.
    `begin` gets path and metadata of each call, in the call's task; it may return a handler that refuses the call.
    `unknown` serves the paths that nobody registered.
    """

    def __init__(self, *layers: Layer, begin: Callable[[str, Metadata], Handler | None], unknown: Handler) -> None:
        self._layers = layers
        self._begin = begin
        self._unknown = unknown
        self._handlers: dict[str, Handler] = {}

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Ignore them: the generated functions `add_…Servicer_to_server` register every handler by its name too."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Handler]) -> None:
        """Add the `handlers` of a service by their names."""
        for name, handler in handlers.items():
            path = f"/{service}/{name}"
            for wrap in self._layers:
                handler = wrap(path, handler)  # noqa: PLW2901 - one layer after another
            self._handlers[path] = handler

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        """Begin the call, and return the handler of its method."""
        path = handler_call_details.method
        refusal = self._begin(path, handler_call_details.invocation_metadata or ())
        return self._handlers.get(path, self._unknown) if refusal is None else refusal


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
    def register(self) -> Callable[[MethodTable], None]:
        """Adds its RPCs to a server."""
