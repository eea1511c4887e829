"""Errors as Anthropic's clients read them: `{"type": "error", "error": {type, message}, "request_id"}`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic_core import to_json

from reasond_server.errors.base import INTERNAL_MESSAGE, ReasondError
from reasond_server.http_api.exchange import RefusalError, frame_event
from reasond_server.protocols.openai_errors import find_status, write_headers

_OVERLOADED: Final = 529
_TYPES: Final = {
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
    body = _write(status, message, call_id, reasond=own)
    return {
        "status": status,
        "headers": [*write_headers(error, status), (b"request-id", call_id.encode("ascii", "replace"))],
        "body": body,
        "frame": frame_event(body, name="error"),
    }


def describe_message_refusal(refusal: RefusalError, call_id: str) -> tuple[bytes, Sequence[tuple[bytes, bytes]]]:
    """Return the body and the headers for a request that was rejected before any method was called."""
    return _write(refusal.status, refusal.message, call_id), refusal.raw_headers


def _write(status: int, message: str, call_id: str, **more: object) -> bytes:
    error = {"type": _TYPES.get(status, "api_error"), "message": message}
    return to_json({"type": "error", "error": error, "request_id": call_id, **more})
