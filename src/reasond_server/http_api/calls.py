"""One JSON-RPC call from its params to its answer: who calls, may they, what do they ask, how did it end.

The order never changes: the method exists, params are named, the token is verified, the permission is
there, and only then are the other params looked at.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from reasond_server.access import audit
from reasond_server.access.peers import Peers
from reasond_server.access.tokens import build_missing_token_error, parse_bearer_token
from reasond_server.errors import (
    InternalError,
    InvalidRequestError,
    MethodNotFoundError,
    ReasondError,
    Violation,
    shown,
)
from reasond_server.http_api.credentials import take_token
from reasond_server.http_api.cursors import read_cursor
from reasond_server.http_api.failures import error_object, failure_of
from reasond_server.http_api.params import read_params
from reasond_server.telemetry.observers import UNOBSERVED
from reasond_server.telemetry.scope import note_caller
from reasond_server.violations import nearest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from reasond_server.access.permissions import Operation
    from reasond_server.http_api.exchange import Exchange
    from reasond_server.http_api.jsonrpc import Params
    from reasond_server.http_api.methods import Method, Methods
    from reasond_server.telemetry.observers import CallObserver
    from reasond_server.types import Principal, StreamEvent

TRANSPORT: Final = "jsonrpc"
_log = logging.getLogger("reasond.http")


class Gate:
    """Who may call what: `authenticate` turns a token into a principal, `require` refuses operations."""

    def __init__(
        self,
        *,
        authenticate: Callable[[str], Awaitable[Principal]],
        require: Callable[[Principal, Operation], None],
        peers: Peers | None = None,
    ) -> None:
        self._authenticate = authenticate
        self._require = require
        self._peers = peers or Peers()

    async def look_at_header(self, exchange: Exchange) -> None:
        """Verify the token in the header, if there is one, before anything is read that a stranger may have sent.

        Raises:
            AccessError: it is not valid; that stands in the audit log.
        """
        try:
            token = parse_bearer_token(exchange.headers.getlist(b"authorization"))
            if token:
                await self._authenticate(token)
        except ReasondError as error:
            audit.log_denied(audit.UNREAD, error, call_id=exchange.request_id)
            raise

    async def admit(
        self, params: Mapping[str, Any], operation: Operation, exchange: Exchange
    ) -> tuple[Principal, Mapping[str, Any]]:
        """Return who calls, by the token or else by the client certificate, and the params without the token.

        What is refused here stands in the audit log.

        Raises:
            AccessError: there is no token, it is not valid, or does not grant `operation`.
        """
        principal: Principal | None = None
        try:
            token, arguments = take_token(params, exchange.headers.getlist(b"authorization"))
            principal = await self._authenticate(token) if token else self._peers.recognise(exchange.peer_uris)
            if principal is None:
                raise build_missing_token_error()
            exchange.subject = principal.subject
            self._require(principal, operation)
        except ReasondError as error:
            audit.log_denied(operation, error, principal=principal, call_id=exchange.request_id)
            raise
        note_caller()
        return principal, arguments


class Calls:
    """The calls of one HTTP request; the handler behind `jsonrpc.dispatch`."""

    def __init__(
        self, *, methods: Methods, gate: Gate, exchange: Exchange, observer: CallObserver = UNOBSERVED
    ) -> None:
        self._methods = methods
        self._gate = gate
        self._exchange = exchange
        self._observer = observer

    def call(self, method: str, params: Params) -> Awaitable[Mapping[str, Any]]:
        """Run one call to its end; return the member of its answer."""
        return self.open(method).answer(params)

    def open(self, method: str) -> Call:
        """Return a call of `method` that has not begun."""
        return Call(
            name=method, methods=self._methods, gate=self._gate, exchange=self._exchange, observer=self._observer
        )

    def refuse(self, error: ReasondError) -> Mapping[str, Any]:
        """Return the error object for what is not a call at all."""
        self._observer.call_failed(TRANSPORT, error.declaration.name)
        return note_failure(error, self._exchange, "jsonrpc")


class Call:
    """One call. It learns who calls on the way, because what a failed run left is for its owner only."""

    def __init__(
        self, *, name: str, methods: Methods, gate: Gate, exchange: Exchange, observer: CallObserver = UNOBSERVED
    ) -> None:
        self._observer = observer
        self._name = name
        self._methods = methods
        self._gate = gate
        self._exchange = exchange
        self._principal: Principal | None = None
        self._decision: audit.Decision | None = None

    async def answer(self, params: Params) -> Mapping[str, Any]:
        """Run the call; return `{"result": ...}` or `{"error": ...}`."""
        code, since_s, failure = "CANCELLED", time.monotonic(), None
        try:
            method = self._method()
            principal, arguments = await self._admitted(method.operation, params)
            answer = {"result": await method.run(principal, read_params(method.params, arguments))}
            code = "OK"
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - every failure becomes an answer
            failure = failure_of(error)
            code = failure.declaration.grpc_status
            return {"error": await self.explain(failure)}
        finally:
            self._note_end(code, since_s)
            # It leads back to this frame: the params would stay until the collector comes round.
            del failure
        return answer

    async def events(self, params: Params, last_event_id: str | None) -> AsyncGenerator[StreamEvent, None]:
        """Yield the events of the execution that the call starts, or of the one that `last_event_id` names.

        A client that connects again may send the call that it began with: what it asked is not asked again.

        Raises:
            ReasondError: the call was refused, or the run failed.
        """
        code, since_s = "CANCELLED", time.monotonic()
        self._observer.stream_opened(TRANSPORT)
        try:
            async with aclosing(self._events(params, last_event_id)) as events:
                async for event in events:
                    yield event
            code = "OK"
        except Exception as error:
            code = self._failed(error)
            raise
        finally:
            self._observer.stream_closed(TRANSPORT)
            self._note_end(code, since_s)

    async def _events(self, params: Params, last_event_id: str | None) -> AsyncGenerator[StreamEvent, None]:
        method = self._method()
        streaming = method.streaming
        if streaming is None:
            raise InternalError(f"the method {self._name!r} has no events")
        principal, arguments = await self._admitted(streaming.operation, params)
        wanted = read_params(method.params, arguments)
        cursor = None if last_event_id is None else read_cursor(last_event_id)
        events = streaming.open(principal, wanted, cursor)
        async with aclosing(events):
            async for event in events:
                yield event

    async def explain(self, error: ReasondError) -> dict[str, Any]:
        """Return the error object for how the call failed, with what the run had done if it was one."""
        self._decide(error)
        partial = None
        if error.execution_id and self._principal is not None:
            partial = await self._left_by(self._principal, error.execution_id)
        self._observer.call_failed(TRANSPORT, error.declaration.name)
        return note_failure(error, self._exchange, self._name, partial=partial)

    def _failed(self, error: Exception) -> str:
        """Return the code of how the call failed, which the audit log is told of."""
        failure = failure_of(error)
        self._decide(failure)
        return failure.declaration.grpc_status

    def _decide(self, error: ReasondError) -> None:
        """Let the audit log say how the call failed, once somebody was let in."""
        if self._decision is not None:
            self._decision.end(error)

    def _note_end(self, code: str, since_s: float) -> None:
        """Note that the call is over; whoever was let in and left before the end was allowed what was asked."""
        if self._decision is not None:
            self._decision.allow()
        self._observer.call_ended(TRANSPORT, self._name, code, time.monotonic() - since_s)

    def _method(self) -> Method:
        """Return the method that is called."""
        method = self._methods.get(self._name)
        if method is None:
            # What the caller wrote is not repeated in the access log.
            self._exchange.methods.append("unknown")
            hint = nearest(self._name, self._methods.names)
            raise MethodNotFoundError(f"Method not found: {shown(self._name)}{hint}")
        self._exchange.methods.append(self._name)
        return method

    async def _admitted(self, operation: Operation, params: Params) -> tuple[Principal, Mapping[str, Any]]:
        """Return who calls, and the params without the token; that they may is a decision that has begun."""
        if isinstance(params, list):
            raise InvalidRequestError.of(Violation(field="params", description="must be an object with named members"))
        principal, arguments = await self._gate.admit(params, operation, self._exchange)
        self._principal = principal
        self._decision = audit.begin(operation, principal=principal, call_id=self._exchange.request_id)
        return principal, arguments

    async def _left_by(self, principal: Principal, execution_id: str) -> dict[str, Any] | None:
        """Return the partial result of an execution; None where it is no longer kept."""
        try:
            return await self._methods.read_partial(principal, execution_id)
        except ReasondError:
            return None


def note_failure(
    error: ReasondError, exchange: Exchange, name: str, *, partial: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return `error` as an error object; note it for the access log, and write a fault with its traceback."""
    shown_error = error_object(error, request_id=exchange.request_id, partial=partial)
    exchange.code = shown_error["code"]
    exchange.reason, exchange.is_fault = error.declaration.name, error.declaration.is_fault
    if exchange.reason == "INTERNAL":
        _log.error("%s failed", shown(name), exc_info=error, extra={"call_id": exchange.request_id})
    return shown_error
