"""The language model failed, or its answer cannot be used."""

from __future__ import annotations

from typing import Final

from reasond_server.errors.base import Reason, ReasondError


class ModelError(ReasondError):
    """The language model failed."""


class ContextExhaustedError(ModelError):
    """The task does not fit the model's context."""

    declaration = Reason(
        "CONTEXT_EXHAUSTED",
        "FAILED_PRECONDITION",
        remedy="Shorten the query, raise the window, or put the long text into `material`.",
    )


class ModelUnavailableError(ModelError):
    """The model cannot be reached; nothing was spent."""

    declaration = Reason(
        "MODEL_UNAVAILABLE",
        "UNAVAILABLE",
        is_fault=True,
        remedy="Retry; nothing was spent. If it lasts, the operator checks `[llm]`.",
    )


class ModelRateLimitedError(ModelError):
    """The model's provider refused the call for now; nothing was spent."""

    declaration = Reason(
        "MODEL_RATE_LIMITED",
        "RESOURCE_EXHAUSTED",
        is_quota=True,
        remedy="Wait as long as `RetryInfo` says, then retry; nothing was spent.",
    )


class ModelTimeoutError(ModelError):
    """The model did not begin to answer in time; nothing was spent."""

    declaration = Reason(
        "MODEL_TIMEOUT", "DEADLINE_EXCEEDED", is_fault=True, remedy="Retry with a longer deadline; nothing was spent."
    )


class ModelFailedError(ModelError):
    """The model failed after tokens were spent."""

    declaration = Reason(
        "MODEL_FAILED",
        "ABORTED",
        is_fault=True,
        remedy="Read the partial result with `GetExecution`, then decide whether to pay for another attempt.",
    )


class ModelProtocolError(ModelError):
    """The model's provider broke its own protocol."""

    declaration = Reason(
        "MODEL_PROTOCOL",
        "INTERNAL",
        is_fault=True,
        remedy="Report it to the operator: the endpoint does not speak the protocol it claims.",
    )


class RequestRefusedError(ModelProtocolError):
    """The model's provider refused the request before it generated anything, such as a parameter; nothing was spent."""


class ContentFilteredError(ModelError):
    """The model's provider withheld the text."""

    declaration = Reason(
        "CONTENT_FILTERED", "FAILED_PRECONDITION", remedy="Rephrase the task; the same one will be withheld again."
    )


class PromptFilteredError(ContentFilteredError):
    """The model's provider refused the prompt for its content before it generated anything; nothing was spent."""


class AnswerInvalidError(ModelError):
    """The answer does not satisfy the schema of the task, not even after a correction."""

    declaration = Reason(
        "ANSWER_INVALID", "FAILED_PRECONDITION", remedy="Simplify the schema, or take a stronger model."
    )


REFUSED: Final = (ContextExhaustedError, RequestRefusedError, PromptFilteredError)
"""The errors of requests that would be refused again."""

UNSPENT: Final = (ModelUnavailableError, ModelRateLimitedError, ModelTimeoutError, *REFUSED)
"""The errors that a model raises before its first text: the call was refused, and costs nothing."""


def can_be_retried(error: ReasondError) -> bool:
    """Whether the same request may succeed later: waiting helps, or a model refused it and nothing was spent."""
    return error.retry_after_s is not None or (isinstance(error, UNSPENT) and not isinstance(error, REFUSED))
