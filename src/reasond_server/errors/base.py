"""The base of all errors, and the declaration of each reason: plain names and numbers; imports no transport."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Final, Self

from reasond_server.types.values import value

INTERNAL_MESSAGE: Final = "internal error"
"""The only text about a fault of the server that a caller gets; the details are in the log under the call id."""

DOMAIN: Final = "reasond"
"""Whose names the reasons are, for programs that know those of others too (google.rpc.ErrorInfo)."""

DEFAULT_RETRY_S: Final = 1.0
"""Default seconds to wait before a retry."""

_MAX_SHOWN_CHARACTERS = 120


def _drop_user(text: str) -> str:
    """Return `text` without user and password, if it is a URL that has them."""
    scheme, found, rest = text.partition("://")
    place = rest.rfind("@")
    return f"{scheme}://***{rest[place:]}" if found and place >= 0 and not any(map(str.isspace, rest[:place])) else text


def show(value: object) -> str:
    """Return `value` as error messages show it: `repr`, at most 120 characters, no control characters.

    The user information of a URL is left out: it may contain a password.
    """
    if isinstance(value, str):
        value = _drop_user(value)
    if isinstance(value, str) and len(value) > _MAX_SHOWN_CHARACTERS:
        value = value[:_MAX_SHOWN_CHARACTERS]
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[:_MAX_SHOWN_CHARACTERS]}…"


@value
class Violation:
    """One problem of a request: the path of the field and a description of valid values."""

    field: str
    description: str


@dataclass(frozen=True, slots=True)
class Reason:
    """The properties of every error with one reason.

    Attributes:
        name: The name on both transports: a value of `ErrorReason` in errors.proto without its prefix.
        grpc_status: Name of the gRPC status code.
        jsonrpc_code: Code of the JSON-RPC error object.
        remedy: The advice on the page of errors, in Markdown.
        is_bare: Whether the JSON-RPC message is only `message`, because clients of seed 001 compare it exactly;
            otherwise it is `full_message`.
        is_fault: Whether the server or one of its dependencies failed: the span then has the status ERROR.
        is_quota: Whether a quota of the caller or of the server's account is exhausted (google.rpc.QuotaFailure).
        denial: The label of such calls in the metric `reasond_denials`; empty if they are not counted there.
        retry_after_s: Default seconds to wait before a retry; None if waiting does not help.
    """

    name: str
    grpc_status: str
    jsonrpc_code: int = -32603
    _: KW_ONLY
    remedy: str
    is_bare: bool = False
    is_fault: bool = False
    is_quota: bool = False
    denial: str = ""
    retry_after_s: float | None = None


class ReasondError(Exception):
    """Base of all errors; `message` describes the problem, `remedy` the solution.

    `metadata` holds limits and names for programs. `retry_after_s` (seconds) is set only if waiting
    helps; its default is that of the reason. `execution_id` is the execution whose partial result was stored.
    A class without a `declaration` is sent as its base class, or as INTERNAL if it has a `reason`.
    """

    declaration: ClassVar[Reason] = Reason(
        "INTERNAL",
        "INTERNAL",
        is_fault=True,
        remedy="Give the operator the request id; the cause stands in the server's log under it.",
    )
    reason: ClassVar[str] = declaration.name

    def __init_subclass__(cls) -> None:
        if "declaration" in vars(cls):
            cls.reason = cls.declaration.name
        elif "reason" in vars(cls):
            cls.declaration = ReasondError.declaration

    def __init__(
        self,
        message: str,
        *,
        remedy: str = "",
        violations: Sequence[Violation] = (),
        metadata: Mapping[str, str] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.violations = tuple(violations)
        self.metadata = dict(metadata or {})
        self.retry_after_s = self.declaration.retry_after_s if retry_after_s is None else retry_after_s
        self.execution_id: str | None = None

    def copy(self) -> Self:
        """Return a copy without traceback: the frames of a raised error keep all their objects alive."""
        error = type(self).__new__(type(self), *self.args)
        error.__dict__.update(self.__dict__)
        return error

    @property
    def retry_after_ms(self) -> int | None:
        """`retry_after_s` in milliseconds, rounded up: who waits so long does not come early."""
        return None if self.retry_after_s is None else max(0, math.ceil(self.retry_after_s * 1000))

    @property
    def full_message(self) -> str:
        """`message` and `remedy` as one text."""
        return f"{self.message.rstrip('.')}. {self.remedy}" if self.remedy else self.message


class RequestError(ReasondError):
    """The request itself is invalid."""

    @classmethod
    def of(cls, *violations: Violation) -> Self:
        """Make the error that lists `violations`; programs match on the beginning of its message."""
        text = "; ".join(f"{violation.field} {violation.description}".strip() for violation in violations)
        return cls(f"Request validation failed: {text}", violations=violations)

    @classmethod
    def at(cls, field: str, description: str) -> Self:
        """Make the error of one `field`, with the description of its violation."""
        return cls.of(Violation(field=field, description=description))


class LookupFailedError(ReasondError):
    """A requested resource does not exist."""


class InternalError(ReasondError):
    """A fault of the server; its cause is in the log under the request id."""


class SettingsError(ReasondError):
    """The operator's configuration is invalid; raised at start-up and by `reasond config`."""

    reason = "INVALID_CONFIG"
