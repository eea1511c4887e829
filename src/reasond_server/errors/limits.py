"""Limits and capacity: what may be tried again later, and what may not."""

from __future__ import annotations

from reasond_server.errors.base import DEFAULT_RETRY_S, Reason, ReasondError


class LimitError(ReasondError):
    """A limit was reached."""


class RateLimitedError(LimitError):
    """Too many requests."""

    declaration = Reason(
        "RATE_LIMITED",
        "RESOURCE_EXHAUSTED",
        is_quota=True,
        remedy="Wait as long as `RetryInfo` (`retry_after_ms`) says, then retry.",
    )


class TokenBudgetExhaustedError(LimitError):
    """The budget does not cover the next model call."""

    declaration = Reason(
        "TOKEN_BUDGET_EXHAUSTED",
        "RESOURCE_EXHAUSTED",
        is_quota=True,
        remedy="Raise the budget or shorten the task. Waiting helps only where `RetryInfo` is present.",
    )


class OverloadedError(LimitError):
    """The maximum number of executions is running; nothing was spent."""

    declaration = Reason(
        "OVERLOADED",
        "UNAVAILABLE",
        is_fault=True,
        denial="overload",
        retry_after_s=DEFAULT_RETRY_S,
        remedy="Retry after `RetryInfo`; nothing was spent.",
    )


class DrainingError(LimitError):
    """The server is shutting down; nothing was spent."""

    declaration = Reason(
        "DRAINING",
        "UNAVAILABLE",
        is_fault=True,
        denial="draining",
        retry_after_s=DEFAULT_RETRY_S,
        remedy="Retry after `RetryInfo`, which reaches another server or the restarted one; nothing was spent.",
    )


class SlowConsumerError(LimitError):
    """The client read its stream too slowly."""

    declaration = Reason(
        "SLOW_CONSUMER",
        "RESOURCE_EXHAUSTED",
        remedy="Resume with the execution id and the last sequence that you handled, and read faster.",
    )


class StoreFullError(LimitError):
    """The store has no room for another execution."""

    declaration = Reason(
        "STORE_FULL",
        "RESOURCE_EXHAUSTED",
        denial="store",
        remedy="Delete executions that are no longer needed, or have the operator raise the limits under `[store]`.",
    )


class StoreUnavailableError(LimitError):
    """The store cannot be reached; nothing was spent."""

    declaration = Reason(
        "STORE_UNAVAILABLE",
        "UNAVAILABLE",
        is_fault=True,
        denial="store",
        retry_after_s=DEFAULT_RETRY_S,
        remedy="Retry after `RetryInfo`; nothing was spent. If it lasts, the operator looks at the store.",
    )
