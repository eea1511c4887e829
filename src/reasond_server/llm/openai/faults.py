"""Faults of model servers as errors with our own texts, never with the server's.

An `UpstreamFaultError` has the error for the case that no part of the answer was accepted. `error_after_tokens` turns
it into the caller's error if text was received before. Names in the server's report are logged at debug level.
"""

from __future__ import annotations

import logging
import re
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from reasond_server.dialects.window_errors import is_starved, read_too_long
from reasond_server.errors.base import show
from reasond_server.errors.model import (
    ContentFilteredError,
    ContextExhaustedError,
    ModelError,
    ModelProtocolError,
    ModelRateLimitedError,
    ModelTimeoutError,
    ModelUnavailableError,
    PromptFilteredError,
    RequestRefusedError,
)
from reasond_server.llm.openai.json_values import parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reasond_server.llm.openai.backend_options import BackendOptions

_log = logging.getLogger("reasond.llm")

AS_OFTEN_AS_ALLOWED = 100
ONCE = 1
_MAX_REASONABLE_STATUS = 599

_CONTEXT_CODES = ("context_length_exceeded", "exceed_context_size", "context_window", "string_above_max_length")
_FILTER_CODES = (
    *("content_filter", "content_policy", "responsibleaipolicyviolation", "moderation"),
    *("data_inspection_failed", "datainspectionfailed", "sensitive", "1301"),
)
_QUOTA_CODES = ("insufficient_quota", "billing", "insufficient_balance", "quota_exceeded", "credits")
_RATE_CODES = ("rate_limit", "ratelimit", "too_many_requests", "tokens_per_min", "requests_per_min")
_ACCESS_CODES = ("invalid_api_key", "authentication", "permission", "unauthorized")
_MODEL_CODES = ("model_not_found", "not_found", "deploymentnotfound")
_PARAMETERS = frozenset(
    {
        *(
            "max_tokens",
            "max_completion_tokens",
            "max_output_tokens",
            "temperature",
            "top_p",
            "seed",
            "stop",
            "stream_options",
        ),
        *("response_format", "tools", "tool_choice", "messages", "input", "instructions", "text", "reasoning"),
    }
)
_SERVER_STATUSES = frozenset({408, 409, 425, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})
_TOO_LARGE_STATUSES = frozenset({400, 413, 422, 500})
_LOADING = re.compile(r"\b(?:loading|warming up)\b", re.IGNORECASE)
_LOADING_WAIT_S = 3.0
_MOST_LOADING_WAIT_S = 600.0
_NAMED = ("type", "code", "param")
_NAME = re.compile(r"[A-Za-z0-9_.]{1,64}")


class UpstreamFaultError(Exception):
    """A call of a model server failed; this error stays inside the adapter.

    Attributes:
        error: the caller's error if no part of the answer was accepted.
        retries: how often the call may be repeated; 0 if it would fail again.
        is_unhealthy: whether the fault counts against the health of the backend.
        may_cost: whether the server may have begun the work and may bill it.
    """

    def __init__(
        self, error: ModelError, *, retries: int = 0, is_unhealthy: bool = False, may_cost: bool = False
    ) -> None:
        super().__init__(error.message)
        self.error = error
        self.retries = retries
        self.is_unhealthy = is_unhealthy
        self.may_cost = may_cost


class _Kind(StrEnum):
    CONTEXT = "context"
    FILTERED = "filtered"
    QUOTA = "quota"
    RATE = "rate"
    ACCESS = "access"
    MODEL = "model"
    LOADING = "loading"
    SERVER = "server"
    REDIRECT = "redirect"
    STARVED = "starved"
    REFUSED = "refused"


def describe_place(options: BackendOptions) -> str:
    """Return the backend's name, host and port, for messages."""
    return f"{show(options.name)} at {show(urlsplit(options.base_url).netloc.rpartition('@')[2])}"


def classify_status(
    options: BackendOptions, *, status: int, body: bytes, retry_after_s: float | None = None
) -> UpstreamFaultError:
    """Return the fault for an answer with an error status; `body` is the beginning of its body."""
    report = _read_report(body)
    log_fault(options, f"status {status}", report)
    kind = _classify(status, report)
    return _build_fault(options, kind, status=status, report=report, retry_after_s=retry_after_s, is_refusal=True)


def classify_report(options: BackendOptions, report: object) -> UpstreamFaultError:
    """Return the fault for an error that was reported inside a stream or with a success status."""
    inner = _unwrap(report)
    log_fault(options, "error in the stream", inner)
    code = inner.get("code")
    status = code if isinstance(code, int) and 400 <= code <= _MAX_REASONABLE_STATUS else 500  # noqa: PLR2004 - HTTP's
    kind = _classify(status, inner)
    return _build_fault(options, kind, status=status, report=inner, retry_after_s=None, is_refusal=False)


