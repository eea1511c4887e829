"""Errors as OpenAI's interface shows them: an error object, an HTTP status, and the headers that its clients read."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_json

from reasond_server.errors.base import INTERNAL_MESSAGE
from reasond_server.errors.model import UNSPENT
from reasond_server.protocols.chat.chat_params import SAMPLING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.errors.base import ReasondError
    from reasond_server.http_api.exchange import RefusalError

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
        [] if is_internal else [(_name_of(one.field, reason.name), one.description) for one in error.violations]
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
    may_help = error.retry_after_s is not None or isinstance(error, UNSPENT)
    headers = [(b"x-should-retry", b"true" if may_help and status >= _STATUSES["RESOURCE_EXHAUSTED"] else b"false")]
    if error.retry_after_s is not None:
        wait_s = max(0.0, error.retry_after_s)
        headers += [(b"retry-after", b"%d" % math.ceil(wait_s)), (b"retry-after-ms", b"%d" % round(wait_s * 1000))]
    if status == _STATUSES["UNAUTHENTICATED"]:
        headers.append((b"www-authenticate", b"Bearer"))
    return {"status": status, "headers": headers, "body": to_json({"error": content | {"reasond": more}})}


def describe_refusal(refusal: RefusalError, call_id: str) -> tuple[bytes, Sequence[tuple[bytes, bytes]]]:
    """Return the body and the headers for a request that was rejected before any method was called."""
    code = _CODES_OF_REFUSALS.get(refusal.status, "INVALID_REQUEST")
    content = _build_content(refusal.message, status=refusal.status, code=code, param=None)
    headers = [(name.encode("ascii"), value.encode("ascii")) for name, value in refusal.headers.items()]
    return to_json({"error": content | {"reasond": {"request_id": call_id}}}), headers


def _build_content(message: str, *, status: int, code: str, param: str | None) -> dict[str, Any]:
    kind = _TYPES.get(status, "server_error" if status >= _FAULT else "invalid_request_error")
    return {"message": message, "type": kind, "param": param, "code": code}


def _name_of(field: str, reason: str) -> str:
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
