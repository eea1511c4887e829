"""The methods of services over HTTP, and one call of a method from its params to its answer.

The order of checks in a call is fixed: the method exists, params are named, the token is valid, the permission is
granted; only then the other params are checked. A `Dialect` says how a protocol writes errors; JSON-RPC is one, and
other rooms have theirs.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from reasond_server.access import audit
from reasond_server.access.peers import Peers
from reasond_server.access.tokens import build_missing_token_error, parse_bearer_token
from reasond_server.base.violations import suggest_nearest
from reasond_server.errors.access import TokenInvalidError
from reasond_server.errors.base import INTERNAL_MESSAGE, InternalError, ReasondError, show
from reasond_server.errors.limits import OverloadedError
from reasond_server.errors.request import InvalidRequestError, MethodNotFoundError
from reasond_server.http_api.exchange import Exchange, frame_event
from reasond_server.http_api.params import Params, read_params
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.telemetry.scope import note_caller
from reasond_server.types import Cursor, Principal
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence

    from reasond_server.access.permissions import Operation
    from reasond_server.http_api.jsonrpc import RpcParams


@value
class Streaming:
    """How a method streams events: the required permission, and the function that yields them.

    `open` takes the caller, the parameters, and the cursor to resume from; None starts a new execution. It yields
    `StreamEvent`s for JSON-RPC, and for another dialect what its endpoint sends. `id_name` is the key of the log's id
    in the events.
    """

    operation: Operation
    open: Callable[[Principal, Any, Cursor | None], AsyncGenerator[Any, None]]
    id_name: str = "execution_id"


@value
class Method:
    """One method: its required permission, its parameters and its function.

    `read_partial` returns the partial result of a failed execution in place of the function that `Methods` has.
    """

    operation: Operation
    params: type[Params]
    run: Callable[[Principal, Any], Awaitable[dict[str, Any]]]
    streaming: Streaming | None = None
    read_partial: Callable[[Principal, str], Awaitable[dict[str, Any]]] | None = None


class Methods:
    """The methods of all services by name.

    `read_partial` returns the partial result of a failed execution for its caller; it raises if that is deleted.
    Without it errors carry no partial result.
    """

    def __init__(
        self,
        tables: Iterable[Mapping[str, Method]],
        *,
        read_partial: Callable[[Principal, str], Awaitable[dict[str, Any]]] | None = None,
    ) -> None:
        self._methods = {name: method for table in tables for name, method in table.items()}
        self.read_partial = read_partial

    @property
    def names(self) -> Iterable[str]:
        """The names of all methods."""
        return self._methods.keys()

    def get(self, name: str) -> Method | None:
        """Return the method called `name`, if there is one."""
        return self._methods.get(name)


# Eighteen digits stay below the largest sequence number of the protos.
_CURSOR: Final = re.compile(r"([A-Za-z0-9_-]{1,128}):(0|[1-9][0-9]{0,17})", re.ASCII)


def read_cursor(last_event_id: str) -> Cursor:
    """Parse the header Last-Event-ID.

    Raises:
        InvalidRequestError: it is not the id of an event.
    """
    match = _CURSOR.fullmatch(last_event_id)
    if match is None:
        raise InvalidRequestError.at("Last-Event-ID", f"must be <execution_id>:<sequence>, got {show(last_event_id)}")
    return Cursor(execution_id=match[1], after_sequence=int(match[2]))


def check_cursor(cursor: Cursor, execution_id: str) -> None:
    """Check that the header Last-Event-ID names the execution that the call names.

    Raises:
        InvalidRequestError: it names another one.
    """
    if cursor.execution_id != execution_id:
        description = f"is of the execution {cursor.execution_id}; the call names {show(execution_id)}"
        raise InvalidRequestError.at("Last-Event-ID", description)


def take_token(params: Mapping[str, Any], authorization: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """Return the token of a call, empty if there is none, and `params` without it.

    `authorization` are the values of that header.

    Raises:
        TokenInvalidError: there are different tokens, or one is malformed.
    """
    if "auth_token" not in params:
        return parse_bearer_token(authorization), params
    rest = {name: value for name, value in params.items() if name != "auth_token"}
    given = params["auth_token"]
    if given is not None and not isinstance(given, str):
        raise TokenInvalidError("Authentication failed: 'auth_token' must be a string")
    from_header = parse_bearer_token(authorization)
    if given and from_header and given != from_header:
        raise TokenInvalidError(
            "Authentication failed: 'auth_token' in params and the Authorization header differ",
            remedy="Send one of them, or the same token in both.",
        )
    return given or from_header, rest


def build_error_object(
    error: ReasondError, *, call_id: str, partial: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return `error` as `{code, message, data}`; `partial` is the partial result of a failed execution.

    `data` is {reason, grpc_code, request_id, remedy?, retry_after_ms?, violations?, partial?}; `remedy` is set
    only if the message does not include it (`Reason.is_bare`). A fault of the server has only its request id.
    """
    reason = error.declaration
    data: dict[str, Any] = {"reason": reason.name, "grpc_code": reason.grpc_status, "request_id": call_id}
    if reason.name == "INTERNAL":
        message = INTERNAL_MESSAGE
    else:
        message = error.message if reason.is_bare else error.full_message
        data |= _build_advice(error, is_bare=reason.is_bare)
    if partial is not None:
        data["partial"] = dict(partial)
    return {"code": reason.jsonrpc_code, "message": message, "data": data}


