"""The paths below /a2a/: JSON-RPC at the root, and HTTP+JSON below /a2a/v1, over the same operations.

A stream is of server-sent events with the `id` by which a client resumes: it sends it as Last-Event-ID to
SubscribeToTask, or with its first message again.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from pydantic_core import to_json

from reasond_server.errors.base import ReasondError, show
from reasond_server.http_api.body_reader import read_call_body
from reasond_server.http_api.connections import find_disconnect, run_unless_disconnected
from reasond_server.http_api.exchange import (
    NO_STORE,
    RefusalError,
    find_exchange,
    find_host,
    frame_event,
    send_answer,
    send_described,
)
from reasond_server.http_api.http_calls import Calls, Dialect
from reasond_server.http_api.jsonrpc import parse_body, parse_object, read_request
from reasond_server.http_api.path_routes import PathRoutes
from reasond_server.protocols.a2a.a2a_errors import (
    CONTENT_TYPE_NOT_SUPPORTED,
    VERSION_NOT_SUPPORTED,
    A2aError,
    describe_http_error,
    describe_http_refusal,
    describe_rpc_error,
)
from reasond_server.protocols.openai_endpoint import HEARTBEAT, stream_call
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from reasond_server.http_api.body_reader import BodyReader
    from reasond_server.http_api.exchange import Exchange, Receive, Scope, Send
    from reasond_server.http_api.http_calls import Gate, Methods
    from reasond_server.http_api.jsonrpc import RpcId, RpcParams
    from reasond_server.protocols.a2a.task_service import Update
    from reasond_server.telemetry.observers import CallObserver

A2A_ROOT: Final = "/a2a/"
HTTP_ROOT: Final = "/a2a/v1"
_ROUTES: Final = (
    ("POST", "/message:send", "SendMessage"),
    ("POST", "/message:stream", "SendStreamingMessage"),
    ("GET", "/tasks", "ListTasks"),
    ("GET", "/tasks/{id}", "GetTask"),
    ("POST", "/tasks/{id}:cancel", "CancelTask"),
    ("POST", "/tasks/{id}:subscribe", "SubscribeToTask"),
    ("GET", "/tasks/{id}:subscribe", "SubscribeToTask"),
    ("POST", "/tasks/{id}/pushNotificationConfigs", "CreateTaskPushNotificationConfig"),
    ("GET", "/tasks/{id}/pushNotificationConfigs", "ListTaskPushNotificationConfigs"),
    ("GET", "/tasks/{id}/pushNotificationConfigs/{config}", "GetTaskPushNotificationConfig"),
    ("DELETE", "/tasks/{id}/pushNotificationConfigs/{config}", "DeleteTaskPushNotificationConfig"),
    ("GET", "/extendedAgentCard", "GetExtendedAgentCard"),
)
A2A_PATHS: Final = (A2A_ROOT, *dict.fromkeys(f"{HTTP_ROOT}{route}" for _, route, _ in _ROUTES))
"""The paths that metrics name."""
_ADDRESSES: Final = PathRoutes(
    ((verb, f"{HTTP_ROOT}{route}", name) for verb, route, name in _ROUTES),
    hint=f"JSON-RPC is at {A2A_ROOT}, HTTP+JSON at {HTTP_ROOT}",
)

HTTP: Final = Dialect(
    transport="a2a", describe=describe_http_error, missing_hint="Send 'Authorization: Bearer <token>'"
)
MEDIA_TYPE: Final = "application/a2a+json"
_VERSIONS: Final = ("1.0",)
_NUMBERS: Final = frozenset({"historyLength", "pageSize"})
_MOST_DIGITS: Final = 9
_VERSION_HEADER: Final = b"a2a-version"
_CLOSE: Final = (b"connection", b"close")
_JSON: Final = "application/json"


def require_version(given: str | None) -> None:
    """Refuse a version of the protocol that is not spoken here; who names none speaks 0.3.

    Raises:
        A2aError: it is not 1.0.
    """
    if given not in _VERSIONS:
        raise A2aError(
            VERSION_NOT_SUPPORTED,
            f"A2A {show(given) if given else '0.3, which a missing A2A-Version means,'} is not spoken here",
            remedy="Send 'A2A-Version: 1.0'.",
        )


@value
class _Request:
    """One call of an operation; `wrap` writes its result, or an update, as the body of the binding."""

    name: str
    params: RpcParams
    wrap: Callable[[Any], bytes] = to_json
    media_type: str = MEDIA_TYPE


class A2aEndpoint:
    """Serves both bindings over HTTP; `methods` are the operations by the names of their RPCs."""

    def __init__(self, methods: Methods, gate: Gate, body_reader: BodyReader, observer: CallObserver) -> None:
        self._methods = methods
        self._gate = gate
        self._body_reader = body_reader
        self._observer = observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        exchange = find_exchange(scope)
        exchange.rpc_system = HTTP.transport
        is_rpc = scope["path"] in {A2A_ROOT, A2A_ROOT[:-1]}
        calls = Calls(self._methods, self._gate, exchange, self._observer, _speak_rpc(None) if is_rpc else HTTP)
        try:
            await self._serve(calls, scope, receive, send, is_rpc=is_rpc)
        except RefusalError as refusal:
            headers = [(name.encode("ascii"), text.encode("ascii")) for name, text in refusal.headers.items()]
            body = describe_http_refusal(refusal, exchange.call_id)
            await send_answer(send, refusal.status, body, headers=[NO_STORE, *headers])

    async def _serve(self, calls: Calls, scope: Scope, receive: Receive, send: Send, *, is_rpc: bool) -> None:
        """Serve a request of either binding.

        Raises:
            RefusalError: there is nothing at the path, it takes other methods, or the body is not read.
        """
        exchange = calls.exchange
        found: tuple[str, dict[str, Any]] = ("", {}) if is_rpc else _find_route(scope, exchange)
        if is_rpc:
            exchange.route = A2A_ROOT
            if scope["method"] != "POST":
                raise RefusalError(405, "this address takes POST only", headers={"allow": "POST"})
            if not exchange.headers.accepts_json(MEDIA_TYPE):
                refused = A2aError(CONTENT_TYPE_NOT_SUPPORTED, "The body is not JSON", remedy="Send application/json.")
                await send_described(send, calls.refuse(refused), _CLOSE)
                return
        body = bytearray()
        # Some clients send no body with the operations on a task.
        has_body = scope["method"] == "POST" and bool(exchange.headers.getlist(b"content-type"))
        try:
            if has_body:
                body = await read_call_body(
                    exchange,
                    receive,
                    gate=self._gate,
                    body_reader=self._body_reader,
                    host=find_host(scope),
                    media_type=MEDIA_TYPE,
                )
        except ReasondError as error:
            await send_described(send, calls.refuse(error), _CLOSE)
            return
        read = _read_rpc(calls, body) if is_rpc else _read_http(*found, body)
        try:
            await run_unless_disconnected(_answer(calls, read, scope, send), find_disconnect(scope))
        finally:
            if has_body:
                self._body_reader.release(body)


async def _answer(calls: Calls, read: Awaitable[_Request], scope: Scope, send: Send) -> None:
    """Answer a request, whole or with a stream."""
    try:
        request = await read
        method = calls.methods.get(request.name)
        if method is not None:
            require_version(calls.exchange.headers.first(_VERSION_HEADER) or _read_query(scope).get("A2A-Version"))
    except ReasondError as error:
        await send_described(send, calls.refuse(error))
        return
    if method is not None and method.streaming is not None:
        failure = await stream_call(
            calls.open(request.name),
            request.params,
            send,
            last_event_id=calls.exchange.headers.first(b"last-event-id"),
            write=partial(_frame, request.wrap),
        )
    else:
        answer = await calls.call(request.name, request.params)
        failure = answer.get("error")
        if failure is None:
            sent = request.wrap(answer["result"])
            await send_answer(send, 200, sent, headers=[NO_STORE], media_type=request.media_type.encode())
    if failure is not None:
        await send_described(send, failure)


def _speak_rpc(rpc_id: RpcId) -> Dialect:
    """Return the dialect of one call of JSON-RPC."""
    return replace(HTTP, describe=partial(describe_rpc_error, rpc_id))


async def _read_rpc(calls: Calls, body: bytearray) -> _Request:
    """Return the call in a body of JSON-RPC; from there on `calls` tell errors to it.

    Raises:
        ReasondError: it has none.
    """
    request = read_request(await parse_body(body))
    calls.dialect = _speak_rpc(request.rpc_id)

    def wrap(result: Any) -> bytes:  # noqa: ANN401 - any JSON value
        return to_json({"jsonrpc": "2.0", "id": request.rpc_id, "result": result})

    return _Request(name=request.method, params=request.params, wrap=wrap, media_type=_JSON)


async def _read_http(name: str, params: Mapping[str, Any], body: bytearray) -> _Request:
    """Return the call of an operation with the parameters in path, query and body.

    Raises:
        ReasondError: the body is no JSON object.
    """
    given = await parse_object(body) if body else {}
    return _Request(name=name, params={**given, **params})


def _frame(wrap: Callable[[Any], bytes], update: Update) -> bytes:
    return HEARTBEAT if update.body is None else frame_event(wrap(update.body), place=update.place)


def _read_query(scope: Scope) -> dict[str, str]:
    return dict(parse_qsl(scope["query_string"].decode("latin-1")))


def _find_route(scope: Scope, exchange: Exchange) -> tuple[str, dict[str, Any]]:
    """Return the operation of a request, and its parameters in path and query.

    Raises:
        RefusalError: there is nothing at the path, or it takes other methods.
    """
    name, fields = _ADDRESSES.find(scope, exchange)
    return name, {**{key: _read_value(key, text) for key, text in _read_query(scope).items()}, **fields}


def _read_value(name: str, text: str) -> str | int | bool:
    """Return what a query says; what is no number stays a text, so that its check names it."""
    if name in _NUMBERS and text.removeprefix("-").isdecimal() and len(text) <= _MOST_DIGITS:
        return int(text)
    return text == "true" if name == "includeArtifacts" and text in {"true", "false"} else text
