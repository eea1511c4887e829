"""The paths below /v1/: called as JSON-RPC is, on the same service, and answered in OpenAI's or Anthropic's way.

An error before the first event is an HTTP status with the error object of the wire; afterwards it is an event.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from pydantic_core import PydanticSerializationError, to_json

from reasond_server.errors.base import InternalError, ReasondError
from reasond_server.errors.request import InvalidRequestError
from reasond_server.http_api.body_reader import BodyReader, answer_call
from reasond_server.http_api.connections import find_disconnect, run_unless_disconnected
from reasond_server.http_api.exchange import (
    RefusalError,
    find_exchange,
    frame_event,
    send_answer,
    send_described,
    send_stream,
)
from reasond_server.http_api.http_calls import Call, Calls, Dialect, Gate, Methods, convert_failure
from reasond_server.http_api.jsonrpc import RpcParams, parse_object
from reasond_server.protocols.wire_errors import (
    describe_error,
    describe_message_error,
    describe_message_refusal,
    describe_refusal,
    describe_response_error,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from reasond_server.http_api.exchange import Exchange, Receive, Scope, Send
    from reasond_server.telemetry.observers import Observer


OPENAI_ROOT: Final = "/v1/"
CHAT_PATH: Final = "/v1/chat/completions"
MODELS_PATH: Final = "/v1/models"
RESPONSES_PATH: Final = "/v1/responses"
MESSAGES_PATH: Final = "/v1/messages"
OPENAI_PATHS: Final = (CHAT_PATH, MODELS_PATH, RESPONSES_PATH, f"{RESPONSES_PATH}/{{id}}", MESSAGES_PATH)
"""The paths that metrics name."""

CHAT_METHOD: Final = "openai.chat_completions"
MODELS_METHOD: Final = "openai.models"
RESPONSES_METHOD: Final = "openai.responses"
RESPONSE_METHODS: Final = {
    ("GET", ""): "openai.responses.get",
    ("DELETE", ""): "openai.responses.delete",
    ("POST", "cancel"): "openai.responses.cancel",
    ("GET", "input_items"): "openai.responses.input_items",
}
"""The methods about one response, by the method of HTTP and what follows the id in the path."""
REPLAY_METHOD: Final = "openai.responses.stream"
COUNT_METHOD: Final = "openai.responses.input_tokens"
MESSAGES_METHOD: Final = "anthropic.messages"
COUNT_MESSAGES_METHOD: Final = "anthropic.messages.count_tokens"
MESSAGE_MODELS_METHOD: Final = "anthropic.models"
_UNSTREAMED: Final = frozenset({COUNT_METHOD, COUNT_MESSAGES_METHOD})
_ATTACHING: Final = frozenset({RESPONSES_METHOD, MESSAGES_METHOD})
OPENAI: Final = Dialect(
    transport="openai", describe=describe_error, missing_hint="Send it as api_key, in 'Authorization: Bearer <token>'"
)

OPENAI_CREATING: Final = Dialect(
    transport=OPENAI.transport, describe=describe_response_error, missing_hint=OPENAI.missing_hint
)
MESSAGES: Final = Dialect(transport="anthropic", describe=describe_message_error, missing_hint="Send it as x-api-key")
DONE: Final = frame_event(b"[DONE]")
"""The last frame of every stream."""
HEARTBEAT: Final = b": heartbeat\n\n"
_SESSION_HEADERS: Final = (
    b"idempotency-key",
    b"x-client-request-id",
    b"session-id",
    b"session_id",
    b"thread-id",
    b"x-claude-code-session-id",
)
_VERSION_HEADER: Final = b"anthropic-version"
_RETRY_HEADER: Final = b"x-stainless-retry-count"
_CLOSE: Final = (b"connection", b"close")
# More digits than any number of an event or an item has.
_MOST_DIGITS: Final = 20
_NOTHING: Final = (
    "there is nothing at this address; POST /v1/responses, POST /v1/chat/completions, POST /v1/messages and "
    "GET /v1/models are here"
)
_NOT_HERE: Final = {
    f"{RESPONSES_PATH}/compact": "nothing is compacted here; send truncation 'auto', or fewer items as input",
    "/v1/conversations": "conversations are not kept here; send previous_response_id, or the items as input",
    "/v1/embeddings": "embeddings are not made here; ask the server of an embedding model for them",
    "/v1/completions": f"bare text is not completed here; POST {CHAT_PATH} with it as the message of the user",
}


class OpenAiEndpoint:
    """Serves all paths below /v1/. `methods` has CHAT_METHOD and MODELS_METHOD."""

    def __init__(self, methods: Methods, gate: Gate, body_reader: BodyReader, observer: Observer) -> None:
        self._methods = methods
        self._gate = gate
        self._body_reader = body_reader
        self._observer = observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        exchange = find_exchange(scope)
        is_anthropic = scope["path"].startswith(MESSAGES_PATH) or exchange.headers.first(_VERSION_HEADER) is not None
        dialect = MESSAGES if is_anthropic else OPENAI
        exchange.rpc_system = dialect.transport
        calls = Calls(
            methods=self._methods, gate=self._gate, exchange=exchange, observer=self._observer, dialect=dialect
        )
        try:
            await self._serve(scope, calls, receive, send)
        except RefusalError as refusal:
            describe = describe_message_refusal if is_anthropic else describe_refusal
            body, headers = describe(refusal, exchange.call_id)
            await send_answer(send, refusal.status, body, headers=headers)

    async def _serve(self, scope: Scope, calls: Calls, receive: Receive, send: Send) -> None:
        """Serve the path of the request.

        Raises:
            RefusalError: there is nothing at the path, or it takes other methods.
        """
        # Base URLs that end with a slash make two of it.
        path = "/" + "/".join(filter(None, scope["path"].split("/")))
        exchange = calls.exchange
        if path in _NOT_HERE:
            raise RefusalError(404, _NOT_HERE[path])
        if path == CHAT_PATH:
            _enter(CHAT_PATH, ("POST",), scope, exchange)
            await self._complete(CHAT_METHOD, calls, scope, receive, send)
        elif path in {MESSAGES_PATH, f"{MESSAGES_PATH}/count_tokens"}:
            _enter(MESSAGES_PATH, ("POST",), scope, exchange)
            method = MESSAGES_METHOD if path == MESSAGES_PATH else COUNT_MESSAGES_METHOD
            await self._complete(method, calls, scope, receive, send)
        elif path in {RESPONSES_PATH, f"{RESPONSES_PATH}/input_tokens"}:
            _enter(RESPONSES_PATH, ("POST",), scope, exchange)
            calls.dialect = OPENAI_CREATING
            method = RESPONSES_METHOD if path == RESPONSES_PATH else COUNT_METHOD
            await self._complete(method, calls, scope, receive, send)
        elif path.startswith(f"{RESPONSES_PATH}/"):
            await self._serve_response(calls, scope, exchange, send)
        elif path == MODELS_PATH or path.startswith(f"{MODELS_PATH}/"):
            _enter(MODELS_PATH, ("GET", "HEAD"), scope, exchange)
            name = path[len(MODELS_PATH) + 1 :]
            method = MESSAGE_MODELS_METHOD if calls.dialect is MESSAGES else MODELS_METHOD
            await send_described(send, _encode_answer(await calls.call(method, {"model": name}), calls))
        else:
            raise RefusalError(404, _NOTHING)

    async def _serve_response(self, calls: Calls, scope: Scope, exchange: Exchange, send: Send) -> None:
        """Serve a path below one response.

        Raises:
            RefusalError: there is nothing at the path, or it takes other methods.
        """
        response_id, _, rest = scope["path"][len(RESPONSES_PATH) + 1 :].partition("/")
        allowed = tuple(verb for verb, below in RESPONSE_METHODS if below == rest)
        if not allowed:
            raise RefusalError(404, _NOTHING)
        _enter(f"{RESPONSES_PATH}/{{id}}", allowed, scope, exchange)
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        params: dict[str, Any] = {"response_id": response_id}
        params |= {name: query[name] for name in ("after", "order", "stream") if name in query}
        params |= {name: _read_number(query[name]) for name in ("starting_after", "limit") if name in query}
        method = RESPONSE_METHODS[scope["method"], rest]
        if rest == "" and scope["method"] == "GET" and query.get("stream") == "true":
            answer = await run_unless_disconnected(
                stream_call(calls.open(REPLAY_METHOD), params, send), find_disconnect(scope)
            )
        else:
            answer = _encode_answer(await calls.call(method, params), calls)
        if answer is not None:
            await send_described(send, answer)

    async def _complete(self, method: str, calls: Calls, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await answer_call(
                calls.exchange,
                scope,
                receive,
                gate=self._gate,
                body_reader=self._body_reader,
                answer=partial(_answer, method, calls, send),
            )
        except ReasondError as error:
            # The rest of the body is not read.
            await send_described(send, calls.refuse(error), _CLOSE)
            return
        if answer is not None:
            await send_described(send, answer)


async def _answer(method: str, calls: Calls, send: Send, body: bytearray) -> Mapping[str, Any] | None:
    """Return the answer to a request as {status, headers, body}; None if it was streamed."""
    try:
        params = await _read(body, calls.exchange)
    except ReasondError as error:
        return calls.refuse(error)
    if method in _ATTACHING:
        params = {**params, **_digest_request(body, calls.exchange)}
    if params.get("stream") is True and method not in _UNSTREAMED:
        return await stream_call(calls.open(method), params, send)
    return _encode_answer(await calls.call(method, params), calls)


def _read_number(text: str) -> int | str:
    """Return the number that a query tells; another text as it is, so that its check names it."""
    digits = text.removeprefix("-")
    return int(text) if digits.isdecimal() and len(digits) <= _MOST_DIGITS else text


def _digest_request(body: bytearray, exchange: Exchange) -> dict[str, Any]:
    """Return the parameters by which a request that is sent again finds what it began; none if nothing tells that.

    The body alone does not: who wants two answers sends equal ones at the same time. Clients of OpenAI's own libraries
    say how often they have sent a request; the first of its kind begins something, and only the others look for it.
    """
    sent = [(name, value) for name in _SESSION_HEADERS if (value := exchange.headers.first(name)) is not None]
    count = exchange.headers.first(_RETRY_HEADER)
    if not sent and count is None:
        return {"attach_key": ""}
    digest = hashlib.sha256(bytes(body))
    digest.update(repr(sent).encode())
    return {"attach_key": digest.hexdigest(), "is_first": not sent and count == "0"}


async def _read(body: bytearray, exchange: Exchange) -> dict[str, Any]:
    """Return the parameters in `body` and in the header Idempotency-Key.

    Raises:
        ParseError: the body is no JSON.
        InvalidRequestError: the body is no object, or names another id than the header.
    """
    params = await parse_object(body)
    key = exchange.headers.first(b"idempotency-key")
    own = params.get("reasond") or {}
    if key is None or not isinstance(own, dict):
        return params
    if own.get("request_id", key) != key:
        raise InvalidRequestError.at("reasond.request_id", "differs from the header Idempotency-Key; send one of them")
    return {**params, "reasond": {**own, "request_id": key}}


async def stream_call(
    call: Call,
    params: RpcParams,
    send: Send,
    *,
    last_event_id: str | None = None,
    write: Callable[[Any], bytes] = bytes,
) -> Mapping[str, Any] | None:
    """Send the events of a call as they come, framed by `write`; return the error if there is one before the first."""
    async with aclosing(call.events(params, last_event_id)) as events:
        try:
            # Who resumes after the last event gets a stream of none.
            first = await anext(events, None)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - every failure becomes an answer
            return await call.explain(convert_failure(error))
        await send_stream(send, _continue(call, first, events, write))
    return None


async def _continue(
    call: Call, first: object, events: AsyncGenerator[Any, None], write: Callable[[Any], bytes]
) -> AsyncGenerator[bytes, None]:
    """Yield the frames of `first` and the other events, and of an error."""
    event = first
    try:
        if event is not None:
            yield write(event)
            async for event in events:
                yield write(event)
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - every failure becomes an event
        described = await call.explain(convert_failure(error))
        # A response that failed has told so in its last event.
        if event != DONE:
            yield described["frame"]


def _encode_answer(answer: Mapping[str, Any], calls: Calls) -> Mapping[str, Any]:
    """Return the answer of a call as {status, headers, body}."""
    failure: Mapping[str, Any] | None = answer.get("error")
    if failure is not None:
        return failure
    try:
        body = to_json(answer["result"], inf_nan_mode="null")
    except PydanticSerializationError as error:
        fault = InternalError("the answer is not JSON")
        fault.__cause__ = error
        return calls.refuse(fault)
    return {"status": 200, "headers": (), "body": body}


def _enter(route: str, methods: tuple[str, ...], scope: Scope, exchange: Exchange) -> None:
    """Note the route of the request.

    Raises:
        RefusalError: the route takes other methods.
    """
    exchange.route = route
    if scope["method"] not in methods:
        allowed = ", ".join(methods)
        raise RefusalError(405, f"this address takes {allowed} only", headers={"allow": allowed})