def describe_failure(error: ReasondError, status: int, body: bytes) -> dict[str, Any]:
    """Return `error` as an endpoint sends it, {status, headers, body, frame}; `body` is JSON that describes it."""
    headers = [(b"www-authenticate", b"Bearer")] if status == _NO_TOKEN else []
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % math.ceil(error.retry_after_s)))
    return {"status": status, "headers": headers, "body": body, "frame": frame_event(body, name="error")}


def convert_failure(error: BaseException) -> ReasondError:
    """Return `error` as a ReasondError: a foreign error becomes a fault with that error as its cause.

    Raises:
        asyncio.CancelledError: the caller's own task is being cancelled; any other becomes a fault.
    """
    if isinstance(error, ReasondError):
        return error
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
        raise error
    fault = InternalError("unexpected error in the method")
    fault.__cause__ = error
    return fault


def _build_advice(error: ReasondError, *, is_bare: bool) -> dict[str, Any]:
    """Return the members that help the caller to correct the call."""
    advice: dict[str, Any] = {}
    if is_bare and error.remedy:
        advice["remedy"] = error.remedy
    if error.retry_after_ms is not None:
        advice["retry_after_ms"] = error.retry_after_ms
    if error.violations:
        advice["violations"] = [
            {"field": violation.field, "description": violation.description} for violation in error.violations
        ]
    return advice


TRANSPORT: Final = "jsonrpc"


@value
class Dialect:
    """How a protocol over HTTP calls methods.

    `transport` is its name in metrics. `describe` returns an error as its endpoint sends it, from the error, the id of
    the call and the partial result of a failed execution. With `takes_auth_token` a token may stand in the params.
    `missing_hint` tells a caller without a token where to put it.
    """

    transport: str
    describe: Callable[[ReasondError, str, Mapping[str, Any] | None], Mapping[str, Any]]
    takes_auth_token: bool = False
    missing_hint: str = "Provide 'auth_token' in params"


JSONRPC: Final = Dialect(
    transport=TRANSPORT,
    describe=lambda error, call_id, partial: build_error_object(error, call_id=call_id, partial=partial),
    takes_auth_token=True,
)
_NO_TOKEN: Final = 401
_KEY_HEADERS: Final = (b"x-api-key", b"api-key")
_log = logging.getLogger("reasond.http")


