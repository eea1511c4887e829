"""What is known about the RPC in progress: its method, its request id, who calls; reaches servicers by context."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from reasond_server.errors import InternalError

if TYPE_CHECKING:
    from reasond_server.grpc_api.handlers import Context
    from reasond_server.telemetry.propagation import TraceContext
    from reasond_server.types import Principal


@dataclass(slots=True, kw_only=True)
class RpcCall:
    """One RPC, from its headers on. `trace` is where its caller stands; `reason` and `is_fault` tell how it failed.

    `is_looked_at` is set when somebody has read who calls: then `principal` is whose token was verified, and `refusal`
    why nobody may; neither where a certificate has to tell.
    """

    method: str
    request_id: str
    trace: TraceContext | None = None
    is_looked_at: bool = False
    principal: Principal | None = None
    refusal: Exception | None = None
    reason: str = ""
    is_fault: bool = False


_CURRENT: Final[ContextVar[RpcCall]] = ContextVar("reasond_rpc_call")


def begin(call: RpcCall) -> None:
    """Make `call` the one in progress for the RPC's task; each RPC has a context of its own."""
    _CURRENT.set(call)


def current_call() -> RpcCall:
    """Return the RPC in progress.

    Raises:
        InternalError: no interceptor announced it.
    """
    call = _CURRENT.get(None)
    if call is None:
        message = "a servicer was called without the interceptors"
        raise InternalError(message)
    return call


def current_principal() -> Principal:
    """Return who calls.

    Raises:
        InternalError: the method is exempt from authentication.
    """
    call = current_call()
    if call.principal is None:
        message = f"{call.method} asks who calls but is exempt from authentication"
        raise InternalError(message)
    return call.principal


def remaining_s(context: Context) -> float | None:
    """Return the seconds until the caller's deadline; None where it set none."""
    remaining: Any = context.time_remaining()
    return None if remaining is None else float(remaining)
