"""Where generated code adds services to a server: once each, as generic handlers, because a name of its own costs.

grpc.aio waits for the next call with one task for each method that is registered by name, and makes all those tasks
wait anew for every call. Generic handlers serve the same methods through one waiting task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import grpc

    from reasond_server.access.permissions import Operation
    from reasond_server.grpc_api.handlers import Handler


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
        ...

    @property
    def operations(self) -> Mapping[str, Operation]:
        """What each RPC asks permission for, by the path that it is called by."""
        ...


class GrpcService(Protocol):
    """A service that can be added to a server."""

    @property
    def declaration(self) -> Declared:
        """What is known of it before it runs."""
        ...

    @property
    def register(self) -> Callable[[GenericRegistry], None]:
        """Adds its RPCs to a server."""
        ...
