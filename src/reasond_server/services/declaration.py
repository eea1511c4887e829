"""The declaration of a service, and the parts of a running service for both transports."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from reasond_server.access.permissions import Operation
from reasond_server.http_api.http_calls import Method
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from reasond_server.grpc_api.handlers import MethodTable
    from reasond_server.http_api.params import Params
    from reasond_server.types import Principal


@value
class ServiceDeclaration:
    """One service as it is known before anything runs.

    Attributes:
        name: its full name in the protos.
        permissions: the permission that each of its RPCs needs, by the name of the RPC.
        or_permissions: other permissions of which one is enough for an RPC, by its name; the core then decides.
        methods: its JSON-RPC methods, each with the equivalent RPC.
        aliases: the methods that stand for one strategy, installed or not, with its name (seed 000 FR-6.4).
    """

    name: str
    permissions: Mapping[str, str]
    or_permissions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    methods: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def operations(self) -> Mapping[str, Operation]:
        """The operation for which each RPC needs permission, by gRPC path."""
        return {f"/{self.name}/{rpc}": self.operation(rpc) for rpc in self.permissions}

    def operation(self, rpc: str) -> Operation:
        """Return the operation for which `rpc` needs permission."""
        return Operation(name=rpc, permission=self.permissions[rpc], or_permissions=self.or_permissions.get(rpc, ()))

    def find_operation(self, method: str) -> Operation:
        """Return the operation for which the JSON-RPC method `method` needs permission."""
        return self.operation(self.methods[method])

    def method(
        self, name: str, params: type[Params], run: Callable[[Principal, Any], Awaitable[dict[str, Any]]]
    ) -> Method:
        """Return the JSON-RPC method `name`, which only answers."""
        return Method(operation=self.find_operation(name), params=params, run=run)


@value
class Service:
    """A running service: `register` adds its servicer to a gRPC server, `methods` serve JSON-RPC."""

    declaration: ServiceDeclaration
    register: Callable[[MethodTable], None]
    methods: Mapping[str, Method]
