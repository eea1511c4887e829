"""The errors of calls: typed errors, parsed from the `google.rpc.Status` of a failed call.

    ReasondError
    ├── InvalidRequestError       a field is missing or out of range; `violations` names it
    ├── StrategyError             no such strategy, not offered by the agent, or none named
    ├── AuthenticationError       the token is missing, wrong or expired
    ├── PermissionDeniedError     the token lacks a permission
    ├── ResourceExhaustedError    a rate, budget, size or storage limit was reached
    ├── UnavailableError          nothing was spent; try again later
    ├── NotFoundError             no such execution, turn, session or agent, or its log is no longer stored
    ├── ConflictError             the request id was used before, the etag has changed, or a turn does not wait
    ├── ModelError                the language model failed
    ├── DeadlineExceededError     the deadline of the call passed
    ├── CallCancelledError        the call was cancelled, but not by the waiting task
    └── InternalError             a fault of the server

The status code decides the class, unless `reason`, the name of an `ErrorReason` without its prefix, is more specific:
reasons of strategies and models have their own classes, whatever the code is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # it ships no types

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DOMAIN: Final = "reasond"
_DETAILS_KEY = "grpc-status-details-bin"
_NANOS = 1e9


class Violation(NamedTuple):  # same name: what the server raises, as the client raises it
    """One problem of a request: the path of the field and a description of valid values."""

    field: str
    description: str


class ReasondError(Exception):  # same name: what the server raises, as the client raises it
    """Base of all errors of this package.

    Attributes:
        message: The problem and the remedy, as the server describes them.
        reason: Name of an `ErrorReason` without its prefix, such as "STRATEGY_NOT_FOUND"; the name of
            the status code if the response did not come from reasond.
        code: The gRPC status.
        violations: The invalid fields, if any.
        retry_after: Seconds to wait before a retry; None if waiting does not help.
        metadata: Limits and names for programs.
        execution_id: The execution whose partial result `get_execution` returns, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str = "UNKNOWN",
        code: grpc.StatusCode = grpc.StatusCode.UNKNOWN,
        violations: Iterable[Violation] = (),
        retry_after: float | None = None,
        metadata: Mapping[str, str] | None = None,
        execution_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.code = code
        self.violations = list(violations)
        self.retry_after = retry_after
        self.metadata = dict(metadata or {})
        self.execution_id = execution_id

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.message else self.reason


class InvalidRequestError(ReasondError):  # same name: what the server raises, as the client raises it
    """A field of the request is missing or out of range; `violations` names it."""


class StrategyError(ReasondError):  # same name: what the server raises, as the client raises it
    """No strategy could be chosen: unknown, disabled, not offered by the agent, or none named."""


class AuthenticationError(ReasondError):
    """The token is missing, malformed, meant for another server, or expired."""


class PermissionDeniedError(ReasondError):
    """The token lacks the permission that the call or the strategy needs."""


class ResourceExhaustedError(ReasondError):
    """A limit of rate, token budget, message size or storage was reached."""


class UnavailableError(ReasondError):
    """The server cannot be reached, is full or is shutting down; nothing was spent."""


class NotFoundError(ReasondError):
    """No such execution or agent for this caller, or its log is no longer stored."""


class ConflictError(ReasondError):
    """The request id was used for a different request, or the resource changed since its etag was read."""


class ModelError(ReasondError):  # same name: what the server raises, as the client raises it
    """The language model failed; `execution_id` identifies the partial result."""


class DeadlineExceededError(ReasondError):
    """The deadline of the call passed; see `timeout_s`."""


class CallCancelledError(ReasondError):
    """The call was cancelled, but not by the task that waits for it; for example by `close()`."""


class InternalError(ReasondError):  # same name: what the server raises, as the client raises it
    """A fault of the server; its log has the cause."""


