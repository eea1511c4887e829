"""Who asks for work and within which bounds, and how work ends, whatever its kind."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Final

from reasond_server.errors import (
    UNSPENT,
    ContextExhaustedError,
    ModelFailedError,
    ModelTimeoutError,
    StoreUnavailableError,
    TokenBudgetExhaustedError,
    error_of,
)
from reasond_server.llm.model import CALLERS_TIME
from reasond_server.types import Budget, ExecutionFailure, FinishReason
from reasond_server.types.values import value

if TYPE_CHECKING:
    from reasond_server.errors import ReasondError
    from reasond_server.types import Usage

ABANDONED: Final = "Nobody waited for the result any more."
"""A warning in the result of an execution that was cancelled because its callers had left."""


@value
class WorkRequest:
    """Who asks for the work, and within which bounds.

    Attributes:
        request_id: the caller's idempotency key; empty where the request cannot be made again.
        digest: tells the request that `request_id` stands for from any other.
        keep_running: whether the run goes on when nobody follows it.
        time_limit_s: a bound in seconds from outside the budget, such as the caller's deadline.
        is_unary: the caller is told nothing before the end, not even the id of the execution: without a request id it
            cannot come back for it, and with one it can only ask again.
        trace: the caller's place in a trace (`TraceContext.text`).
        permit: the name of the permit by which the caller was admitted.
        budget: what the work may take.
    """

    tenant: str
    subject: str = ""
    request_id: str = ""
    digest: str = ""
    keep_running: bool = False
    time_limit_s: float | None = None
    is_unary: bool = False
    trace: str = ""
    permit: str = ""
    budget: Budget = field(default_factory=Budget)

    @property
    def limit_s(self) -> float | None:
        """The seconds that the caller and the budget allow; None where neither sets a bound."""
        own, allowed = self.budget.max_elapsed_s, self.time_limit_s
        if own is None or allowed is None:
            return allowed if own is None else own
        return min(own, allowed)

    @property
    def can_be_resumed(self) -> bool:
        """Whether anybody could come back for the run."""
        return bool(self.request_id) or self.keep_running or not self.is_unary


@value
class RunEnding:
    """What the last event of a run will say; `error` is set where it failed."""

    finish_reason: FinishReason
    answer: str = ""
    warnings: tuple[str, ...] = ()
    error: ReasondError | None = None

    def to_failure(self) -> ExecutionFailure | None:
        """Return what is kept of the error."""
        error = self.error
        return None if error is None else ExecutionFailure(reason=error.reason, message=error.full_message)


def fail_with(error: ReasondError) -> RunEnding:
    """Return the ending of a run that `error` ended."""
    return RunEnding(finish_reason=FinishReason.FAILED, error=error)


def cancel_with(*warnings: str) -> RunEnding:
    """Return the ending of a run that was stopped from outside."""
    return RunEnding(finish_reason=FinishReason.CANCELLED, warnings=warnings)


def ending_of_error(error: ReasondError, *, usage: Usage) -> RunEnding:
    """Return how `error` ends the run.

    After the first model call a budget or time that is used up is no failure. A call that was refused still fails the
    run then, but as MODEL_FAILED: a retry may cost tokens.
    """
    if not usage.model_calls:
        return fail_with(error)
    if isinstance(error, TokenBudgetExhaustedError) or _is_out_of_time(error):
        return RunEnding(finish_reason=FinishReason.BUDGET_EXHAUSTED, warnings=(error.full_message,))
    if isinstance(error, (*UNSPENT, StoreUnavailableError)) and not isinstance(error, ContextExhaustedError):
        failure = ModelFailedError(
            f"{error.message.rstrip('.')}, after tokens were spent ({error.reason})",
            remedy=error.remedy,
            metadata=error.metadata,
        )
        failure.__cause__ = error
        return fail_with(failure)
    return fail_with(error)


def ending_of_limit(limit_s: float, *, usage: Usage) -> RunEnding:
    """Return how a run ends whose time is up."""
    text = f"stopped after {limit_s:.3g} s, the caller's deadline or budget.max_elapsed"
    if not usage.model_calls:
        return fail_with(ModelTimeoutError(f"The execution was {text}", remedy="Allow more time."))
    return RunEnding(finish_reason=FinishReason.BUDGET_EXHAUSTED, warnings=(f"The execution was {text}.",))


def failure_of(failure: ExecutionFailure, execution_id: str, *, error: ReasondError | None) -> ReasondError:
    """Return what to raise for an execution that failed: `error` while it is at hand, else what was kept of it."""
    told = error_of(failure.reason, failure.message) if error is None else error.copy()
    told.execution_id = execution_id
    return told


def _is_out_of_time(error: ReasondError) -> bool:
    """Return whether a call did not begin to answer while the run had time."""
    return isinstance(error, ModelTimeoutError) and error.metadata.get("limit") == CALLERS_TIME
