"""Errors as JSON-RPC error objects: code and message by the one table, the rest in `data`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from reasond_server.errors import InternalError, ReasondError
from reasond_server.reasons import INTERNAL_MESSAGE

if TYPE_CHECKING:
    from collections.abc import Mapping


def error_object(error: ReasondError, *, request_id: str, partial: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return `error` as `{code, message, data}`; `partial` is the result that a failed execution left.

    `data` is {reason, grpc_code, request_id, remedy?, retry_after_ms?, violations?, partial?}; `remedy` is there
    only where the message does not say it (`Reason.is_bare`). A fault of the server tells its request id alone.
    """
    reason = error.declaration
    data: dict[str, Any] = {"reason": reason.name, "grpc_code": reason.grpc_status, "request_id": request_id}
    if reason.name == "INTERNAL":
        message = INTERNAL_MESSAGE
    else:
        message = error.message if reason.is_bare else error.full_message
        data |= _advice(error, is_bare=reason.is_bare)
    if partial is not None:
        data["partial"] = dict(partial)
    return {"code": reason.jsonrpc_code, "message": message, "data": data}


def failure_of(error: BaseException) -> ReasondError:
    """Return `error` as one of ours: what is foreign becomes a fault that keeps it as its cause.

    Raises:
        asyncio.CancelledError: the caller's own task is being cancelled; a stray one is a fault like others.
    """
    if isinstance(error, ReasondError):
        return error
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
        raise error
    fault = InternalError("unexpected error in the method")
    fault.__cause__ = error
    return fault


def _advice(error: ReasondError, *, is_bare: bool) -> dict[str, Any]:
    """Return what helps the caller to do better."""
    advice: dict[str, Any] = {}
    if is_bare and error.remedy:
        advice["remedy"] = error.remedy
    if error.retry_after_s is not None:
        advice["retry_after_ms"] = max(0, round(error.retry_after_s * 1000))
    if error.violations:
        advice["violations"] = [
            {"field": violation.field, "description": violation.description} for violation in error.violations
        ]
    return advice