def build_unreachable_fault(options: BackendOptions, why: str, *, is_retryable: bool = True) -> UpstreamFaultError:
    """Return the fault for a connection that could not be opened."""
    error = ModelUnavailableError(
        f"The model backend {describe_place(options)} cannot be reached: {why}",
        remedy="Check base_url, and that the model server runs.",
    )
    return UpstreamFaultError(error, retries=AS_OFTEN_AS_ALLOWED if is_retryable else 0, is_unhealthy=True)


def build_timeout_fault(
    options: BackendOptions, what: str, seconds: float, setting: str, *, is_callers: bool = False
) -> UpstreamFaultError:
    """Return the fault for a wait of more than `seconds`, a limit that `setting` names.

    If the caller set the limit, the fault does not count against the backend's health.
    """
    error = ModelTimeoutError(
        f"The model backend {describe_place(options)} {what} within {round(seconds, 3):g} s",
        remedy=f"Raise {setting}, or ask for less.",
        metadata={"limit": setting, "seconds": f"{round(seconds, 3):g}"},
    )
    retries = 0 if is_callers else AS_OFTEN_AS_ALLOWED
    return UpstreamFaultError(error, retries=retries, is_unhealthy=not is_callers, may_cost=True)


def build_protocol_fault(options: BackendOptions, what: str, *, remedy: str = "") -> UpstreamFaultError:
    """Return the fault for an answer that breaks the protocol."""
    usual = "Check that base_url is the address of an OpenAI-compatible API; `reasond backends check` tells more."
    error = ModelProtocolError(f"The model backend {describe_place(options)} {what}", remedy=remedy or usual)
    return UpstreamFaultError(error, retries=ONCE, is_unhealthy=True, may_cost=True)


def log_fault(options: BackendOptions, what: str, report: Mapping[str, Any] | None = None) -> None:
    """Log a fault at debug level, with the names in its report but not its sentences, which may repeat the prompt."""
    if _log.isEnabledFor(logging.DEBUG):
        fields = report or {}
        names = [f"{field} {fields[field]}" for field in _NAMED if _NAME.fullmatch(str(fields.get(field) or ""))]
        _log.debug("model backend %r: %s", options.name, ", ".join((what, *names)))


def _read_report(body: bytes) -> dict[str, Any]:
    try:
        return _unwrap(parse_json(body))
    except ModelProtocolError:
        return {}


def _unwrap(report: object) -> dict[str, Any]:
    """Return the error object of a report in any of the common forms."""
    if isinstance(report, list) and len(report) == 1:
        report = report[0]
    outer = report if isinstance(report, dict) else {}
    for name in ("error", "detail"):
        if isinstance(report, dict) and report.get(name):
            report = report[name]
    if isinstance(report, str):
        return {**outer, "message": report}
    return report if isinstance(report, dict) else {}


def _classify(status: int, report: dict[str, Any]) -> _Kind:
    """Return the kind of a report by its code, then by its status.

    Only prompts that are too long and models that are being loaded are known by their words.
    """
    inner = report.get("innererror") or report.get("inner_error")
    codes = [report.get("code"), report.get("type"), inner.get("code") if isinstance(inner, dict) else None]
    code = " ".join(one.lower().replace(" ", "_") for one in codes if isinstance(one, str))
    is_too_large = status in _TOO_LARGE_STATUSES and read_too_long(report) is not None
    meanings = (
        (_Kind.CONTEXT, status == 413 or _has_any(code, _CONTEXT_CODES) or is_too_large),  # noqa: PLR2004 - HTTP's number
        (_Kind.FILTERED, _has_any(code, _FILTER_CODES)),
        (_Kind.QUOTA, status == 402 or _has_any(code, _QUOTA_CODES)),  # noqa: PLR2004 - HTTP's number
        (_Kind.RATE, status == 429 or _has_any(code, _RATE_CODES)),  # noqa: PLR2004 - HTTP's number
        (_Kind.ACCESS, status in {401, 403} or _has_any(code, _ACCESS_CODES)),
        (_Kind.MODEL, status == 404 or _has_any(code, _MODEL_CODES)),  # noqa: PLR2004 - HTTP's number
        (_Kind.LOADING, status == 503 and _LOADING.search(str(report.get("message") or "")) is not None),  # noqa: PLR2004 - HTTP's number
        (_Kind.SERVER, status in _SERVER_STATUSES),
        (_Kind.REDIRECT, status < 400),  # noqa: PLR2004 - HTTP's number
        (_Kind.STARVED, is_starved(report)),
    )
    return next((kind for kind, is_so in meanings if is_so), _Kind.SERVER if status >= 500 else _Kind.REFUSED)  # noqa: PLR2004 - HTTP's number


