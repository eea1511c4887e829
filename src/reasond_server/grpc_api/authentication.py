"""The interceptor that lets nobody in without a verified token and the permission for the method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import grpc

from reasond_server.access import audit
from reasond_server.access.peers import Peers
from reasond_server.access.tokens import bearer_token, missing
from reasond_server.errors import ReasondError
from reasond_server.grpc_api.calls import current_call
from reasond_server.grpc_api.handlers import Context, Continuation, Handler, Run, wrapped

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from reasond_server.types import Principal

EXEMPT_SERVICES: Final = frozenset(
    {
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }
)
"""Probes and tools ask these before anybody has a token; they tell nothing about anyone's runs."""

_HINT: Final = "Send metadata 'authorization: Bearer <token>'"


class Authentication(grpc.aio.ServerInterceptor):
    """Verifies the bearer token of every RPC and asks whether its principal may call the method.

    `authenticate` turns a token into a principal; `require` refuses a principal that lacks the permission for
    an operation, which is named as the RPC is (`Reason`). The token is kept nowhere.
    """

    def __init__(
        self,
        *,
        authenticate: Callable[[str], Awaitable[Principal]],
        require: Callable[[Principal, str], None],
        peers: Peers | None = None,
    ) -> None:
        self._authenticate = authenticate
        self._require = require
        self._peers = peers or Peers()

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        """Return the method's handler behind the check."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        service, _, operation = method.removeprefix("/").partition("/")
        if handler is None or service in EXEMPT_SERVICES:
            return handler
        return wrapped(handler, lambda context, run: self._check(operation, context, run))

    async def _check(self, operation: str, context: Context, run: Run) -> Any:  # noqa: ANN401 - any message
        call = current_call()
        try:
            call.principal = await self._caller(context)
            self._require(call.principal, operation)
        except ReasondError as error:
            audit.denied(operation, error, principal=call.principal, request_id=call.request_id)
            raise
        audit.allowed(operation, principal=call.principal, request_id=call.request_id)
        return await run()

    async def _caller(self, context: Context) -> Principal:
        """Return who calls: by the token where there is one, else by the client certificate.

        Raises:
            TokenMissingError: there is no `authorization` metadata, and no certificate that says who calls.
            TokenInvalidError: there is more than one, it is not `Bearer <token>`, or the token is not good.
        """
        headers = [str(value) for key, value in context.invocation_metadata() or () if key == "authorization"]
        if headers:
            return await self._authenticate(bearer_token(headers))
        principal = self._peers.recognise(_peer_uris(context))
        if principal is None:
            raise missing(_HINT)
        return principal


def _peer_uris(context: Context) -> list[str]:
    """Return the URIs that the verified certificate of the peer names; none without one."""
    names = context.auth_context().get("x509_subject_alternative_name", ())
    return [name.decode("utf-8", "replace") for name in names if b"://" in name]
