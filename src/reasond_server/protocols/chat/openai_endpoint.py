"""The paths below /v1/: they are called as JSON-RPC is, on the same service, and answered in OpenAI's way.

An error before the first event is an HTTP status with OpenAI's error object; afterwards it is an event.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from pydantic_core import PydanticSerializationError, from_json, to_json

from reasond_server.errors.base import INTERNAL_MESSAGE, InternalError, ReasondError, Violation
from reasond_server.errors.model import REFUSED, UNSPENT
from reasond_server.errors.request import InvalidRequestError
from reasond_server.http_api.body_reader import read_call_body
from reasond_server.http_api.connections import find_disconnect, run_unless_disconnected
from reasond_server.http_api.event_frames import frame_event, send_stream
from reasond_server.http_api.exchange import NO_STORE, RefusalError, find_exchange, find_host, send_answer
from reasond_server.http_api.http_calls import Calls, Dialect, convert_failure
from reasond_server.http_api.jsonrpc import parse_body
from reasond_server.protocols.chat.chat_params import SAMPLING
from reasond_server.protocols.responses.response_json import map_code
from reasond_server.protocols.responses.response_service import DONE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from reasond_server.http_api.body_reader import BodyReader
    from reasond_server.http_api.exchange import Exchange, Receive, Scope, Send
    from reasond_server.http_api.http_calls import Call, Gate, Methods
    from reasond_server.telemetry.observers import CallObserver


_STATUSES: Final = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "UNIMPLEMENTED": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
_FAULT: Final = 500
_TOOL: Final = re.compile(r"client_tools\[(?P<place>\d+)\]\.(?P<name>\w+)")
_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES_OF_REFUSALS: Final = {404: "METHOD_NOT_FOUND", 405: "METHOD_NOT_FOUND", 503: "OVERLOADED"}
# The names of fields in the core, where this interface has others.
_PARAMETERS: Final = {
    "query": "messages",
    "message": "messages",
    "results": "messages",
    "system": "messages",
    "history": "messages",
    "images": "messages",
    "answer_schema": "response_format.json_schema.schema",
    "material": "reasond.material",
    "request_id": "reasond.request_id",
    "budget.max_output_tokens": "max_completion_tokens",
    "client_tools": "tools",
}
_RESPONSE_PARAMETERS: Final = {
    **dict.fromkeys(("query", "message", "results", "history", "images", "system"), "input"),
    "answer_schema": "text.format.schema",
    "answer_schema_json": "text.format.schema",
    "material": "reasond.material",
    "request_id": "reasond.request_id",
    "budget.max_output_tokens": "max_output_tokens",
    "client_tools": "tools",
}
_NOT_FOUND: Final = {
    "EXECUTION_NOT_FOUND": "previous_response_not_found",
    "CURSOR_EXPIRED": "previous_response_not_found",
    "STRATEGY_NOT_FOUND": "model_not_found",
}


def describe_error(error: ReasondError, call_id: str, _partial: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return `error` as {status, headers, body}; `body` is the JSON of OpenAI's error object.

    `code` is our reason and `param` the first wrong field. A fault of the server has only its request id.
    """
    reason = error.declaration
    is_internal = reason.name == "INTERNAL"
    status = _STATUSES.get(reason.grpc_status, _FAULT)
    if reason.is_fault and status < _FAULT:
        status = _FAULT
    more: dict[str, Any] = {"request_id": call_id}
    if error.execution_id:
        more["execution_id"] = error.execution_id
    violations = (
        [] if is_internal else [(_map_field_name(one.field, reason.name), one.description) for one in error.violations]
    )
    if violations:
        more["violations"] = [{"param": param, "message": description} for param, description in violations]
    content = _build_content(
        INTERNAL_MESSAGE if is_internal else error.full_message,
        status=status,
        code=reason.name,
        param=violations[0][0] if violations else None,
    )
    # The clients of OpenAI retry 429 and 5xx by themselves: this header tells them where that would help.
    may_help = error.retry_after_s is not None or (isinstance(error, UNSPENT) and not isinstance(error, REFUSED))
    headers = [(b"x-should-retry", b"true" if may_help and status >= _STATUSES["RESOURCE_EXHAUSTED"] else b"false")]
    if error.retry_after_s is not None:
        wait_s = max(0.0, error.retry_after_s)
        headers += [(b"retry-after", b"%d" % math.ceil(wait_s)), (b"retry-after-ms", b"%d" % round(wait_s * 1000))]
    if status == _STATUSES["UNAUTHENTICATED"]:
        headers.append((b"www-authenticate", b"Bearer"))
    return {"status": status, "headers": headers, "body": to_json({"error": content | {"reasond": more}})}


