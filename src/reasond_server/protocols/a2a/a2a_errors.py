"""Errors as clients of A2A read them (section 5.4 of the specification), for its three bindings.

The core's errors keep their reasons. What A2A has a name for is told by that name, in the domain of A2A.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic_core import to_json

from reasond_server.errors.base import INTERNAL_MESSAGE
from reasond_server.errors.request import InvalidRequestError
from reasond_server.http_api.exchange import frame_event
from reasond_server.protocols.openai_errors import STATUSES
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reasond_server.errors.base import ReasondError
    from reasond_server.http_api.exchange import RefusalError


class A2aReason(NamedTuple):
    """One error of A2A: its name, and how gRPC, JSON-RPC and HTTP number it."""

    name: str
    grpc_status: str
    jsonrpc_code: int
    http_status: int


TASK_NOT_FOUND: Final = A2aReason("TASK_NOT_FOUND", "NOT_FOUND", -32001, 404)
TASK_NOT_CANCELABLE: Final = A2aReason("TASK_NOT_CANCELABLE", "FAILED_PRECONDITION", -32002, 400)
PUSH_NOT_SUPPORTED: Final = A2aReason("PUSH_NOTIFICATION_NOT_SUPPORTED", "FAILED_PRECONDITION", -32003, 400)
UNSUPPORTED_OPERATION: Final = A2aReason("UNSUPPORTED_OPERATION", "FAILED_PRECONDITION", -32004, 400)
CONTENT_TYPE_NOT_SUPPORTED: Final = A2aReason("CONTENT_TYPE_NOT_SUPPORTED", "INVALID_ARGUMENT", -32005, 400)
VERSION_NOT_SUPPORTED: Final = A2aReason("VERSION_NOT_SUPPORTED", "FAILED_PRECONDITION", -32009, 400)
_INVALID_PARAMS: Final = A2aReason("INVALID_PARAMS", "INVALID_ARGUMENT", -32602, 400)
_OF_OURS: Final = {
    "EXECUTION_NOT_FOUND": TASK_NOT_FOUND,
    "TURN_NOT_FOUND": TASK_NOT_FOUND,
    "CURSOR_EXPIRED": TASK_NOT_FOUND,
    "TURN_NOT_AWAITING": UNSUPPORTED_OPERATION,
    "HANDOFF_EXPIRED": UNSUPPORTED_OPERATION,
}
_INVALID: Final = frozenset({"INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION"})
_DOMAIN: Final = "a2a-protocol.org"
_WORDS: Final = {
    TASK_NOT_FOUND.name: "Task not found: no task of this caller has that id, or it is no longer kept",
    "REQUEST_ID_REUSED": "The messageId was used before with another message. Send each message with an id of its own.",
    "INTERNAL": INTERNAL_MESSAGE,
}
"""The messages where the core has words of other wires."""
_OWN_DOMAIN: Final = "reasond"
_INFO: Final = "type.googleapis.com/google.rpc.ErrorInfo"
_BAD_REQUEST: Final = "type.googleapis.com/google.rpc.BadRequest"
_UNSUPPORTED_MEDIA_TYPE: Final = 415


class A2aError(InvalidRequestError):
    """A refusal that A2A has a name for: `a2a` in place of the reason of its base class."""

    def __init__(self, a2a: A2aReason, message: str, *, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.a2a = a2a


@value
class ToldError:
    """An error in the words of A2A; `details` are messages of google.rpc as JSON, the ErrorInfo first."""

    grpc_status: str
    jsonrpc_code: int
    http_status: int
    message: str
    details: list[dict[str, Any]]


def tell_error(error: ReasondError, call_id: str) -> ToldError:
    """Return `error` in the words of A2A; of a fault of the server it tells the id of the call alone."""
    declared = error.declaration
    known = error.a2a if isinstance(error, A2aError) else _OF_OURS.get(declared.name)
    if known is None and declared.jsonrpc_code == _INVALID_PARAMS.jsonrpc_code and declared.grpc_status in _INVALID:
        known = _INVALID_PARAMS
    metadata = {"request_id": call_id}
    if error.execution_id:
        metadata["task_id"] = error.execution_id
    if error.retry_after_ms is not None:
        metadata["retry_after_ms"] = str(error.retry_after_ms)
    name, domain = (declared.name, _OWN_DOMAIN) if known is None else (known.name, _DOMAIN)
    details: list[dict[str, Any]] = [{"@type": _INFO, "reason": name, "domain": domain, "metadata": metadata}]
    if error.violations:
        fields = [{"field": each.field, "description": each.description} for each in error.violations]
        details.append({"@type": _BAD_REQUEST, "fieldViolations": fields})
    return ToldError(
        grpc_status=declared.grpc_status if known is None else known.grpc_status,
        jsonrpc_code=declared.jsonrpc_code if known is None else known.jsonrpc_code,
        http_status=STATUSES.get(declared.grpc_status, 500) if known is None else known.http_status,
        message=_WORDS.get(declared.name if known is None else known.name, error.full_message),
        details=details,
    )


def describe_rpc_error(
    rpc_id: object, error: ReasondError, call_id: str, _partial: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """Return `error` as JSON-RPC has it: {status, headers, body, frame}."""
    shown = tell_error(error, call_id)
    member = {"code": shown.jsonrpc_code, "message": shown.message, "data": shown.details}
    body = to_json({"jsonrpc": "2.0", "id": rpc_id, "error": member})
    return {"status": 200, "headers": (), "body": body, "frame": frame_event(body, name="error")}


def describe_http_error(error: ReasondError, call_id: str, _partial: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return `error` as HTTP+JSON has it: {status, headers, body, frame} (AIP-193)."""
    shown = tell_error(error, call_id)
    headers = [(b"www-authenticate", b"Bearer")] if shown.grpc_status == "UNAUTHENTICATED" else []
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % math.ceil(error.retry_after_s)))
    body = _write_body(shown.http_status, shown.grpc_status, shown.message, shown.details)
    return {"status": shown.http_status, "headers": headers, "body": body, "frame": frame_event(body, name="error")}


def describe_http_refusal(refusal: RefusalError, call_id: str) -> bytes:
    """Return the body for a request that was refused before anything was run."""
    is_type = refusal.status == _UNSUPPORTED_MEDIA_TYPE
    reason, domain = (CONTENT_TYPE_NOT_SUPPORTED.name, _DOMAIN) if is_type else ("INVALID_REQUEST", _OWN_DOMAIN)
    info = {"@type": _INFO, "reason": reason, "domain": domain, "metadata": {"request_id": call_id}}
    status = next((name for name, code in STATUSES.items() if code == refusal.status), "INVALID_ARGUMENT")
    return _write_body(refusal.status, status, refusal.message, [info])


def _write_body(code: int, status: str, message: str, details: list[dict[str, Any]]) -> bytes:
    return to_json({"error": {"code": code, "status": status, "message": message, "details": details}})