class Gate:
    """Checks access: `authenticate` converts a token into a principal, `require` checks its permission."""

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

    async def recognise_caller(self, exchange: Exchange) -> bool:
        """Return whether a valid token stands in the header, or else the client certificate is known.

        Raises:
            AccessError: the token in the header is invalid.
            OverloadedError: callers with a valid token have all connections.
        """
        token = parse_bearer_token(_list_credentials(exchange))
        if token:
            await self._authenticate(token)
        elif self._peers.recognise(exchange.peer_uris) is None:
            return False
        _require_connection(exchange)
        return True

    async def admit(
        self, params: Mapping[str, Any], operation: Operation, exchange: Exchange, *, dialect: Dialect = JSONRPC
    ) -> tuple[Principal, Mapping[str, Any]]:
        """Return the principal of the token or else of the client certificate, and the params without the token.

        Where the dialect takes no token in the params, they are returned as they are.

        The audit log records refusals.

        Raises:
            AccessError: there is no token, it is invalid, or it does not grant `operation`.
            OverloadedError: callers with a valid token have all connections.
        """
        principal: Principal | None = None
        try:
            in_header, rest = _list_credentials(exchange), params
            if dialect.takes_auth_token:
                token, rest = take_token(params, in_header)
            else:
                token = parse_bearer_token(in_header)
            principal = await self._authenticate(token) if token else self._peers.recognise(exchange.peer_uris)
            if principal is None:
                raise build_missing_token_error(dialect.missing_hint)
            exchange.subject = principal.subject
            self._require(principal, operation)
            _require_connection(exchange)
        except ReasondError as error:
            audit.log_denied(operation, error, principal=principal, call_id=exchange.call_id)
            raise
        note_caller(dialect.transport)
        return principal, rest


def _list_credentials(exchange: Exchange) -> Sequence[str]:
    """Return the values of the Authorization header, or of the headers that some clients send in its place."""
    given = exchange.headers.getlist(b"authorization")
    keys = {key for name in _KEY_HEADERS for key in exchange.headers.getlist(name)}
    return [*given, *(value for key in sorted(keys) if (value := f"Bearer {key}") not in given)]


def _require_connection(exchange: Exchange) -> None:
    """Keep the connection of a caller with a valid token until the request is answered.

    Raises:
        OverloadedError: such callers have all connections.
    """
    if not exchange.admit_connection():
        raise OverloadedError(
            "Calls are in progress on as many HTTP connections as [server] max_http_connections allows",
            remedy="Retry in a second, send calls one after the other on one connection, or have the limit raised.",
        )


class Calls:
    """The calls of one HTTP request; the handler behind `jsonrpc.dispatch`."""

    def __init__(
        self,
        methods: Methods,
        gate: Gate,
        exchange: Exchange,
        observer: Observer = UNOBSERVED,
        dialect: Dialect = JSONRPC,
    ) -> None:
        self.dialect = dialect
        self.methods = methods
        self.gate = gate
        self.exchange = exchange
        self.observer = observer

    def call(self, method: str, params: RpcParams) -> Awaitable[Mapping[str, Any]]:
        """Run one call to its end; return the `result` or `error` member of its answer."""
        return Call(method, self).answer(params)

    def open(self, method: str) -> Call:
        """Return a new call of `method`."""
        return Call(method, self)

    def refuse(self, error: ReasondError) -> Mapping[str, Any]:
        """Return the error object for an entry that is not a call."""
        self.observer.call_failed(self.dialect.transport, error.declaration.name)
        note_failure(error, self.exchange, self.dialect.transport)
        return self.dialect.describe(error, self.exchange.call_id, None)