def _has_any(text: str, marks: tuple[str, ...]) -> bool:
    return any(mark in text for mark in marks)


def _build_fault(
    options: BackendOptions,
    kind: _Kind,
    *,
    status: int,
    report: dict[str, Any],
    retry_after_s: float | None,
    is_refusal: bool,
) -> UpstreamFaultError:
    who = f"The model backend {describe_place(options)}"
    metadata = {"status": str(status)}
    if kind is _Kind.RATE:
        error: ModelError = ModelRateLimitedError(
            f"{who} refuses further calls for now",
            remedy="Ask again later, or lower max_concurrency of the backend.",
            metadata=metadata,
            retry_after_s=retry_after_s,
        )
        return UpstreamFaultError(error, retries=AS_OFTEN_AS_ALLOWED)
    if kind is _Kind.LOADING:
        error = ModelUnavailableError(
            f"{who} is still loading its model (HTTP {status})",
            remedy="Ask again when it has; a large model takes minutes.",
            metadata=metadata,
            retry_after_s=_read_loading_time_s(report) if retry_after_s is None else retry_after_s,
        )
        return UpstreamFaultError(error, retries=AS_OFTEN_AS_ALLOWED)
    if kind is _Kind.SERVER:
        error = ModelUnavailableError(
            f"{who} failed (HTTP {status})",
            remedy="Ask again later; the model server's own log tells why.",
            metadata=metadata,
            retry_after_s=retry_after_s,
        )
        return UpstreamFaultError(error, retries=AS_OFTEN_AS_ALLOWED, is_unhealthy=True)
    # Groq answers 400 after it generated a call that it cannot read, and shows what the model wrote.
    is_unspent = is_refusal and not report.get("failed_generation") and kind is not _Kind.STARVED
    return UpstreamFaultError(
        _build_lasting_error(options, kind, who=who, metadata=metadata, report=report, is_unspent=is_unspent)
    )


def _read_loading_time_s(report: dict[str, Any]) -> float:
    """Return the seconds that a report expects for loading the model, as Hugging Face's does; a few without one."""
    told = report.get("estimated_time")
    if isinstance(told, (int, float)) and 0 < told <= _MOST_LOADING_WAIT_S:
        return float(told)
    return _LOADING_WAIT_S


def _build_lasting_error(
    options: BackendOptions,
    kind: _Kind,
    *,
    who: str,
    metadata: dict[str, str],
    report: dict[str, Any],
    is_unspent: bool,
) -> ModelError:
    """Return the error for a fault that would occur again; `is_unspent`: nothing was generated before it."""
    parameter = _find_parameter(report)
    limits = read_too_long(report) if kind is _Kind.CONTEXT else None
    if limits is not None:
        numbers = {"context_window": limits.window, "prompt_tokens": limits.prompt}
        metadata |= {name: str(number) for name, number in numbers.items() if number}
    model = show(options.model)
    filtered = PromptFilteredError if is_unspent else ContentFilteredError
    refused = RequestRefusedError if is_unspent else ModelProtocolError
    kinds: dict[_Kind, tuple[type[ModelError], str, str]] = {
        _Kind.CONTEXT: (
            ContextExhaustedError,
            "says that the prompt does not fit its context",
            "Shorten the task, or lower max_tokens.",
        ),
        _Kind.FILTERED: (filtered, "withheld the answer: its content filter objects", ""),
        _Kind.QUOTA: (
            ModelRateLimitedError,
            "has no credit left for this account",
            "Raise the account's quota or pay its bill.",
        ),
        _Kind.ACCESS: (
            ModelUnavailableError,
            "refuses our key",
            "Check the key in the environment variable that api_key_env names, and what the key may do.",
        ),
        _Kind.MODEL: (
            ModelUnavailableError,
            f"does not know the model {model}, or base_url is wrong",
            "Correct model or base_url.",
        ),
        _Kind.REDIRECT: (
            ModelUnavailableError,
            "redirects elsewhere, which is not followed",
            "Set base_url to the final address.",
        ),
        _Kind.STARVED: (
            refused,
            "spent all tokens that the answer may have on hidden reasoning",
            "Raise max_tokens.",
        ),
        _Kind.REFUSED: (
            refused,
            f"refuses the parameter {show(parameter)}" if parameter else "refuses the request as malformed",
            "The profile of the backend does not fit: `reasond backends check` finds one that does.",
        ),
    }
    error, what, remedy = kinds[kind]
    return error(f"{who} {what} (HTTP {metadata['status']})", remedy=remedy, metadata=metadata)


def _find_parameter(report: dict[str, Any]) -> str:
    """Return the parameter that the report names, if we send such a parameter."""
    named = report.get("param")
    return named if isinstance(named, str) and named in _PARAMETERS else ""
