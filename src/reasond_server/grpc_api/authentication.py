"""The interceptor that rejects calls without a verified token or without the permission for the method."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import grpc

from reasond_server.access import audit
from reasond_server.access.peers import Peers
from reasond_server.access.tokens import build_missing_token_error, parse_bearer_token
from reasond_server.errors import InternalError, ReasondError
from reasond_server.grpc_api.guard import RpcCall, current_call
from reasond_server.grpc_api.handlers import (
    Behaviour,
    Context,
    Continuation,
    Handler,
    wrap_handler,
    wrap_unread_handler,
)
from reasond_server.telemetry.scope import note_caller

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from reasond_server.access.permissions import Operation
    from reasond_server.types import Principal

EXEMPT_SERVICES: Final = frozenset(
    {
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }
)
"""Probes and tools call these without a token; they reveal nothing about any run."""

_HINT: Final = "Send metadata 'authorization: Bearer <token>'"


class Authentication(grpc.aio.ServerInterceptor):
    """Verifies the bearer token of every RPC and checks that its principal may call the method.

    `operations` maps the path of each RPC to the operation that needs permission; an RPC that is not in it is never
    served. `authenticate` converts a token into a principal; `require` rejects a principal that lacks the permission
    for an operation. The token is not stored.
    """

    def __init__(
        self,
        *,
        authenticate: Callable[[str], Awaitable[Principal]],
        require: Callable[[Principal, Operation], None],
        operations: Mapping[str, Operation],
        peers: Peers | None = None,
    ) -> None:
        self._authenticate = authenticate
        self._require = require
        self._operations = operations
        self._peers = peers or Peers()
        self._served: dict[str, _Served] = {}

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        """Return the method's handler behind the check.

        A token is verified here, before grpc reads the request: the message of an unauthenticated caller is never
        read. A call without a token may have a certificate, which the handler checks before it reads the request.
        """
        method = handler_call_details.method
        served = self._served.get(method)
        if served is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            served = self._served[method] = self._put_together(method, handler)
        if served.operation is not None:
            # The result is stored in the call, because all callers share the handler.
            call = current_call()
            await self._look_at(call, served.operation, handler_call_details.invocation_metadata or ())
            if call.refusal is not None:
                return served.refusing
        return served.handler

    def _put_together(self, method: str, handler: Handler) -> _Served:
        """Return the handlers of a method; they hold no state of a call."""
        if method.removeprefix("/").partition("/")[0] in EXEMPT_SERVICES:
            handler = wrap_unread_handler(handler, _let_in)
            return _Served(operation=None, handler=handler, refusing=handler)
        operation = self._operations.get(method)
        if operation is None:
            raise InternalError(f"no service declares a permission for {method}")
        check = partial(self._check, operation)
        # grpc reads no message of a stream-stream RPC before the handler runs.
        refusing = wrap_handler(grpc.stream_stream_rpc_method_handler(_never), check)
        return _Served(operation=operation, handler=wrap_unread_handler(handler, check), refusing=refusing)

    async def _look_at(self, call: RpcCall, operation: Operation, metadata: Iterable[tuple[str, Any]]) -> None:
        """Verify the token in the metadata of a call, and store the principal or the refusal."""
        call.is_looked_at = True
        try:
            headers = [str(value) for key, value in metadata if key == "authorization"]
            if headers or not self._peers.has_rules:
                call.principal = await self._authenticate(_token(headers))
                self._require(call.principal, operation)
        except ReasondError as error:
            # The frames of a raised error would keep the metadata, of any size, until the next garbage collection.
            call.refusal = error.copy()
        except Exception as error:  # noqa: BLE001 - the guard reports it with the request id, even a fault of the server
            call.refusal = error

    async def _check(self, operation: Operation, run: Behaviour, request: object, context: Context) -> Any:  # noqa: ANN401 - any message
        call = current_call()
        if not call.is_looked_at:
            raise InternalError(f"nobody has looked at who calls {call.method}")
        try:
            if call.refusal is not None:
                raise call.refusal
            if call.principal is None:
                call.principal = self._by_certificate(context)
                self._require(call.principal, operation)
        except ReasondError as error:
            audit.log_denied(operation, error, principal=call.principal, call_id=call.call_id)
            raise
        note_caller()
        decision = audit.begin(operation, principal=call.principal, call_id=call.call_id)
        try:
            return await run(request, context)
        except ReasondError as error:
            decision.end(error)
            raise
        finally:
            decision.allow()

    def _by_certificate(self, context: Context) -> Principal:
        """Return the principal of the client certificate.

        Raises:
            TokenMissingError: there is no certificate that identifies the caller.
        """
        principal = self._peers.recognise(_peer_uris(context))
        if principal is None:
            raise build_missing_token_error(_HINT)
        return principal


@dataclass(frozen=True, slots=True, kw_only=True)
class _Served:
    """The handlers of a method: one for permitted callers and callers without a token, one for refused callers.

    `operation` is None if the method needs no permission.
    """

    operation: Operation | None
    handler: Handler
    refusing: Handler


async def _never(_requests: object, _context: Context) -> None:
    """Do nothing: the call is always refused before."""


async def _let_in(run: Behaviour, request: object, context: Context) -> Any:  # noqa: ANN401 - any message
    return await run(request, context)


def _token(headers: Sequence[str]) -> str:
    """Return the token of a call.

    Raises:
        TokenMissingError: there is no `authorization` metadata.
        TokenInvalidError: there is more than one, or it is not `Bearer <token>`.
    """
    if not headers:
        raise build_missing_token_error(_HINT)
    return parse_bearer_token(headers)


def _peer_uris(context: Context) -> list[str]:
    """Return the URIs of the peer's verified certificate; empty without a certificate."""
    names = context.auth_context().get("x509_subject_alternative_name", ())
    return [name.decode("utf-8", "replace") for name in names if b"://" in name]