def describe_response_error(
    error: ReasondError, call_id: str, partial: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return `error` as `describe_error` does, with the codes that clients of Responses know.

    What cannot work is 400, because these clients send any other 4xx again.
    """
    told = describe_error(error, call_id, partial)
    reason = error.declaration.name
    code = _NOT_FOUND.get(reason) or map_code(reason)
    content = from_json(told["body"])["error"]
    content["code"] = reason if code == "server_error" else code
    if content["param"] is not None and reason != "INTERNAL":
        content["param"] = _map_response_field(error.violations[0].field, reason)
        for one, violation in zip(content["reasond"]["violations"], error.violations, strict=False):
            one["param"] = _map_response_field(violation.field, reason)
    content["reasond"]["reason"] = reason
    status = 400 if told["status"] == _STATUSES["NOT_FOUND"] and reason in _NOT_FOUND else told["status"]
    return {**told, "status": status, "body": to_json({"error": content}), "is_chat": False}


def _map_response_field(field: str, reason: str) -> str:
    if (tool := _TOOL.match(field)) is not None:
        return f"tools.{tool['place']}.{tool['name'].removesuffix('_json')}"
    return _RESPONSE_PARAMETERS.get(field.partition("[")[0]) or _map_field_name(field, reason)


def describe_refusal(refusal: RefusalError, call_id: str) -> tuple[bytes, Sequence[tuple[bytes, bytes]]]:
    """Return the body and the headers for a request that was rejected before any method was called."""
    code = _CODES_OF_REFUSALS.get(refusal.status, "INVALID_REQUEST")
    content = _build_content(refusal.message, status=refusal.status, code=code, param=None)
    headers = [(name.encode("ascii"), value.encode("ascii")) for name, value in refusal.headers.items()]
    return to_json({"error": content | {"reasond": {"request_id": call_id}}}), headers


def _build_content(message: str, *, status: int, code: str, param: str | None) -> dict[str, Any]:
    kind = _TYPES.get(status, "server_error" if status >= _FAULT else "invalid_request_error")
    return {"message": message, "type": kind, "param": param, "code": code}


def _map_field_name(field: str, reason: str) -> str:
    """Return the name of a wrong field in this interface."""
    if (tool := _TOOL.match(field)) is not None:
        return f"tools.{tool['place']}.function.{tool['name'].removesuffix('_json')}"
    if (known := _PARAMETERS.get(field.partition("[")[0])) is not None:
        return known
    if field.startswith("budget."):
        return f"reasond.{field}"
    if reason == "INVALID_CONFIG" and field not in SAMPLING:
        return f"reasond.config.{field}"
    return field


OPENAI_ROOT: Final = "/v1/"
CHAT_PATH: Final = "/v1/chat/completions"
MODELS_PATH: Final = "/v1/models"
RESPONSES_PATH: Final = "/v1/responses"
OPENAI_PATHS: Final = (CHAT_PATH, MODELS_PATH, RESPONSES_PATH, f"{RESPONSES_PATH}/{{id}}")
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
OPENAI: Final = Dialect(
    transport="openai", describe=describe_error, missing_hint="Send it as api_key, in 'Authorization: Bearer <token>'"
)

OPENAI_CREATING: Final = Dialect(
    transport=OPENAI.transport, describe=describe_response_error, missing_hint=OPENAI.missing_hint
)
_SESSION_HEADERS: Final = (
    b"idempotency-key",
    b"x-client-request-id",
    b"session-id",
    b"session_id",
    b"thread-id",
    b"x-claude-code-session-id",
)
_RETRY_HEADER: Final = b"x-stainless-retry-count"
_CLOSE: Final = (b"connection", b"close")
_NOTHING: Final = (
    "there is nothing at this address; POST /v1/responses, POST /v1/chat/completions and GET /v1/models are here"
)


class OpenAiEndpoint:
    """Serves all paths below /v1/. `methods` has CHAT_METHOD and MODELS_METHOD."""

    def __init__(self, methods: Methods, gate: Gate, body_reader: BodyReader, observer: CallObserver) -> None:
        self._methods = methods
        self._gate = gate
        self._body_reader = body_reader
        self._observer = observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        exchange = find_exchange(scope)
        exchange.rpc_system = OPENAI.transport
        try:
            await self._serve(scope, exchange, receive, send)
        except RefusalError as refusal:
            body, headers = describe_refusal(refusal, exchange.call_id)
            await send_answer(send, refusal.status, body, headers=headers)

    async def _serve(self, scope: Scope, exchange: Exchange, receive: Receive, send: Send) -> None:
        """Serve the path of the request.

        Raises:
            RefusalError: there is nothing at the path, or it takes other methods.
        """
        path: str = scope["path"]
        calls = Calls(
            methods=self._methods, gate=self._gate, exchange=exchange, observer=self._observer, dialect=OPENAI
        )
        if path == CHAT_PATH:
            _enter(CHAT_PATH, ("POST",), scope, exchange)
            await self._complete(CHAT_METHOD, calls, scope, receive, send)
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
            await _send(send, _encode_answer(await calls.call(MODELS_METHOD, {"model": name}), calls))
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
        params |= {name: query[name] for name in ("after", "order") if name in query}
        params |= {name: int(query[name]) for name in ("starting_after", "limit") if query.get(name, "").isdecimal()}
        method = RESPONSE_METHODS[scope["method"], rest]
        if rest == "" and scope["method"] == "GET" and query.get("stream") == "true":
            answer = await run_unless_disconnected(
                _stream(calls.open(REPLAY_METHOD), params, send), find_disconnect(scope)
            )
        else:
            answer = _encode_answer(await calls.call(method, params), calls)
        if answer is not None:
            await _send(send, answer)

    async def _complete(self, method: str, calls: Calls, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = calls.exchange
        disconnect = find_disconnect(scope)
        try:
            body = await read_call_body(
                exchange, receive, gate=self._gate, body_reader=self._body_reader, host=find_host(scope)
            )
        except ReasondError as error:
            # The rest of the body is not read.
            await _send(send, calls.refuse(error), _CLOSE)
            return
        try:
            answer = await run_unless_disconnected(_answer(method, calls, body, send), disconnect)
        finally:
            self._body_reader.release(body)
        if answer is not None:
            await _send(send, answer)


async def _answer(method: str, calls: Calls, body: bytearray, send: Send) -> Mapping[str, Any] | None:
    """Return the answer to a request as {status, headers, body}; None if it was streamed."""
    try:
        params = await _read(body, calls.exchange)
    except ReasondError as error:
        return calls.refuse(error)
    if method == RESPONSES_METHOD:
        params = {**params, **_digest_request(body, calls.exchange)}
    if params.get("stream") is True and method != COUNT_METHOD:
        return await _stream(calls.open(method), params, send)
    return _encode_answer(await calls.call(method, params), calls)


def _digest_request(body: bytearray, exchange: Exchange) -> dict[str, Any]:
    """Return the parameters by which a request that is sent again finds what it began; none if nothing tells that.

    The body alone does not: who wants two answers sends equal ones at the same time. Clients of OpenAI's own libraries
    say how often they have sent a request; the first of its kind begins something, and only the others look for it.
    """
    sent = [(name, told) for name in _SESSION_HEADERS if (told := exchange.headers.first(name)) is not None]
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
    params = await parse_body(body)
    if not isinstance(params, dict):
        raise InvalidRequestError.of(Violation(field="body", description="must be a JSON object"))
    key = exchange.headers.first(b"idempotency-key")
    own = params.get("reasond") or {}
    if key is None or not isinstance(own, dict):
        return params
    if own.get("request_id", key) != key:
        description = "differs from the header Idempotency-Key; send one of them"
        raise InvalidRequestError.of(Violation(field="reasond.request_id", description=description))
    return {**params, "reasond": {**own, "request_id": key}}


async def _stream(call: Call, params: dict[str, Any], send: Send) -> Mapping[str, Any] | None:
    """Send the chunks of a chat as they come; return the error if there is one before the first chunk."""
    async with aclosing(call.events(params, None)) as chunks:
        try:
            first = await anext(chunks)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - every failure becomes an answer
            return await call.explain(convert_failure(error))
        await send_stream(send, _continue(call, first, chunks))
    return None


async def _continue(call: Call, first: bytes, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield `first` and the other chunks, and an error as an event."""
    chunk = first
    yield chunk
    try:
        async for chunk in chunks:
            yield chunk
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - every failure becomes an event
        described = await call.explain(convert_failure(error))
        # A response that failed has told so in its last event.
        if chunk == DONE:
            return
        content = from_json(described["body"])["error"]
        is_chat = described.get("is_chat", True)
        yield (
            frame_event(described["body"])
            if is_chat
            else frame_event(
                to_json({"type": "error", "sequence_number": 0, **content, "error": content}), name="error"
            )
        )


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


async def _send(send: Send, answer: Mapping[str, Any], *more: tuple[bytes, bytes]) -> None:
    await send_answer(send, answer["status"], answer["body"], headers=[NO_STORE, *answer["headers"], *more])
