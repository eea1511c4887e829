"""Errors as OpenAI's and Anthropic's clients read them: the status, the headers, and the error object of each.

The wires of OpenAI differ in the names of fields, and in what a client of theirs does with a code: see `ErrorWords`. An
error of Anthropic's is `{"type": "error", "error": {type, message}, "request_id"}`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from pydantic_core import to_json

from reasond_server.errors.base import INTERNAL_MESSAGE, Reason, ReasondError
from reasond_server.errors.model import can_be_retried
from reasond_server.http_api.exchange import RefusalError, frame_event
from reasond_server.protocols.openai_requests import SAMPLING
from reasond_server.types.values import value

STATUSES: Final = {
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
"""The statuses of HTTP by those of gRPC."""

_FAULT: Final = 500
_TOOL: Final = re.compile(r"client_tools\[(?P<place>\d+)\]\.(?P<name>\w+)")
_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES_OF_REFUSALS: Final = {404: "METHOD_NOT_FOUND", 405: "METHOD_NOT_FOUND", 503: "OVERLOADED"}
# The codes by which clients of Responses decide whether to send a request again.
_CODES: Final = {
    "TOKEN_BUDGET_EXHAUSTED": "insufficient_quota",
    "CONTEXT_EXHAUSTED": "context_length_exceeded",
    "ANSWER_INVALID": "invalid_prompt",
    "INVALID_CONFIG": "invalid_prompt",
    "INVALID_REQUEST": "invalid_prompt",
    "RATE_LIMITED": "rate_limit_exceeded",
    "MODEL_RATE_LIMITED": "rate_limit_exceeded",
}
_NOT_FOUND: Final = {
    "EXECUTION_NOT_FOUND": "previous_response_not_found",
    "CURSOR_EXPIRED": "previous_response_not_found",
    "STRATEGY_NOT_FOUND": "model_not_found",
}


@value
class ErrorWords:
    """How one wire names what is wrong: `said` is the field of what was said, `system` that of instructions.

    With `has_codes` a code is one that clients of Responses know, and what cannot work is 400, because these clients
    send any other 4xx again.
    """

    said: str
    system: str
    schema: str
    bound: str
    function: str = ""
    has_codes: bool = False

    def name_field(self, field: str, reason: str) -> str:
        """Return the name of a wrong field on this wire."""
        if (tool := _TOOL.match(field)) is not None:
            return f"tools.{tool['place']}.{self.function}{tool['name'].removesuffix('_json')}"
        known = {
            **dict.fromkeys(("query", "message", "results", "history", "images"), self.said),
            "system": self.system,
            **dict.fromkeys(("answer_schema", "answer_schema_json"), self.schema),
            **{name: f"reasond.{name}" for name in ("material", "request_id")},
            "budget.max_output_tokens": self.bound,
            "client_tools": "tools",
        }.get(field.partition("[")[0])
        if known is not None:
            return known
        if field.startswith("budget."):
            return f"reasond.{field}"
        return f"reasond.config.{field}" if reason == "INVALID_CONFIG" and field not in SAMPLING else field


_CHAT: Final = ErrorWords(
    said="messages",
    system="messages",
    schema="response_format.json_schema.schema",
    bound="max_completion_tokens",
    function="function.",
)
_RESPONSES: Final = ErrorWords(
    said="input", system="instructions", schema="text.format.schema", bound="max_output_tokens", has_codes=True
)


def describe_error(
    error: ReasondError, call_id: str, _partial: Mapping[str, Any] | None = None, *, words: ErrorWords = _CHAT
) -> dict[str, Any]:
    """Return `error` as {status, headers, body, frame}: the error object as JSON, and as an event of a stream.

    `code` is our reason, unless the wire has codes, and `param` the first wrong field. A fault of the server has only
    its request id.
    """
    reason = error.declaration
    is_internal = reason.name == "INTERNAL"
    status = find_status(reason)
    code = reason.name
    more: dict[str, Any] = {"request_id": call_id}
    if words.has_codes:
        code = _NOT_FOUND.get(code) or _CODES.get(code, code)
        status = STATUSES["INVALID_ARGUMENT"] if reason.name in _NOT_FOUND else status
        more["reason"] = reason.name
    if error.execution_id:
        more["execution_id"] = error.execution_id
    violations = (
        [] if is_internal else [(words.name_field(one.field, reason.name), one.description) for one in error.violations]
    )
    if violations:
        more["violations"] = [{"param": param, "message": description} for param, description in violations]
    content = _build_content(
        INTERNAL_MESSAGE if is_internal else error.full_message,
        status=status,
        code=code,
        param=violations[0][0] if violations else None,
    )
    content["reasond"] = more
    body = to_json({"error": content})
    event = {"type": "error", "sequence_number": 0, **content, "error": content}
    frame = frame_event(to_json(event), name="error") if words.has_codes else frame_event(body)
    return {"status": status, "headers": write_headers(error, status), "body": body, "frame": frame}


def find_status(reason: Reason) -> int:
    """Return the status of HTTP for `reason`."""
    status = STATUSES.get(reason.grpc_status, _FAULT)
    return max(status, _FAULT) if reason.is_fault else status


describe_response_error: Final = partial(describe_error, words=_RESPONSES)
"""Describes an error as `describe_error` does, for clients of Responses."""


def map_code(reason: str) -> str:
    """Return the code with which a response fails."""
    return _CODES.get(reason, "server_error")


def write_headers(error: ReasondError, status: int) -> list[tuple[bytes, bytes]]:
    """Return the headers that say when a request may be sent again."""
    # The clients of OpenAI retry 429 and 5xx by themselves: this header tells them where that would help.
    may_help = can_be_retried(error) and status >= STATUSES["RESOURCE_EXHAUSTED"]
    headers = [(b"x-should-retry", b"true" if may_help else b"false")]
    if (wait_ms := error.retry_after_ms) is not None:
        headers += [(b"retry-after", b"%d" % math.ceil(wait_ms / 1000)), (b"retry-after-ms", b"%d" % wait_ms)]
    if status == STATUSES["UNAUTHENTICATED"]:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


def describe_refusal(refusal: RefusalError, call_id: str) -> tuple[bytes, Sequence[tuple[bytes, bytes]]]:
    """Return the body and the headers for a request that was rejected before any method was called."""
    code = _CODES_OF_REFUSALS.get(refusal.status, "INVALID_REQUEST")
    content = _build_content(refusal.message, status=refusal.status, code=code, param=None)
    return to_json({"error": content | {"reasond": {"request_id": call_id}}}), refusal.raw_headers


def _build_content(message: str, *, status: int, code: str, param: str | None) -> dict[str, Any]:
    kind = _TYPES.get(status, "server_error" if status >= _FAULT else "invalid_request_error")
    return {"message": message, "type": kind, "param": param, "code": code}


_OVERLOADED: Final = 529
_MESSAGE_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    _OVERLOADED: "overloaded_error",
}


def describe_message_error(
    error: ReasondError, call_id: str, _partial: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return `error` as {status, headers, body, frame}; `reasond` has our reason and the wrong fields."""
    reason = error.declaration
    is_internal = reason.name == "INTERNAL"
    status = find_status(reason)
    status = _OVERLOADED if status == 503 else status  # noqa: PLR2004 - clients know what is for a while by this one
    own: dict[str, Any] = {"reason": reason.name}
    if error.execution_id:
        own["execution_id"] = error.execution_id
    if error.violations and not is_internal:
        own["violations"] = [{"field": one.field, "message": one.description} for one in error.violations]
    message = INTERNAL_MESSAGE if is_internal else error.full_message
    body = _write_message(status, message, call_id, reasond=own)
    return {
        "status": status,
        "headers": [*write_headers(error, status), (b"request-id", call_id.encode("ascii", "replace"))],
        "body": body,
        "frame": frame_event(body, name="error"),
    }


def describe_message_refusal(refusal: RefusalError, call_id: str) -> tuple[bytes, Sequence[tuple[bytes, bytes]]]:
    """Return the body and the headers for a request that was rejected before any method was called."""
    return _write_message(refusal.status, refusal.message, call_id), refusal.raw_headers


def _write_message(status: int, message: str, call_id: str, **more: object) -> bytes:
    error = {"type": _MESSAGE_TYPES.get(status, "api_error"), "message": message}
    return to_json({"type": "error", "error": error, "request_id": call_id, **more})
