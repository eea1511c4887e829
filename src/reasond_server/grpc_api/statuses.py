"""Errors as google.rpc.Status with standard details, small enough for every peer's header limit.

Peers replace trailers of more than about 8 KiB with an error of their own, so the percent-encoded message is limited
to 1.5 KiB and the whole Status to 4 KiB. Source: AIP-193.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # shipped without py.typed

from reasond_server.errors.base import DOMAIN, INTERNAL_MESSAGE, Reason, ReasondError
from reasond_server.errors.model import can_be_retried

if TYPE_CHECKING:
    from google.protobuf.message import Message


MAX_STATUS_BYTES: Final = 4096
# Tags and lengths of an Any and its two fields, which hold at most 4 KiB here.
_WRAPPING_BYTES: Final = 12
_MAX_MESSAGE_BYTES: Final = 1536
_MAX_TEXT_CHARACTERS: Final = 256
_CODES: Final = {code.name: code for code in grpc.StatusCode}

CODES: Final = tuple(_CODES)
"""The names of the status codes."""

PUSHBACK_KEY: Final = "grpc-retry-pushback-ms"
_NEVER: Final = "-1"
# A client stops all its retries after many pushbacks, so calls that no policy retries get none.
_RETRIED_CODES: Final = frozenset({"UNAVAILABLE", "RESOURCE_EXHAUSTED", "ABORTED", "DEADLINE_EXCEEDED", "INTERNAL"})
# A client holds the call for so long, and its caller does not learn why: whoever waits longer shall know it.
_MAX_PUSHBACK_MS: Final = 60_000


def build_status(
    error: ReasondError, *, call_id: str, reason: Reason | None = None, domain: str = DOMAIN
) -> status_pb2.Status:
    """Return the Status for `error`: at most 4 KiB; violations are cut first, then metadata.

    The text of a server fault is not sent: the caller gets "internal error" and the request id. Another `reason` is
    that of a protocol with reasons of its own, in its `domain`.
    """
    reason = reason or error.declaration
    is_internal = reason.name == "INTERNAL"
    info = error_details_pb2.ErrorInfo(reason=reason.name, domain=domain, metadata={"request_id": _clip(call_id)})
    if error.execution_id:
        info.metadata["execution_id"] = _clip(error.execution_id)
    text = INTERNAL_MESSAGE if is_internal else clip_message(error.full_message)
    status = status_pb2.Status(code=_CODES[reason.grpc_status].value[0], message=text)
    if is_internal:
        _add(status, info)
        return status
    others = _build_standing_details(error)
    violations = error_details_pb2.BadRequest()
    room = MAX_STATUS_BYTES - status.ByteSize() - sum(_measure_packed(other) for other in others)
    _fill_metadata(info, error, room)
    if error.violations:
        _fill_violations(violations, info, error, room - _measure_packed(info))
    for detail in (info, *others, *([violations] if violations.field_violations else [])):
        _add(status, detail)
    return status


def find_pushback(error: ReasondError, *, left_s: float | None) -> str:
    """Return the value of `grpc-retry-pushback-ms` for `error`; empty if the client's own policy shall decide.

    It is the wait in milliseconds, or -1 if a retry cannot help: also if the wait is longer than a minute or than the
    `left_s` seconds to the deadline, which would end the call with a worse answer. Source: gRFC A6.
    """
    wait_ms = error.retry_after_ms
    if wait_ms is not None:
        is_late = left_s is not None and wait_ms >= left_s * 1000
        return _NEVER if is_late or wait_ms > _MAX_PUSHBACK_MS else str(wait_ms)
    return _NEVER if error.declaration.grpc_status in _RETRIED_CODES and not can_be_retried(error) else ""


def clip_message(text: str) -> str:
    """Return `text` cut so that its percent-encoded form fits the trailers."""
    text = _make_encodable(text)
    if _measure_encoded(text) <= _MAX_MESSAGE_BYTES:
        return text
    low, high = 0, min(len(text), _MAX_MESSAGE_BYTES)
    while low < high:
        middle = (low + high + 1) // 2
        if _measure_encoded(f"{text[:middle]}…") <= _MAX_MESSAGE_BYTES:
            low = middle
        else:
            high = middle - 1
    return f"{text[:low]}…"


def _measure_encoded(text: str) -> int:
    return len(quote(text, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"))


def _make_encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _clip(text: str) -> str:
    text = _make_encodable(text)
    return text if len(text) <= _MAX_TEXT_CHARACTERS else f"{text[: _MAX_TEXT_CHARACTERS - 1]}…"


def _build_standing_details(error: ReasondError) -> list[Message]:
    """Return the details of fixed size, which programs use."""
    details: list[Message] = []
    if error.retry_after_ms is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(error.retry_after_ms)
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    description = _clip(error.message)
    if error.declaration.is_quota:
        subject = _clip(error.metadata.get("subject", ""))
        quota = error_details_pb2.QuotaFailure.Violation(subject=subject, description=description)
        details.append(error_details_pb2.QuotaFailure(violations=[quota]))
    if error.declaration.grpc_status == "FAILED_PRECONDITION":
        condition = error_details_pb2.PreconditionFailure.Violation(type=error.reason, description=description)
        details.append(error_details_pb2.PreconditionFailure(violations=[condition]))
    return details


def _fill_metadata(info: error_details_pb2.ErrorInfo, error: ReasondError, room: int) -> None:
    """Add the error's metadata while it fits; entries of the transport are never overwritten."""
    for key, value in error.metadata.items():
        if key in info.metadata:
            continue
        info.metadata[_clip(key)] = _clip(value)
        if _measure_packed(info) > room:
            del info.metadata[_clip(key)]
            return


def _fill_violations(
    bad_request: error_details_pb2.BadRequest, info: error_details_pb2.ErrorInfo, error: ReasondError, room: int
) -> None:
    """Add violations while they fit; if some do not, store their total number in `info`."""
    note = len("violations_total") + 32
    for violation in error.violations:
        bad_request.field_violations.add(field=_clip(violation.field), description=_clip(violation.description))
        if _measure_packed(bad_request) > room - note:
            del bad_request.field_violations[-1]
            break
    if len(bad_request.field_violations) < len(error.violations) and room >= note:
        info.metadata["violations_total"] = str(len(error.violations))


def _measure_packed(detail: Message) -> int:
    """Return the bytes that `detail` takes inside a Status, wrapping included."""
    return detail.ByteSize() + len(f"type.googleapis.com/{detail.DESCRIPTOR.full_name}") + _WRAPPING_BYTES


def _add(status: status_pb2.Status, detail: Message) -> None:
    packed = any_pb2.Any()
    packed.Pack(detail)
    status.details.append(packed)
