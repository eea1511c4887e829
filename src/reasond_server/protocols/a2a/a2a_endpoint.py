"""The paths below /a2a/: JSON-RPC at the root, and HTTP+JSON below /a2a/v1, over the same operations.

A stream is of server-sent events with the `id` by which a client resumes: it sends it as Last-Event-ID to
SubscribeToTask, or with its first message again.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from reasond_server.protocols.a2a.a2a_errors import A2aError, A2aReason
from reasond_server.protocols.openai_endpoint import HEARTBEAT, stream_call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from reasond_server.http_api.body_reader import BodyReader
    from reasond_server.http_api.exchange import PathRoutes, Receive, Scope, Send
    from reasond_server.http_api.http_calls import Gate, Methods
    from reasond_server.protocols.a2a.task_service import Update
    from reasond_server.telemetry.observers import Observer

A2A: Final = "a2a"
"""The name of both bindings in metrics."""

A2A_ROOT: Final = "/a2a/"
HTTP_ROOT: Final = "/a2a/v1"
_MEDIA_TYPE: Final = "application/a2a+json"
_TRUTHS: Final = {"true": True, "false": False}
_NO_JSON: Final = 415
# Longer bodies take milliseconds to read.
_LONG_BYTES: Final = 16 * 1024
_CLOSE: Final = (b"connection", b"close")


def require_version(given: str | None) -> None:
    """Refuse a version of the protocol that is not spoken here; who names none speaks 0.3.

    Raises:
        A2aError: it is not 1.0.
    """
    if given != "1.0":
        text = f"A2A {show(given) if given else '0.3, which a missing A2A-Version means,'} is not spoken here"
        raise A2aError(A2aReason.VERSION_NOT_SUPPORTED, text, remedy="Send 'A2A-Version: 1.0'.")


@dataclass(eq=False)
class A2aEndpoint:
    """Serves both bindings over HTTP.

    `routes` lead to the operations of HTTP+JSON, and to "" for JSON-RPC. `methods` are the operations by the names of
    their RPCs; they are called with their parameters as JSON under `given`, and whether those are long.
    `describe_http` writes errors of HTTP+JSON, `describe_rpc` those of JSON-RPC for the id of a request.
    """

    routes: PathRoutes[str]
    methods: Methods
    describe_http: Callable[..., Mapping[str, Any]]
    describe_rpc: Callable[..., Mapping[str, Any]]
    gate: Gate
    body_reader: BodyReader
    observer: Observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        exchange = find_exchange(scope)
        exchange.rpc_system = A2A
        calls = Calls(self.methods, self.gate, exchange, self.observer, _speak(self.describe_http))
        try:
            name, fields = self.routes.find(scope, exchange)
            query = parse_qsl(scope["query_string"].decode("latin-1"))
            told = {key: _TRUTHS.get(text, text) if key == "includeArtifacts" else text for key, text in query}
            if not name:
                calls.dialect = _speak(partial(self.describe_rpc, None))
            answer = partial(self._answer, calls, name, {**told, **fields}, send)
            # Some clients send no body with the operations on a task.
            if scope["method"] != "POST" or (name and not exchange.headers.getlist(b"content-type")):
                await run_unless_disconnected(answer(bytearray()), find_disconnect(scope))
                return
            gate, reader = self.gate, self.body_reader
            await answer_call(exchange, scope, receive, gate=gate, body_reader=reader, answer=answer, also=_MEDIA_TYPE)
        except RefusalError as refusal:
            reason = A2aReason.CONTENT_TYPE_NOT_SUPPORTED if refusal.status == _NO_JSON else A2aReason.INVALID_REQUEST
            error = A2aError(reason, refusal.message, status=refusal.status)
            await send_described(send, calls.dialect.describe(error, exchange.call_id, None), *refusal.raw_headers)
        except ReasondError as failure:
            # What has not come of the body is not read.
            await send_described(send, calls.refuse(failure), _CLOSE)

    async def _answer(self, calls: Calls, name: str, params: dict[str, Any], send: Send, body: bytearray) -> None:
        """Answer a request, whole or with a stream.

        Raises:
            ReasondError: it is no call.
        """
        version = params.pop("A2A-Version", None)
        write: Callable[[Any], bytes] = to_json
        media_type = _MEDIA_TYPE
        if not name:
            request = read_request(await parse_body(body))
            name, given, media_type = request.method, request.params, "application/json"
            calls.dialect = _speak(partial(self.describe_rpc, request.rpc_id))
            write = partial(_wrap, request.rpc_id)
        else:
            given = {**(await parse_object(body) if body else {}), **params}
        method, headers = calls.methods.get(name), calls.exchange.headers
        if method is not None:
            require_version(headers.first(b"a2a-version") or version)
        request_ = {"given": given, "is_long": len(body) > _LONG_BYTES}
        if method is not None and method.streaming is not None:
            place, write = headers.first(b"last-event-id"), partial(_frame, write)
            failure = await stream_call(calls.open(name), request_, send, last_event_id=place, write=write)
        else:
            answer = await calls.call(name, request_)
            failure = answer.get("error")
            if failure is None:
                encoded = write(answer["result"])
                await send_answer(send, 200, encoded, headers=[NO_STORE], media_type=media_type.encode())
        if failure is not None:
            await send_described(send, failure)


def _speak(describe: Callable[..., Mapping[str, Any]]) -> Dialect:
    return Dialect(transport=A2A, describe=describe, missing_hint="Send 'Authorization: Bearer TOKEN'")


def _wrap(rpc_id: object, result: Any) -> bytes:  # noqa: ANN401 - any JSON value
    return to_json({"jsonrpc": "2.0", "id": rpc_id, "result": result})


def _frame(write: Callable[[Any], bytes], update: Update) -> bytes:
    return HEARTBEAT if update.body is None else frame_event(write(update.body), place=update.place)
