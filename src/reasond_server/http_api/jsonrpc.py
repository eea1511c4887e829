"""JSON-RPC 2.0 as a pure function from bytes to bytes; independent of HTTP and of methods.

Source: the JSON-RPC 2.0 specification (2013-01-04). Our choices where it is open: ids are strings, integers or
null; any other id is rejected and not echoed; members of a request object that the
specification does not name are ignored; a batch runs concurrently and is answered in its own order.

Values are counted before the body is parsed: parsing 8 MiB of empty arrays would block the event loop for a second,
and of nested arrays for three.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Mapping
from typing import Any, Final, Protocol

from pydantic_core import PydanticSerializationError, from_json, to_json

from reasond_server.errors.base import InternalError, ReasondError
from reasond_server.errors.request import InvalidJsonRpcError, InvalidRequestError, ParseError
from reasond_server.types.values import value

MAX_DEPTH: Final = 32
"""Deepest nesting of arrays and objects in a body, the outermost counted."""

MAX_VALUES: Final = 100_000
"""Most values in a body, at all levels together: parsing and checking them blocks the loop for at most 30 ms."""

MAX_BATCH: Final = 20
"""Default maximum of entries in a batch."""

MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
"""Largest answer of one call, so that a batch cannot exceed the server's memory."""

_LONG_BODY_BYTES: Final = 512 * 1024
"""A longer body is parsed in a thread: counting the values in 2 MB of text takes 20 ms."""

RpcParams = dict[str, Any] | list[Any]
RpcId = str | int | None


@value
class RpcRequest:
    """A well-formed request object; `params` are empty if it has none."""

    method: str
    params: RpcParams
    rpc_id: RpcId
    is_notification: bool


class Handler(Protocol):
    """The application behind the protocol: runs methods and formats errors."""

    def call(self, method: str, params: RpcParams) -> Awaitable[Mapping[str, Any]]:
        """Call `method`; return the one member of its answer, `{"result": ...}` or `{"error": {...}}`."""

    def refuse(self, error: ReasondError) -> Mapping[str, Any]:
        """Return the error object for `error`."""


async def dispatch(body: bytes | bytearray, handler: Handler, *, max_batch: int = MAX_BATCH) -> bytes | None:
    """Run the call, or the batch of at most `max_batch` calls, that `body` holds; return the answer.

    None means that there is nothing to answer: every call was a notification. Notifications run like
    other calls, but not even their errors are answered. Cancelling cancels every call.
    """
    try:
        payload = await parse_body(body)
    except ParseError as error:
        return _encode_answer({"error": handler.refuse(error)}, None, handler)
    if not isinstance(payload, list):
        return await _answer(payload, handler)
    if not payload or len(payload) > max_batch:
        refusal = InvalidJsonRpcError(f"Invalid Request: a batch has 1 to {max_batch} entries, not {len(payload)}")
        return _encode_answer({"error": handler.refuse(refusal)}, None, handler)
    # No entry can cancel others: every failure becomes an answer, except the cancellation of the whole batch.
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_answer(entry, handler)) for entry in payload]
    answers = [answer for task in tasks if (answer := task.result()) is not None]
    return b"[" + b",".join(answers) + b"]" if answers else None


def parse(body: bytes | bytearray) -> Any:  # noqa: ANN401 - any JSON value
    """Return the JSON value that `body` holds.

    Of two members with the same name, the last one counts; all code agrees on this, because the body is
    parsed only here. Numbers that are not finite, lone surrogates, a byte order mark and integers of more
    than 4,300 digits are rejected.

    Raises:
        ParseError: `body` is not JSON, not UTF-8, nested deeper than MAX_DEPTH, or has more than MAX_VALUES values.
    """
    if holds_more_values(body, MAX_VALUES):
        raise ParseError(f"Parse error: the body holds more than {MAX_VALUES} values")
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        place = re.search(r"line \d+ column \d+", str(error))
        where = f" (at {place[0]})" if place else ""
        raise ParseError(f"Parse error: the body is not valid JSON{where}") from None
    _refuse_deep(value)
    return value


async def parse_body(body: bytes | bytearray) -> Any:  # noqa: ANN401 - any JSON value
    """Return what `parse` returns; a long body does not block the event loop."""
    return await asyncio.to_thread(parse, body) if len(body) > _LONG_BODY_BYTES else parse(body)


async def parse_object(body: bytes | bytearray) -> dict[str, Any]:
    """Return the JSON object that `body` holds.

    Raises:
        ParseError: as `parse` does.
        InvalidRequestError: it is another value.
    """
    given = await parse_body(body)
    if not isinstance(given, dict):
        raise InvalidRequestError.at("body", "must be a JSON object")
    return given


