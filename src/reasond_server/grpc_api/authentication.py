"""The layer of a handler that rejects calls without a verified token or without the permission for the method."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from reasond_server.access import audit
from reasond_server.access.peers import Peers
from reasond_server.access.tokens import build_missing_token_error, parse_bearer_token
from reasond_server.errors.base import InternalError, ReasondError
from reasond_server.grpc_api.guard import RpcCall, get_current_call
from reasond_server.grpc_api.handlers import Behaviour, Context, Handler, wrap_handler
from reasond_server.grpc_api.load_reports import LOAD_SERVICE
from reasond_server.telemetry.scope import note_caller

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from reasond_server.access.permissions import Operation
    from reasond_server.types import Principal

EXEMPT_SERVICES: Final = frozenset(
    {
        LOAD_SERVICE,
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }
)
"""Probes, tools and load balancers call these without a token; they reveal nothing about any run."""

_HINT: Final = "Send metadata 'authorization: Bearer <token>'"


class Authentication:
    """Verifies the bearer token of every RPC and checks that its principal may call the method.

    The handler inside must not have read the request: the message of a caller who is refused is never read.
    `operations` maps the path of each RPC to the operation that needs permission. `authenticate` converts a token into
    a principal; `require` rejects a principal that lacks the permission for an operation. The token is not stored.
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

    def wrap(self, method: str, handler: Handler) -> Handler:
        """Return the handler of `method` behind the check; as it is if the method is exempt.

        Raises:
            InternalError: no service declares a permission for it.
        """
        if method.removeprefix("/").partition("/")[0] in EXEMPT_SERVICES:
            return handler
        operation = self._operations.get(method)
        if operation is None:
            raise InternalError(f"no service declares a permission for {method}")
        return wrap_handler(handler, partial(self._add_check, operation))

    def _add_check(self, operation: Operation, run: Behaviour) -> Behaviour:
        async def serve(requests: object, context: Context) -> object:
            call = get_current_call()
            try:
                call.principal = await self._identify(call, context)
                self._require(call.principal, operation)
            except ReasondError as error:
                audit.log_denied(operation, error, principal=call.principal, call_id=call.call_id)
                raise
            note_caller("grpc")
            decision = audit.begin(operation, principal=call.principal, call_id=call.call_id)
            try:
                return await run(requests, context)
            except ReasondError as error:
                decision.end(error)
                raise
            finally:
                decision.allow()

        return serve

    async def _identify(self, call: RpcCall, context: Context) -> Principal:
        """Return the principal of the call's token or, without a token, of its client certificate.

        Raises:
            TokenMissingError: there is neither.
            TokenInvalidError: the headers are not one `Bearer <token>`.
        """
        tokens, call.tokens = call.tokens, ()
        if tokens:
            return await self._authenticate(parse_bearer_token(tokens))
        principal = self._peers.recognise(_find_peer_uris(context)) if self._peers.has_rules else None
        if principal is None:
            raise build_missing_token_error(_HINT)
        return principal


def _find_peer_uris(context: Context) -> list[str]:
    """Return the URIs of the peer's verified certificate; empty without a certificate."""
    names = context.auth_context().get("x509_subject_alternative_name", ())
    return [name.decode("utf-8", "replace") for name in names if b"://" in name]
