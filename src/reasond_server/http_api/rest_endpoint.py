"""The paths below /api/v1/: every RPC at the addresses that its annotation names, called as JSON-RPC is.

The order of checks, the permissions, the limits and the audit log are those of `Call`. A stream is of server-sent
events with the messages of the RPC. The page at /openapi.json describes all of it.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote

from pydantic_core import to_json

from reasond_server.errors.base import ReasondError, Violation
from reasond_server.errors.limits import OverloadedError
from reasond_server.errors.request import InvalidRequestError, MethodNotFoundError
from reasond_server.http_api.body_reader import read_call_body
from reasond_server.http_api.connections import find_disconnect, run_unless_disconnected
from reasond_server.http_api.exchange import (
    NO_STORE,
    STREAM_HEADERS,
    RefusalError,
    find_exchange,
    find_host,
    frame_event,
    send_answer,
)
from reasond_server.http_api.http_calls import Calls, Method, Methods
from reasond_server.http_api.jsonrpc import parse_body
from reasond_server.http_api.params import NoParams
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from reasond_server.access.permissions import Operation
    from reasond_server.http_api.body_reader import BodyReader
    from reasond_server.http_api.exchange import Exchange, Receive, Scope, Send
    from reasond_server.http_api.http_calls import Dialect, Gate
    from reasond_server.http_api.params import Params
    from reasond_server.telemetry.observers import CallObserver
    from reasond_server.types import Principal

REST_ROOT: Final = "/api/v1/"
OPENAPI_PATH: Final = "/openapi.json"
_HINT: Final = f"GET {OPENAPI_PATH} describes the addresses, JSON-RPC is at {REST_ROOT}jsonrpc"
_CLOSE: Final = (b"connection", b"close")
# A longer body may have more than 1,000 messages, which take 30 ms to read.
_LONG_BYTES: Final = 4096
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
    the request `is_long`, and what is told each message of a stream; it returns the response.
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
        self, routes: Sequence[Route], dialect: Dialect, gate: Gate, body_reader: BodyReader, observer: CallObserver
    ) -> None:
        # What has a verb of its own at the end, such as :cancel, goes before a field that could hold it.
        ordered = sorted(routes, key=lambda route: ":" not in route.template)
        self._routes = [(re.compile(_make_pattern(route.template)), route) for route in ordered]
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
            headers = [(name.encode("ascii"), text.encode("ascii")) for name, text in refusal.headers.items()]
            await _send(send, {**told, "status": refusal.status, "headers": headers})

    async def _serve(self, scope: Scope, receive: Receive, send: Send, exchange: Exchange) -> None:
        """Serve the route of the request.

        Raises:
            RefusalError: there is nothing at the path, it takes other methods, or the body is not read.
        """
        route, fields = self._find(scope, exchange)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        stream = _EventStream(send)
        body = bytearray()

        async def run(caller: Principal, _params: Params) -> dict[str, Any]:
            given = await _read_fields(body)
            is_long, write = len(body) > _LONG_BYTES, stream.write
            return await route.call(
                caller, exchange.call_id, {**given, **fields}, query=query, is_long=is_long, write=write
            )

        method = Method(operation=route.operation, params=NoParams, run=run)
        calls = Calls(Methods([{route.name: method}]), self._gate, exchange, self._observer, self._dialect)
        if route.takes_body:
            host = find_host(scope)
            try:
                body = await read_call_body(
                    exchange, receive, gate=self._gate, body_reader=self._body_reader, host=host
                )
            except ReasondError as error:
                await _send(send, calls.refuse(error), _CLOSE)
                return
        try:
            await run_unless_disconnected(_answer(calls, route, stream, send), find_disconnect(scope))
        finally:
            if route.takes_body:
                self._body_reader.release(body)

    def _find(self, scope: Scope, exchange: Exchange) -> tuple[Route, Mapping[str, str]]:
        """Return the route of a request, and the fields in its path.

        Raises:
            RefusalError: there is nothing at the path, or it takes other methods.
        """
        # Undecoded: a field may hold a slash.
        path = scope["raw_path"].decode("latin-1").partition("?")[0]
        found = [(route, match) for pattern, route in self._routes if (match := pattern.fullmatch(path)) is not None]
        if not found:
            raise RefusalError(404, f"there is nothing at this address; {_HINT}")
        exchange.route = found[0][0].template
        for route, match in found:
            if route.verb == scope["method"]:
                exchange.route = route.template
                return route, {name: unquote(text) for name, text in match.groupdict().items()}
        allowed = ", ".join(dict.fromkeys(route.verb for route, _ in found))
        raise RefusalError(405, f"this address takes {allowed} only", headers={"allow": allowed})


class _EventStream:
    """An answer of server-sent events that begins with the first of them."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False

    async def begin(self) -> None:
        """Send the headers, once."""
        if not self.has_begun:
            self.has_begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})

    async def write(self, message: Mapping[str, Any]) -> None:
        """Send a message as an event."""
        await self.begin()
        await self._send({"type": "http.response.body", "body": frame_event(to_json(message)), "more_body": True})


async def _answer(calls: Calls, route: Route, stream: _EventStream, send: Send) -> None:
    """Run the call and send its answer, or the end of its stream."""
    answer = await calls.call(route.name, {})
    failure = answer.get("error")
    if failure is not None and not stream.has_begun:
        await _send(send, failure)
    elif route.is_stream:
        await stream.begin()
        await send({"type": "http.response.body", "body": b"" if failure is None else failure["frame"]})
    else:
        await send_answer(send, 200, to_json(answer["result"]), headers=[NO_STORE])


async def _read_fields(body: bytearray) -> dict[str, Any]:
    """Return the fields of a request in its body.

    Raises:
        ReasondError: it is no JSON object.
    """
    given = await parse_body(body) if body else {}
    if not isinstance(given, dict):
        raise InvalidRequestError.of(Violation(field="body", description="must be a JSON object"))
    return given


def _make_pattern(template: str) -> str:
    return re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", template)


async def _send(send: Send, answer: Mapping[str, Any], *more: tuple[bytes, bytes]) -> None:
    await send_answer(send, answer["status"], answer["body"], headers=[NO_STORE, *answer["headers"], *more])


@cache
def read_description() -> tuple[str, str]:
    """Return the description of the addresses by OpenAPI 3.1, and its ETag."""
    text = resources.files(__package__).joinpath("openapi.json").read_text("utf-8")
    return text, hashlib.sha256(text.encode()).hexdigest()[:32]
