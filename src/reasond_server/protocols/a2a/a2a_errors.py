"""Errors as clients of A2A read them (section 5.4 of the specification), for its three bindings.

The core's errors keep their reasons. What A2A has a name for is told by that name, in the domain of A2A.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_json

from reasond_server.errors.base import INTERNAL_MESSAGE
from reasond_server.errors.request import InvalidRequestError
from reasond_server.http_api.exchange import frame_event
from reasond_server.protocols.openai_errors import STATUSES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reasond_server.errors.base import ReasondError


class A2aReason(Enum):
    """One error of A2A: its name, and how gRPC and JSON-RPC number it."""

    TASK_NOT_FOUND = ("NOT_FOUND", -32001)
    TASK_NOT_CANCELABLE = ("FAILED_PRECONDITION", -32002)
    PUSH_NOTIFICATION_NOT_SUPPORTED = ("FAILED_PRECONDITION", -32003)
    UNSUPPORTED_OPERATION = ("FAILED_PRECONDITION", -32004)
    CONTENT_TYPE_NOT_SUPPORTED = ("INVALID_ARGUMENT", -32005)
    VERSION_NOT_SUPPORTED = ("FAILED_PRECONDITION", -32009)
    INVALID_PARAMS = ("INVALID_ARGUMENT", -32602)
    INVALID_REQUEST = ("INVALID_ARGUMENT", -32600)


_OF_OURS: Final = {
    **dict.fromkeys(("EXECUTION_NOT_FOUND", "TURN_NOT_FOUND", "CURSOR_EXPIRED"), A2aReason.TASK_NOT_FOUND),
    **dict.fromkeys(("TURN_NOT_AWAITING", "HANDOFF_EXPIRED"), A2aReason.UNSUPPORTED_OPERATION),
    "REQUEST_ID_REUSED": A2aReason.INVALID_PARAMS,
}
_INVALID: Final = frozenset({"INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION"})
_GONE: Final = "Task not found: no task of this caller has that id, or it is no longer kept"
_WORDS: Final = {
    **{name: _GONE for name, known in _OF_OURS.items() if known is A2aReason.TASK_NOT_FOUND},
    "REQUEST_ID_REUSED": "The messageId was used before with another message. Send each message with an id of its own.",
    "INTERNAL": INTERNAL_MESSAGE,
}
"""The messages where the core has words of other wires."""
_TYPES: Final = "type.googleapis.com/google.rpc."


class A2aError(InvalidRequestError):
    """A refusal that A2A has a name for: `a2a` in place of the reason of its base class."""

    def __init__(self, a2a: A2aReason, message: str, *, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.a2a = a2a


ToldError = tuple[str, str, list[dict[str, Any]], int]
"""An error in the words of A2A: the name of its gRPC status, its message, messages of google.rpc, its JSON-RPC code."""


def tell_error(error: ReasondError, call_id: str) -> ToldError:
    """Return `error` in the words of A2A; of a fault of the server it tells the id of the call alone."""
    declared = error.declaration
    known = error.a2a if isinstance(error, A2aError) else _OF_OURS.get(declared.name)
    grpc_status, code = declared.grpc_status, declared.jsonrpc_code
    if known is None and code == A2aReason.INVALID_PARAMS.value[1] and grpc_status in _INVALID:
        known = A2aReason.INVALID_PARAMS
    name, domain = declared.name, "reasond"
    if known is not None:
        name, domain, (grpc_status, code) = known.name, "a2a-protocol.org", known.value
    metadata = {"request_id": call_id}
    if error.execution_id:
        metadata["task_id"] = error.execution_id
    if error.retry_after_ms is not None:
        metadata["retry_after_ms"] = str(error.retry_after_ms)
    details: list[dict[str, Any]] = [
        {"@type": f"{_TYPES}ErrorInfo", "reason": name, "domain": domain, "metadata": metadata}
    ]
    if error.violations:
        fields = [{"field": each.field, "description": each.description} for each in error.violations]
        details.append({"@type": f"{_TYPES}BadRequest", "fieldViolations": fields})
    return grpc_status, _WORDS.get(declared.name, error.full_message), details, code


def describe_rpc_error(
    rpc_id: object, error: ReasondError, call_id: str, _partial: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """Return `error` as JSON-RPC has it: {status, headers, body, frame}."""
    _, message, details, code = tell_error(error, call_id)
    body = to_json({"jsonrpc": "2.0", "id": rpc_id, "error": {"code": code, "message": message, "data": details}})
    return {"status": 200, "headers": (), "body": body, "frame": frame_event(body, name="error")}


def describe_http_error(
    error: ReasondError, call_id: str, _partial: Mapping[str, Any] | None, *, status: int = 0
) -> Mapping[str, Any]:
    """Return `error` as HTTP+JSON has it: {status, headers, body, frame} (AIP-193)."""
    name, message, details, _ = tell_error(error, call_id)
    headers = [(b"www-authenticate", b"Bearer")] if name == "UNAUTHENTICATED" else []
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % math.ceil(error.retry_after_s)))
    code = status or STATUSES.get(name, 500)
    body = to_json({"error": {"code": code, "status": name, "message": message, "details": details}})
    return {"status": code, "headers": headers, "body": body, "frame": frame_event(body, name="error")}
