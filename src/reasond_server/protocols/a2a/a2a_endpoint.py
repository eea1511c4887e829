"""The paths below /a2a/: JSON-RPC at the root, and HTTP+JSON below /a2a/v1, over the same operations.

A stream is of server-sent events with the `id` by which a client resumes: it sends it as Last-Event-ID to
SubscribeToTask, or with its first message again.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote

from pydantic_core import to_json

from reasond_server.errors.base import ReasondError, Violation, show
from reasond_server.errors.request import InvalidRequestError
from reasond_server.http_api.body_reader import read_call_body
from reasond_server.http_api.connections import find_disconnect, run_unless_disconnected
from reasond_server.http_api.exchange import (
    NO_STORE,
    RefusalError,
    find_exchange,
    find_host,
    frame_event,
    send_answer,
    send_stream,
)
from reasond_server.http_api.http_calls import Calls, Dialect, convert_failure
from reasond_server.http_api.jsonrpc import dispatch, parse_body, read_request, unread
from reasond_server.protocols.a2a.a2a_errors import (
    CONTENT_TYPE_NOT_SUPPORTED,
    VERSION_NOT_SUPPORTED,
    A2aError,
    describe_http_error,
    describe_http_refusal,
    describe_rpc_error,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from reasond_server.http_api.body_reader import BodyReader
    from reasond_server.http_api.exchange import Exchange, Receive, Scope, Send
    from reasond_server.http_api.http_calls import Call, Gate, Methods
    from reasond_server.http_api.jsonrpc import RpcParams
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
_PATTERNS: Final = tuple(
    (verb, re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/:]+)", route)), route, name) for verb, route, name in _ROUTES
)
A2A_PATHS: Final = (A2A_ROOT, *dict.fromkeys(f"{HTTP_ROOT}{route}" for _, route, _ in _ROUTES))
"""The paths that metrics name."""

RPC: Final = Dialect(transport="a2a", describe=describe_rpc_error, missing_hint="Send 'Authorization: Bearer <token>'")
HTTP: Final = Dialect(transport=RPC.transport, describe=describe_http_error, missing_hint=RPC.missing_hint)
MEDIA_TYPE: Final = "application/a2a+json"
_HEARTBEAT: Final = b": heartbeat\n\n"
_VERSIONS: Final = ("1.0",)
_NUMBERS: Final = frozenset({"historyLength", "pageSize"})
_MOST_DIGITS: Final = 9
_VERSION_HEADER: Final = b"a2a-version"
_CLOSE: Final = (b"connection", b"close")


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
        exchange.rpc_system = RPC.transport
        is_rpc = scope["path"] in {A2A_ROOT, A2A_ROOT[:-1]}
        calls = Calls(
            methods=self._methods,
            gate=self._gate,
            exchange=exchange,
            observer=self._observer,
            dialect=RPC if is_rpc else HTTP,
        )
        try:
            await (self._serve_rpc if is_rpc else self._serve_http)(calls, scope, receive, send)
        except RefusalError as refusal:
            headers = [(name.encode("ascii"), text.encode("ascii")) for name, text in refusal.headers.items()]
            body = describe_http_refusal(refusal, exchange.call_id)
            await send_answer(send, refusal.status, body, headers=[NO_STORE, *headers])

    async def _serve_rpc(self, calls: Calls, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = calls.exchange
        exchange.route = A2A_ROOT
        if scope["method"] != "POST":
            raise RefusalError(405, "this address takes POST only", headers={"allow": "POST"})
        if not exchange.headers.accepts_json(MEDIA_TYPE):
            refused = A2aError(CONTENT_TYPE_NOT_SUPPORTED, "The body is not JSON", remedy="Send application/json.")
            await send_answer(send, 200, unread(refused, calls), headers=[NO_STORE, _CLOSE])
            return
        await self._with_body(calls, scope, receive, send, lambda body: _answer_rpc(calls, scope, body, send))

    async def _serve_http(self, calls: Calls, scope: Scope, receive: Receive, send: Send) -> None:
        name, params = _find_route(scope, calls.exchange)
        if scope["method"] != "POST" or not calls.exchange.headers.getlist(b"content-type"):
            # Some clients send no body with the operations on a task.
            await self._answer(calls, name, params, scope, send)
            return

        async def answer(body: bytearray) -> None:
            try:
                given = await parse_body(body) if body else {}
                if not isinstance(given, dict):
                    raise InvalidRequestError.of(Violation(field="body", description="must be a JSON object"))
            except ReasondError as error:
                await _send(send, calls.refuse(error))
                return
            await self._answer(calls, name, {**given, **params}, scope, send)

        await self._with_body(calls, scope, receive, send, answer)

    async def _with_body(
        self,
        calls: Calls,
        scope: Scope,
        receive: Receive,
        send: Send,
        answer: Callable[[bytearray], Awaitable[None]],
    ) -> None:
        """Read the body, and `answer` it unless the client leaves."""
        exchange, disconnect = calls.exchange, find_disconnect(scope)
        try:
            body = await read_call_body(
                exchange,
                receive,
                gate=self._gate,
                body_reader=self._body_reader,
                host=find_host(scope),
                media_type=MEDIA_TYPE,
            )
        except ReasondError as error:
            told = describe_http_error(error, exchange.call_id, None)
            await send_answer(send, told["status"], told["body"], headers=[NO_STORE, *told["headers"], _CLOSE])
            return
        try:
            await run_unless_disconnected(answer(body), disconnect)
        finally:
            self._body_reader.release(body)

    async def _answer(self, calls: Calls, name: str, params: dict[str, Any], scope: Scope, send: Send) -> None:
        """Answer a request of HTTP+JSON."""
        try:
            require_version(_find_version(scope, calls.exchange))
        except A2aError as error:
            await _send(send, calls.refuse(error))
            return
        method = self._methods.get(name)
        if method is not None and method.streaming is not None:
            failure = await _stream(calls, name, params, send, frame=to_json)
            if failure is not None:
                await _send(send, failure)
            return
        answer = await calls.call(name, params)
        if "error" in answer:
            await _send(send, answer["error"])
        else:
            await send_answer(send, 200, to_json(answer["result"]), headers=[NO_STORE], media_type=MEDIA_TYPE.encode())


async def _answer_rpc(calls: Calls, scope: Scope, body: bytearray, send: Send) -> None:
    """Answer a request of JSON-RPC, whole or with a stream."""
    try:
        request = read_request(await parse_body(body))
    except ReasondError:
        # `dispatch` reads the body again, and answers with the error.
        request = None
    version = _find_version(scope, calls.exchange)
    method = None if request is None else calls.methods.get(request.method)
    if request is not None and method is not None and method.streaming is not None:

        def frame(member: Mapping[str, Any]) -> bytes:
            told = member if "error" in member else {"result": member}
            return to_json({"jsonrpc": "2.0", "id": request.rpc_id, **told})

        try:
            require_version(version)
        except A2aError as error:
            failure: Mapping[str, Any] | None = calls.refuse(error)
        else:
            failure = await _stream(calls, request.method, request.params, send, frame=frame)
        if failure is not None:
            await send_answer(send, 200, frame({"error": failure}), headers=[NO_STORE])
        return
    answer = await dispatch(body, _Versioned(calls, version))
    await send_answer(send, 204 if answer is None else 200, answer or b"", headers=[NO_STORE])


class _Versioned:
    """The calls of a request of JSON-RPC, which are refused if it speaks another version."""

    def __init__(self, calls: Calls, version: str | None) -> None:
        self._calls = calls
        self._version = version

    async def call(self, method: str, params: RpcParams) -> Mapping[str, Any]:
        try:
            if self._calls.methods.get(method) is not None:
                require_version(self._version)
        except A2aError as error:
            return {"error": self.refuse(error)}
        return await self._calls.call(method, params)

    def refuse(self, error: ReasondError) -> Mapping[str, Any]:
        return self._calls.refuse(error)


async def _stream(
    calls: Calls, name: str, params: RpcParams, send: Send, *, frame: Callable[[Mapping[str, Any]], bytes]
) -> Mapping[str, Any] | None:
    """Send the updates of a call as they come; return the error if there is one before the first of them."""
    call = calls.open(name)
    async with aclosing(call.events(params, calls.exchange.headers.first(b"last-event-id"))) as updates:
        try:
            # Who has every update already gets a stream of none.
            first = await anext(updates, None)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - every failure becomes an answer
            return await call.explain(convert_failure(error))
        await send_stream(send, _continue(call, first, updates, frame))
    return None


async def _continue(
    call: Call,
    first: Update | None,
    updates: AsyncGenerator[Update, None],
    frame: Callable[[Mapping[str, Any]], bytes],
) -> AsyncGenerator[bytes, None]:
    """Yield the frames of `first` and the other updates, and of an error."""
    if first is None:
        return
    yield _frame(first, frame)
    try:
        async for update in updates:
            yield _frame(update, frame)
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - every failure becomes an event
        described = await call.explain(convert_failure(error))
        yield frame_event(described.get("body") or frame({"error": described}), name="error")


def _frame(update: Update, frame: Callable[[Mapping[str, Any]], bytes]) -> bytes:
    return _HEARTBEAT if update.body is None else frame_event(frame(update.body), place=update.place)


def _find_version(scope: Scope, exchange: Exchange) -> str | None:
    """Return the version that a request names, in its header or its query."""
    return exchange.headers.first(_VERSION_HEADER) or _read_query(scope).get("A2A-Version")


def _read_query(scope: Scope) -> dict[str, str]:
    return dict(parse_qsl(scope["query_string"].decode("latin-1")))


def _find_route(scope: Scope, exchange: Exchange) -> tuple[str, dict[str, Any]]:
    """Return the operation of a request, and its parameters in path and query.

    Raises:
        RefusalError: there is nothing at the path, or it takes other methods.
    """
    path = unquote(scope["path"].removeprefix(HTTP_ROOT))
    tried = [(verb, route, name, pattern.fullmatch(path)) for verb, pattern, route, name in _PATTERNS]
    found = [(verb, route, name, match) for verb, route, name, match in tried if match is not None]
    if not found or not scope["path"].startswith(f"{HTTP_ROOT}/"):
        hint = f"JSON-RPC is at {A2A_ROOT}, HTTP+JSON at {HTTP_ROOT}"
        raise RefusalError(404, f"there is nothing at this address; {hint}")
    exchange.route = f"{HTTP_ROOT}{found[0][1]}"
    for verb, _, name, match in found:
        if verb == scope["method"]:
            query = {key: _read_value(key, text) for key, text in _read_query(scope).items()}
            return name, {**query, **match.groupdict()}
    allowed = ", ".join(verb for verb, *_ in found)
    raise RefusalError(405, f"this address takes {allowed} only", headers={"allow": allowed})


def _read_value(name: str, text: str) -> str | int | bool:
    """Return what a query says; what is no number stays a text, so that its check names it."""
    if name in _NUMBERS and text.removeprefix("-").isdecimal() and len(text) <= _MOST_DIGITS:
        return int(text)
    return text == "true" if name == "includeArtifacts" and text in {"true", "false"} else text


async def _send(send: Send, answer: Mapping[str, Any]) -> None:
    await send_answer(send, answer["status"], answer["body"], headers=[NO_STORE, *answer["headers"]])