class Call:
    """One of `calls`. It stores its principal, because only the owner may see the partial result of a failed run."""

    def __init__(self, name: str, calls: Calls) -> None:
        self._name = name
        self._calls = calls
        self._principal: Principal | None = None
        self._decision: audit.Decision | None = None

    @property
    def id_name(self) -> str:
        """The key of the log's id in the events of the call."""
        method = self._calls.methods.get(self._name)
        return method.streaming.id_name if method is not None and method.streaming is not None else ""

    async def answer(self, params: RpcParams) -> Mapping[str, Any]:
        """Run the call; return `{"result": ...}` or `{"error": ...}`."""
        code, since_s, failure = "CANCELLED", time.monotonic(), None
        try:
            method = self._require_method()
            principal, arguments = await self._admit(method.operation, params)
            answer = {"result": await method.run(principal, read_params(method.params, arguments))}
            code = "OK"
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - every failure becomes an answer
            failure = convert_failure(error)
            code = failure.declaration.grpc_status
            return {"error": await self.explain(failure)}
        finally:
            self._note_end(code, since_s)
            # It refers to this frame: the params would stay in memory until the next garbage collection.
            del failure
        return answer

    async def events(self, params: RpcParams, last_event_id: str | None) -> AsyncGenerator[Any, None]:
        """Yield the events of the execution that the call starts, or of the one that `last_event_id` names.

        They are what `Streaming.open` of the method yields.

        A client that reconnects may send its first call again: the execution is not started again.

        Raises:
            ReasondError: the call was refused, or the run failed.
        """
        code, since_s = "CANCELLED", time.monotonic()
        self._calls.observer.stream_opened(self._calls.dialect.transport)
        try:
            async with aclosing(self._open_events(params, last_event_id)) as events:
                async for event in events:
                    yield event
            code = "OK"
        except Exception as error:
            code = self._report_failure(error)
            raise
        finally:
            self._calls.observer.stream_closed(self._calls.dialect.transport)
            self._note_end(code, since_s)

    async def _open_events(self, params: RpcParams, last_event_id: str | None) -> AsyncGenerator[Any, None]:
        method = self._require_method()
        streaming = method.streaming
        if streaming is None:
            raise InternalError(f"the method {self._name!r} has no events")
        principal, arguments = await self._admit(streaming.operation, params)
        wanted = read_params(method.params, arguments)
        cursor = None if last_event_id is None else read_cursor(last_event_id)
        events = streaming.open(principal, wanted, cursor)
        async with aclosing(events):
            async for event in events:
                yield event

    async def explain(self, error: ReasondError) -> Mapping[str, Any]:
        """Return the dialect's error for the failed call, with the partial result if it was a run."""
        self._decide(error)
        partial = None
        if error.execution_id and self._principal is not None:
            partial = await self._read_left_by(self._principal, error.execution_id)
        self._calls.observer.call_failed(self._calls.dialect.transport, error.declaration.name)
        note_failure(error, self._calls.exchange, self._name)
        return self._calls.dialect.describe(error, self._calls.exchange.call_id, partial)

    def _report_failure(self, error: Exception) -> str:
        """Report the failure to the audit log, and return its code."""
        failure = convert_failure(error)
        self._decide(failure)
        return failure.declaration.grpc_status

    def _decide(self, error: ReasondError) -> None:
        """Record in the audit log how the call failed, if its caller was admitted."""
        if self._decision is not None:
            self._decision.end(error)

    def _note_end(self, code: str, since_s: float) -> None:
        """Note the end of the call; for an admitted caller, the audit log records that the call was allowed."""
        if self._decision is not None:
            self._decision.allow()
        self._calls.observer.call_ended(self._calls.dialect.transport, self._name, code, time.monotonic() - since_s)

    def _require_method(self) -> Method:
        """Return the method that is called."""
        method = self._calls.methods.get(self._name)
        if method is None:
            # The access log must not contain names that callers invent.
            self._calls.exchange.methods.append("unknown")
            hint = suggest_nearest(self._name, self._calls.methods.names)
            raise MethodNotFoundError(f"Method not found: {show(self._name)}{hint}")
        self._calls.exchange.methods.append(self._name)
        return method

    async def _admit(self, operation: Operation, params: RpcParams) -> tuple[Principal, Mapping[str, Any]]:
        """Return the principal and the params without the token, and begin the audit record of the decision."""
        if isinstance(params, list):
            raise InvalidRequestError.at("params", "must be an object with named members")
        calls = self._calls
        principal, arguments = await calls.gate.admit(params, operation, calls.exchange, dialect=calls.dialect)
        self._principal = principal
        self._decision = audit.begin(operation, principal=principal, call_id=calls.exchange.call_id)
        return principal, arguments

    async def _read_left_by(self, principal: Principal, execution_id: str) -> dict[str, Any] | None:
        """Return the partial result of an execution; None if it is no longer stored."""
        method = self._calls.methods.get(self._name)
        read = (method and method.read_partial) or self._calls.methods.read_partial
        if read is None:
            return None
        try:
            return await read(principal, execution_id)
        except ReasondError:
            return None


def note_failure(error: ReasondError, exchange: Exchange, name: str) -> None:
    """Note `error` for the access log, and log a fault with its traceback."""
    declared = error.declaration
    exchange.code = declared.jsonrpc_code
    exchange.reason, exchange.is_fault = declared.name, declared.is_fault
    if exchange.reason == "INTERNAL":
        _log.error("%s failed", show(name), exc_info=error, extra={"call_id": exchange.call_id})
