"""Errors as clients of A2A read them (section 5.4 of the specification), for its three bindings.

The core's errors keep their reasons in metrics and logs. What A2A has a name for is told by that name, in its domain.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from reasond_server.errors.base import DOMAIN, Reason, ReasondError
from reasond_server.errors.request import InvalidRequestError


class A2aReason(Enum):
    """The errors that A2A has names for."""

    TASK_NOT_FOUND = ("NOT_FOUND", -32001)
    TASK_NOT_CANCELABLE = ("FAILED_PRECONDITION", -32002)
    PUSH_NOTIFICATION_NOT_SUPPORTED = ("FAILED_PRECONDITION", -32003)
    UNSUPPORTED_OPERATION = ("FAILED_PRECONDITION", -32004)
    CONTENT_TYPE_NOT_SUPPORTED = ("INVALID_ARGUMENT", -32005)
    VERSION_NOT_SUPPORTED = ("FAILED_PRECONDITION", -32009)
    INVALID_PARAMS = ("INVALID_ARGUMENT", -32602)
    INVALID_REQUEST = ("INVALID_ARGUMENT", -32600)


_INVALID: Final = frozenset({"INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION"})
_GONE: Final = "Task not found: no task of this caller has that id, or it is no longer kept"
_REUSED: Final = "The messageId was used before with another message. Send each message with an id of its own."
# By the reasons of the core; with other words where it has those of other wires.
_OF_OURS: Final = {
    **dict.fromkeys(("EXECUTION_NOT_FOUND", "TURN_NOT_FOUND", "CURSOR_EXPIRED"), (A2aReason.TASK_NOT_FOUND, _GONE)),
    **dict.fromkeys(("TURN_NOT_AWAITING", "HANDOFF_EXPIRED"), (A2aReason.UNSUPPORTED_OPERATION, "")),
    "REQUEST_ID_REUSED": (A2aReason.INVALID_PARAMS, _REUSED),
}


class A2aError(InvalidRequestError):
    """A refusal that A2A has a name for: `a2a` in place of the reason of its base class.

    `status` is the status of HTTP, where it is not that of the reason.
    """

    def __init__(self, a2a: A2aReason, message: str, *, remedy: str = "", status: int = 0) -> None:
        super().__init__(message, remedy=remedy)
        self.a2a = a2a
        self.status = status


def translate_error(error: ReasondError) -> tuple[ReasondError, Reason, str]:
    """Return an error in the words of A2A, its reason, and the domain of that."""
    own, told = error.declaration, error.copy()
    known: A2aReason | None = None
    words = ""
    if isinstance(error, A2aError):
        known = error.a2a
    elif own.name in _OF_OURS:
        known, words = _OF_OURS[own.name]
    elif own.jsonrpc_code == A2aReason.INVALID_PARAMS.value[1] and own.grpc_status in _INVALID:
        known = A2aReason.INVALID_PARAMS
    if error.execution_id:
        told.metadata = {**error.metadata, "task_id": error.execution_id}
    if words:
        told.message, told.remedy = words, ""
    if known is None:
        return told, own, DOMAIN
    return told, Reason(known.name, *known.value, remedy=""), "a2a-protocol.org"
