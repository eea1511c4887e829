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
from reasond_server.http_api.body_reader import answer_call
from reasond_server.http_api.connections import find_disconnect, run_unless_disconnected
from reasond_server.http_api.exchange import (
    NO_STORE,
    RefusalError,
    find_exchange,
    frame_event,
    send_answer,
    send_described,
)
from reasond_server.http_api.http_calls import Calls, Dialect
from reasond_server.http_api.jsonrpc import parse_body, parse_object, read_request
from reasond_server.http_api.path_routes import PathRoutes
from reasond_server.protocols.a2a.a2a_errors import A2aError, A2aReason, describe_http_error, describe_rpc_error
from reasond_server.protocols.openai_endpoint import HEARTBEAT, stream_call

if TYPE_CHECKING:
    from collections.abc import Callable

    from reasond_server.http_api.body_reader import BodyReader
    from reasond_server.http_api.exchange import Receive, Scope, Send
    from reasond_server.http_api.http_calls import Gate, Methods
    from reasond_server.protocols.a2a.task_service import Update
    from reasond_server.telemetry.observers import CallObserver

A2A_ROOT: Final = "/a2a/"
HTTP_ROOT: Final = "/a2a/v1"
_PUSH: Final = f"{HTTP_ROOT}/tasks/{{taskId}}/pushNotificationConfigs"
_ROUTES: Final = (
    # The operation of JSON-RPC stands in the body.
    *(("POST", path, "") for path in (A2A_ROOT, A2A_ROOT[:-1])),
    ("POST", f"{HTTP_ROOT}/message:send", "SendMessage"),
    ("POST", f"{HTTP_ROOT}/message:stream", "SendStreamingMessage"),
    ("GET", f"{HTTP_ROOT}/tasks", "ListTasks"),
    ("GET", f"{HTTP_ROOT}/tasks/{{id}}", "GetTask"),
    ("POST", f"{HTTP_ROOT}/tasks/{{id}}:cancel", "CancelTask"),
    *((verb, f"{HTTP_ROOT}/tasks/{{id}}:subscribe", "SubscribeToTask") for verb in ("GET", "POST")),
    ("POST", _PUSH, "CreateTaskPushNotificationConfig"),
    ("GET", _PUSH, "ListTaskPushNotificationConfigs"),
    *((verb, f"{_PUSH}/{{id}}", f"{verb.title()}TaskPushNotificationConfig") for verb in ("GET", "DELETE")),
    ("GET", f"{HTTP_ROOT}/extendedAgentCard", "GetExtendedAgentCard"),
)
_ADDRESSES: Final = PathRoutes(_ROUTES, hint=f"JSON-RPC is at {A2A_ROOT}, HTTP+JSON at {HTTP_ROOT}")
A2A_PATHS: Final = tuple(dict.fromkeys(path for _, path, _ in _ROUTES))
"""The paths that metrics name."""

HTTP: Final = Dialect(transport="a2a", describe=describe_http_error, missing_hint="Send 'Authorization: Bearer TOKEN'")
MEDIA_TYPE: Final = "application/a2a+json"
_TRUTHS: Final = {"true": True, "false": False}
_NO_JSON: Final = 415
_CLOSE: Final = (b"connection", b"close")


def require_version(given: str | None) -> None:
    """Refuse a version of the protocol that is not spoken here; who names none speaks 0.3.

    Raises:
        A2aError: it is not 1.0.
    """
    if given != "1.0":
        text = f"A2A {show(given) if given else '0.3, which a missing A2A-Version means,'} is not spoken here"
        raise A2aError(A2aReason.VERSION_NOT_SUPPORTED, text, remedy="Send 'A2A-Version: 1.0'.")


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
        calls = Calls(self._methods, self._gate, exchange, self._observer, HTTP)
        try:
            name, fields = _ADDRESSES.find(scope, exchange)
            query = parse_qsl(scope["query_string"].decode("latin-1"))
            told = {key: _TRUTHS.get(text, text) if key == "includeArtifacts" else text for key, text in query}
            if not name:
                calls.dialect = replace(HTTP, describe=partial(describe_rpc_error, None))
                if not exchange.headers.accepts_json(MEDIA_TYPE):
                    what = "The body is not JSON"
                    raise A2aError(A2aReason.CONTENT_TYPE_NOT_SUPPORTED, what, remedy="Send application/json.")
            answer = partial(_answer, calls, name, {**told, **fields}, send)
            # Some clients send no body with the operations on a task.
            if scope["method"] != "POST" or not exchange.headers.getlist(b"content-type"):
                await run_unless_disconnected(answer(bytearray()), find_disconnect(scope))
                return
            gate, reader = self._gate, self._body_reader
            await answer_call(exchange, scope, receive, gate=gate, body_reader=reader, answer=answer, also=MEDIA_TYPE)
        except RefusalError as refusal:
            headers = [(each.encode("ascii"), text.encode("ascii")) for each, text in refusal.headers.items()]
            reason = A2aReason.CONTENT_TYPE_NOT_SUPPORTED if refusal.status == _NO_JSON else A2aReason.INVALID_REQUEST
            error = A2aError(reason, refusal.message)
            described = describe_http_error(error, exchange.call_id, None, status=refusal.status)
            await send_described(send, described, *headers)
        except ReasondError as failure:
            # What has not come of the body is not read.
            await send_described(send, calls.refuse(failure), _CLOSE)


async def _answer(calls: Calls, name: str, params: dict[str, Any], send: Send, body: bytearray) -> None:
    """Answer a request, whole or with a stream.

    Raises:
        ReasondError: it is no call.
    """
    version = params.pop("A2A-Version", None)
    write: Callable[[Any], bytes] = to_json
    media_type = MEDIA_TYPE
    if not name:
        request = read_request(await parse_body(body))
        name, given, media_type = request.method, request.params, "application/json"
        calls.dialect = replace(HTTP, describe=partial(describe_rpc_error, request.rpc_id))
        write = partial(_wrap, request.rpc_id)
    else:
        given = {**(await parse_object(body) if body else {}), **params}
    method, headers = calls.methods.get(name), calls.exchange.headers
    if method is not None:
        require_version(headers.first(b"a2a-version") or version)
    if method is not None and method.streaming is not None:
        place = headers.first(b"last-event-id")
        failure = await stream_call(calls.open(name), given, send, last_event_id=place, write=partial(_frame, write))
    else:
        answer = await calls.call(name, given)
        failure = answer.get("error")
        if failure is None:
            await send_answer(send, 200, write(answer["result"]), headers=[NO_STORE], media_type=media_type.encode())
    if failure is not None:
        await send_described(send, failure)


def _wrap(rpc_id: object, result: Any) -> bytes:  # noqa: ANN401 - any JSON value
    return to_json({"jsonrpc": "2.0", "id": rpc_id, "result": result})


def _frame(write: Callable[[Any], bytes], update: Update) -> bytes:
    return HEARTBEAT if update.body is None else frame_event(write(update.body), place=update.place)
