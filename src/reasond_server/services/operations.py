"""google.longrunning.Operations: ExecutionService once more, for clients that wait for operations (AIP-151)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reasond_server.access.permissions import EXECUTE, EXECUTE_REPAIRS, EXECUTE_TURNS, READ_EXECUTIONS, READ_TURNS
from reasond_server.grpc_api.operations_servicer import SERVICE, OperationsServicer
from reasond_server.services.declaration import Service, ServiceDeclaration

if TYPE_CHECKING:
    from reasond_server.executions.desk import ExecutionDesk

_READING: Final = ("GetOperation", "ListOperations", "WaitOperation")
_ENDING: Final = ("CancelOperation", "DeleteOperation")
DECLARATION: Final = ServiceDeclaration(
    name=SERVICE.full_name,
    permissions={**dict.fromkeys(_READING, READ_EXECUTIONS), **dict.fromkeys(_ENDING, EXECUTE)},
    or_permissions={
        **dict.fromkeys(_READING, (READ_TURNS,)),
        **dict.fromkeys(_ENDING, (EXECUTE_REPAIRS, EXECUTE_TURNS)),
    },
)


def build_operations_service(observed: ExecutionDesk, used: ExecutionDesk) -> Service:
    """Return the service for gRPC; the desks are those of `OperationsServicer`."""
    servicer = OperationsServicer(observed=observed, used=used)
    return Service(declaration=DECLARATION, register=servicer.register, methods={})
