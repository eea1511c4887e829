"""The paths below /api/v1/: every RPC at the addresses that its annotation names, called as JSON-RPC is.

The order of checks, the permissions, the limits and the audit log are those of `Call`. A stream is of server-sent
events with the messages of the RPC, and goes on after the event that the header Last-Event-ID names. HEAD is answered
as GET, without a body. The page at /openapi.json describes all of it.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from pydantic_core import to_json

from reasond_server.errors.base import ReasondError, show
from reasond_server.errors.limits import OverloadedError
from reasond_server.errors.request import InvalidRequestError, MethodNotFoundError
from reasond_server.http_api.body_reader import read_call_body
from reasond_server.http_api.connections import find_disconnect, run_unless_disconnected
from reasond_server.http_api.exchange import (
    NO_STORE,
    STREAM_HEADERS,
    PathRoutes,
    RefusalError,
    find_exchange,
    find_host,
    frame_event,
    send_answer,
    send_described,
)
from reasond_server.http_api.http_calls import Calls, Method, Methods, check_cursor, read_cursor
from reasond_server.http_api.jsonrpc import parse_object
from reasond_server.http_api.params import NoParams
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from reasond_server.access.permissions import Operation
    from reasond_server.http_api.body_reader import BodyReader
    from reasond_server.http_api.exchange import Exchange, Receive, Scope, Send
    from reasond_server.http_api.http_calls import Dialect, Gate
    from reasond_server.http_api.params import Params
    from reasond_server.telemetry.observers import Observer
    from reasond_server.types import Cursor, Principal

REST_ROOT: Final = "/api/v1/"
OPENAPI_PATH: Final = "/openapi.json"
_HINT: Final = f"GET {OPENAPI_PATH} describes the addresses, JSON-RPC is at {REST_ROOT}jsonrpc"
_CLOSE: Final = (b"connection", b"close")
_READING: Final = {"GET": ("GET", "HEAD")}
# A longer body may have more than 4,000 messages, which take 15 ms to read.
_LONG_BYTES: Final = 16 * 1024
# Errors of the core by the statuses of HTTP that have none of their own among them.
_REFUSALS: Final[Mapping[int, type[ReasondError]]] = {
    404: MethodNotFoundError,
    405: MethodNotFoundError,
    503: OverloadedError,
}


@value
class Route:
    """One address of an RPC: the method of HTTP, and the template of the path with fields in braces.

    `call` takes the caller, the id of the call, the fields in body and path, and by name those in the `query`, whether
    the request `is_long`, the `cursor` after which a stream goes on, and what is told each message of it with its
    place; it returns the response.
    """

    verb: str
    template: str
    takes_body: bool
    is_stream: bool
    name: str
    operation: Operation
    call: Callable[..., Awaitable[dict[str, Any]]]


class RestEndpoint:
    """Serves the `routes`; `dialect` writes errors as {status, headers, body, frame}."""

    def __init__(
        self, routes: Sequence[Route], dialect: Dialect, gate: Gate, body_reader: BodyReader, observer: Observer
    ) -> None:
        served = [(verb, route.template, route) for route in routes for verb in _READING.get(route.verb, (route.verb,))]
        self._routes = PathRoutes(served, hint=_HINT)
        self._dialect = dialect
        self._gate = gate
        self._body_reader = body_reader
        self._observer = observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        exchange = find_exchange(scope)
        exchange.rpc_system = self._dialect.transport
        try:
            await self._serve(scope, receive, send, exchange)
        except RefusalError as refusal:
            error = _REFUSALS.get(refusal.status, InvalidRequestError)(refusal.message)
            told = self._dialect.describe(error, exchange.call_id, None)
            await send_described(send, {**told, "status": refusal.status, "headers": refusal.raw_headers})

    async def _serve(self, scope: Scope, receive: Receive, send: Send, exchange: Exchange) -> None:
        """Serve the route of the request.

        Raises:
            RefusalError: there is nothing at the path, it takes other methods, or the body is not read.
        """
        route, fields = self._routes.find(scope, exchange)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        stream = _EventStream(send, has_events=scope["method"] != "HEAD")
        body = bytearray()

        async def run(caller: Principal, _params: Params) -> dict[str, Any]:
            if route.takes_body and query:
                description = "is no parameter of this address: its fields stand in the body"
                raise InvalidRequestError.at(show(query[0][0]), description)
            cursor = _read_cursor(exchange, fields) if route.is_stream else None
            given = {**(await parse_object(body) if body else {}), **fields}
            is_long, write = len(body) > _LONG_BYTES, stream.write
            with suppress(_HeadSentError):
                return await route.call(
                    caller, exchange.call_id, given, query=query, is_long=is_long, cursor=cursor, write=write
                )
            return {}

        method = Method(operation=route.operation, params=NoParams, run=run)
        calls = Calls(Methods([{route.name: method}]), self._gate, exchange, self._observer, self._dialect)
        if route.takes_body:
            host = find_host(scope)
            try:
                body = await read_call_body(
                    exchange, receive, gate=self._gate, body_reader=self._body_reader, host=host
                )
            except ReasondError as error:
                await send_described(send, calls.refuse(error), _CLOSE)
                return
        try:
            await run_unless_disconnected(_answer(calls, route, stream, send), find_disconnect(scope))
        finally:
            if route.takes_body:
                self._body_reader.release(body)


def _read_cursor(exchange: Exchange, fields: Mapping[str, str]) -> Cursor | None:
    """Return after which event a stream goes on; None if the client does not say.

    Raises:
        InvalidRequestError: it names none, or one of another execution than the path.
    """
    place = exchange.headers.first(b"last-event-id")
    cursor = None if place is None else read_cursor(place)
    if cursor is not None and "execution_id" in fields:
        check_cursor(cursor, fields["execution_id"])
    return cursor


class _HeadSentError(Exception):
    """The headers of a stream are sent, and its client wants no more."""


class _EventStream:
    """An answer of server-sent events that begins with the first of them; without `has_events` it ends there."""

    def __init__(self, send: Send, *, has_events: bool) -> None:
        self._send = send
        self._has_events = has_events
        self.has_begun = False

    async def begin(self) -> None:
        """Send the headers, once."""
        if not self.has_begun:
            self.has_begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})

    async def write(self, message: Mapping[str, Any], place: str) -> None:
        """Send a message as an event, with the id by which a client resumes after it.

        Raises:
            _HeadSentError: no events are wanted.
        """
        await self.begin()
        if not self._has_events:
            raise _HeadSentError
        event = frame_event(to_json(message), place=place)
        await self._send({"type": "http.response.body", "body": event, "more_body": True})


async def _answer(calls: Calls, route: Route, stream: _EventStream, send: Send) -> None:
    """Run the call and send its answer, or the end of its stream."""
    answer = await calls.call(route.name, {})
    failure = answer.get("error")
    if failure is not None and not stream.has_begun:
        await send_described(send, failure)
    elif route.is_stream:
        await stream.begin()
        await send({"type": "http.response.body", "body": b"" if failure is None else failure["frame"]})
    else:
        await send_answer(send, 200, to_json(answer["result"]), headers=[NO_STORE])


@cache
def read_description() -> tuple[str, str]:
    """Return the description of the addresses by OpenAPI 3.1, and its ETag."""
    text = resources.files(__package__).joinpath("openapi.json").read_text("utf-8")
    return text, hashlib.sha256(text.encode()).hexdigest()[:32]