# Reasons whose class differs from that of their status code, by prefix.
_CLASS_BY_REASON: Final[Mapping[str, type[ReasondError]]] = MappingProxyType(
    {
        "STRATEGY_": StrategyError,
        "MODEL_": ModelError,
        "CONTEXT_EXHAUSTED": ModelError,
        "CONTENT_FILTERED": ModelError,
        "ANSWER_INVALID": ModelError,
        "CURSOR_EXPIRED": NotFoundError,
        "METHOD_NOT_FOUND": InvalidRequestError,
        "NOT_RESUMABLE": InternalError,
        "ENGINE_FAILED": InternalError,
    }
)

_CLASS_BY_CODE: Final[Mapping[grpc.StatusCode, type[ReasondError]]] = MappingProxyType(
    {
        grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
        grpc.StatusCode.OUT_OF_RANGE: InvalidRequestError,
        grpc.StatusCode.UNAUTHENTICATED: AuthenticationError,
        grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
        grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhaustedError,
        grpc.StatusCode.UNAVAILABLE: UnavailableError,
        grpc.StatusCode.NOT_FOUND: NotFoundError,
        grpc.StatusCode.ALREADY_EXISTS: ConflictError,
        grpc.StatusCode.ABORTED: ConflictError,
        grpc.StatusCode.FAILED_PRECONDITION: ConflictError,
        grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
        grpc.StatusCode.CANCELLED: CallCancelledError,
        grpc.StatusCode.INTERNAL: InternalError,
        grpc.StatusCode.UNKNOWN: InternalError,
        grpc.StatusCode.DATA_LOSS: InternalError,
    }
)


@dataclass(slots=True)
class _Details:
    """The known details of a status."""

    reason: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)
    retry_after: float | None = None

    def read(self, detail: Any) -> None:  # noqa: ANN401 - google.protobuf.any_pb2.Any, typed by its methods
        """Store one detail; unknown kinds are ignored."""
        info = error_details_pb2.ErrorInfo()
        request = error_details_pb2.BadRequest()
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            # A proxy may add its own details, with reasons of another meaning.
            if info.domain == DOMAIN:
                self.reason = info.reason
                self.metadata = dict(info.metadata)
        elif detail.Unpack(request):
            self.violations += [Violation(item.field, item.description) for item in request.field_violations]
        elif detail.Unpack(retry):
            self.retry_after = retry.retry_delay.seconds + retry.retry_delay.nanos / _NANOS


def _details_of(trailing: Iterable[tuple[str, str | bytes]]) -> _Details:
    """Read the rich status of `trailing`; of a damaged one, the readable part."""
    details = _Details()
    raw = next((value for key, value in trailing if key == _DETAILS_KEY), b"")
    try:
        status = status_pb2.Status.FromString(raw if isinstance(raw, bytes) else raw.encode())
        for detail in status.details:
            details.read(detail)
    except DecodeError:
        return details
    return details


def error_of(
    code: grpc.StatusCode | None, message: str | None, trailing: Iterable[tuple[str, str | bytes]] | None
) -> ReasondError:
    """Return the error for a status, its message and its trailing metadata."""
    code = code or grpc.StatusCode.UNKNOWN
    details = _details_of(trailing or ())
    by_reason = (kind for start, kind in _CLASS_BY_REASON.items() if details.reason.startswith(start))
    return next(by_reason, _CLASS_BY_CODE.get(code, ReasondError))(
        message or "",
        reason=details.reason or code.name,
        code=code,
        violations=details.violations,
        retry_after=details.retry_after,
        metadata=details.metadata,
        execution_id=details.metadata.get("execution_id") or None,
    )


def is_token_expired(error: ReasondError) -> bool:
    """Return whether the server refused the call because its token has expired; nothing of it has begun then."""
    return error.reason == "TOKEN_EXPIRED"


def error_from(failure: Any) -> ReasondError:  # noqa: ANN401 - grpc.RpcError is typed without its methods
    """Return the error for a failed call of gRPC, which becomes its cause."""
    error = error_of(failure.code(), failure.details(), failure.trailing_metadata())
    error.__cause__ = failure
    return error


def call_cancelled() -> CallCancelledError:
    """Return the error of a call that was cancelled on this side, by closing its stream or its client."""
    code = grpc.StatusCode.CANCELLED
    return CallCancelledError("the stream or the client was closed during the call", reason=code.name, code=code)