def read_request(entry: object) -> RpcRequest:
    """Return `entry` as a request.

    Raises:
        InvalidJsonRpcError: `entry` is not a request object.
    """
    if not isinstance(entry, dict):
        raise InvalidJsonRpcError("Invalid Request: a request is an object")
    if entry.get("jsonrpc") != "2.0":
        raise InvalidJsonRpcError('Invalid Request: "jsonrpc" must be "2.0"')
    method, params, rpc_id = entry.get("method"), entry.get("params", {}), entry.get("id")
    if not isinstance(method, str):
        raise InvalidJsonRpcError('Invalid Request: "method" must be a string')
    if not isinstance(params, (dict, list)):
        raise InvalidJsonRpcError('Invalid Request: "params" must be an object; leave it out for none')
    if not _is_id(rpc_id):
        raise InvalidJsonRpcError('Invalid Request: "id" must be a string, a whole number or null')
    return RpcRequest(method=method, params=params, rpc_id=rpc_id, is_notification="id" not in entry)


def unread(error: ReasondError, handler: Handler) -> bytes:
    """Return the answer to a body that was not read because of `error`; the id of its call is unknown."""
    return to_json({"jsonrpc": "2.0", "error": handler.refuse(error), "id": None})


async def _answer(entry: object, handler: Handler) -> bytes | None:
    """Run one entry and return its answer; None for a notification."""
    try:
        request = read_request(entry)
    except InvalidJsonRpcError as error:
        return _encode_answer({"error": handler.refuse(error)}, _echo_id(entry), handler)
    member = await handler.call(request.method, request.params)
    return None if request.is_notification else _encode_answer(member, request.rpc_id, handler)


def _encode_answer(member: Mapping[str, Any], rpc_id: RpcId, handler: Handler) -> bytes:
    """Return an answer as JSON; if it is too large or not valid JSON, its call gets an error."""
    failure: ReasondError
    try:
        answer = to_json({"jsonrpc": "2.0", **member, "id": rpc_id}, inf_nan_mode="null")
    except PydanticSerializationError as error:
        failure = InternalError("the answer is not JSON")
        failure.__cause__ = error
    else:
        if len(answer) <= MAX_ANSWER_BYTES or "result" not in member:
            return answer
        text = f"The answer holds {len(answer)} bytes, over the limit of {MAX_ANSWER_BYTES} for one call"
        failure = InvalidRequestError(text, remedy="Ask for less, such as a smaller page_size.")
    return to_json({"jsonrpc": "2.0", "error": handler.refuse(failure), "id": rpc_id})


def _is_id(value: object) -> bool:
    """Return whether `value` may be the id of a request."""
    return value is None or (isinstance(value, (str, int)) and not isinstance(value, bool))


def _echo_id(entry: object) -> RpcId:
    """Return the id for the error answer to a malformed `entry`."""
    rpc_id = entry.get("id") if isinstance(entry, dict) else None
    return rpc_id if _is_id(rpc_id) else None


def _refuse_deep(value: Any) -> None:  # noqa: ANN401 - any JSON value
    """Reject values that are nested too deep, and infinite numbers such as 1e400."""
    # Level by level instead of recursively: a deeply nested value must not exhaust the stack.
    level = [value]
    for depth in range(MAX_DEPTH + 1):
        inner: list[object] = []
        has_containers = False
        for node in level:
            kind = type(node)
            if kind is str:
                # The most frequent kind.
                continue
            if kind is dict:
                inner.extend(node.values())
                has_containers = True
            elif kind is list:
                inner.extend(node)
                has_containers = True
            elif kind is float and not math.isfinite(node):
                raise ParseError("Parse error: a number is too large")
        if not has_containers:
            return
        if depth == MAX_DEPTH:
            raise ParseError(f"Parse error: the body is nested deeper than {MAX_DEPTH} levels")
        level = inner


# Matches up to the next sign of another value: a comma, or the start of a non-empty array or object. Strings are
# skipped, even unterminated ones. Possessive, and the end also matches: no byte of a hostile text is read twice.
_TO_MARK: Final = re.compile(
    rb'(?:[^",\[{]++|"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{](?=\s*+[\]}]))*+(?:([,\[{])|\Z)', re.DOTALL
)


def holds_more_values(body: bytes | bytearray, most: int) -> bool:
    """Return whether the JSON text `body` holds more than `most` members and items, at all levels together.

    Members with the same name each count. The result for invalid JSON is arbitrary; the time is linear in `body`.
    """
    # Every value takes two bytes or more: a digit and a comma, or two brackets.
    if len(body) <= 2 * most:
        return False
    # Three fast passes in C, which are enough unless the text has as many commas as a hostile one.
    if body.count(b",") + body.count(b"[") + body.count(b"{") <= most:
        return False
    # A loop of Python, in which other threads have their turn; `enumerate` counts from 0.
    for count, found in enumerate(_TO_MARK.finditer(body)):
        if found[1] is None:
            return False
        if count == most:
            return True
    return False
