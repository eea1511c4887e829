"""The JSON-RPC endpoint: checks media types, bounds bodies, sends answers or server-sent events.

A stream has the same events as that of its RPC and is resumed by Last-Event-ID. Each event is
`id: <id of the log>:<sequence>` (logged events only), `event:` its kind and one line of JSON as `data:`. The last one
is `completed`, or `error` with a JSON-RPC error object; a failed run sends both. Source: WHATWG HTML, section 9.2.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_json

from reasond_server.errors.access import AccessError, IssuerUnavailableError
from reasond_server.errors.limits import OverloadedError
from reasond_server.errors.request import InvalidJsonRpcError, ParseError
from reasond_server.http_api.body_reader import read_call_body
from reasond_server.http_api.connections import find_disconnect, run_unless_disconnected
from reasond_server.http_api.event_frames import frame_event, send_stream, wants_stream
from reasond_server.http_api.exchange import NO_STORE, find_exchange, find_host, send_answer
from reasond_server.http_api.http_calls import Calls, convert_failure
from reasond_server.http_api.json_mapping import build_event_json, is_logged, name_event
from reasond_server.http_api.jsonrpc import dispatch, parse, read_request, unread
from reasond_server.telemetry.observers import UNOBSERVED

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from reasond_server.http_api.body_reader import BodyReader
    from reasond_server.http_api.exchange import Exchange, Receive, Scope, Send
    from reasond_server.http_api.http_calls import Call, Gate, Methods
    from reasond_server.http_api.jsonrpc import RpcParams, RpcRequest
    from reasond_server.telemetry.observers import CallObserver
    from reasond_server.types import StreamEvent


_TURNED_AWAY: Final = (NO_STORE, (b"www-authenticate", b"Bearer"), (b"connection", b"close"))
_UNAVAILABLE: Final = (NO_STORE, (b"retry-after", b"1"), (b"connection", b"close"))


class JsonRpcEndpoint:
    """Answers POST: 200 with a JSON-RPC answer, 204 if there is none, or a stream if the client accepts one.

    When a client leaves, its calls are cancelled. If the token in the header is invalid, a large body is not read and
    the answer is 401.
    """

    def __init__(
        self,
        *,
        methods: Methods,
        gate: Gate,
        body_reader: BodyReader,
        max_batch: int,
        observer: CallObserver = UNOBSERVED,
    ) -> None:
        self._observer = observer
        self._methods = methods
        self._gate = gate
        self._body_reader = body_reader
        self._max_batch = max_batch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        exchange = find_exchange(scope)
        calls = Calls(self._methods, self._gate, exchange, self._observer)
        try:
            body = await read_call_body(
                exchange, receive, gate=self._gate, body_reader=self._body_reader, host=find_host(scope)
            )
        except (AccessError, OverloadedError) as error:
            # The validity of the token is unknown after an outage: the client should retry with it.
            is_outage = isinstance(error, IssuerUnavailableError | OverloadedError)
            status, about = (503, _UNAVAILABLE) if is_outage else (401, _TURNED_AWAY)
            await send_answer(send, status, unread(error, calls), headers=about)
            return
        disconnect = find_disconnect(scope)
        try:
            request = self._streamable(exchange, body)
            if request is not None:
                last_event_id = exchange.headers.first(b"last-event-id")
                events = frames(calls.open(request.method), request.params, last_event_id)
                await run_unless_disconnected(send_stream(send, events), disconnect)
                return
            answer = await run_unless_disconnected(dispatch(body, calls, max_batch=self._max_batch), disconnect)
        finally:
            self._body_reader.release(body)
        await send_answer(send, 204 if answer is None else 200, answer or b"", headers=[NO_STORE])

    def _streamable(self, exchange: Exchange, body: bytearray) -> RpcRequest | None:
        """Return the call of `body` if the client accepts a stream and the method can stream; else None."""
        if not wants_stream(exchange.headers.getlist(b"accept")):
            return None
        try:
            request = read_request(parse(body))
        except (ParseError, InvalidJsonRpcError):
            # `dispatch` parses the same body again and answers with the error.
            return None
        method = self._methods.get(request.method)
        return request if method is not None and method.streaming is not None and not request.is_notification else None


async def frames(call: Call, params: RpcParams, last_event_id: str | None) -> AsyncGenerator[bytes, None]:
    """Yield the framed events of `call`; with `last_event_id`, those after it. Closing it ends the subscription."""
    try:
        async with aclosing(call.events(params, last_event_id)) as events:
            async for event in events:
                yield frame(event, id_name=call.id_name)
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - every failure becomes an event
        yield _frame("error", await call.explain(convert_failure(error)))


def frame(event: StreamEvent, *, id_name: str = "execution_id") -> bytes:
    """Return one event as server-sent event; `id_name` is the key of its log's id."""
    place = f"{event.execution_id}:{event.sequence}" if is_logged(event) else ""
    return _frame(name_event(event), build_event_json(event, id_name=id_name), place=place)


def _frame(name: str, data: Mapping[str, Any], *, place: str = "") -> bytes:
    return frame_event(to_json(data, inf_nan_mode="null"), name=name, place=place)
