"""The request for work with its limits, and how work ends; the same for every kind of work."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Final

from reasond_server.errors.limits import StoreUnavailableError, TokenBudgetExhaustedError
from reasond_server.errors.model import REFUSED, UNSPENT, ModelFailedError, ModelTimeoutError
from reasond_server.errors.reasons import build_error
from reasond_server.llm.model import CALLERS_TIME, ChatModel
from reasond_server.types import Budget, ExecutionFailure, FinishReason, Usage
from reasond_server.types.values import value

if TYPE_CHECKING:
    from reasond_server.errors.base import ReasondError
    from reasond_server.eventlog.store import SessionClaim

ABANDONED: Final = "Nobody waited for the result any more."
"""A warning in the result of an execution that was cancelled because its callers had left."""


@value
class WorkRequest:
    """Who requests the work, and with which limits.

    Attributes:
        request_id: the caller's idempotency key; empty if the request cannot be retried.
        digest: identifies the request that `request_id` stands for.
        keep_running: whether the run continues without subscribers.
        time_limit_s: a limit in seconds in addition to the budget, such as the caller's deadline.
        is_unary: the caller receives nothing before the end, not even the id of the execution. Without a request id it
            cannot come back for the execution; with one it can only retry the request.
        trace: the caller's trace context (`TraceContext.text`).
        permit: the name of the permit with which the caller was admitted.
        budget: the limits of tokens, calls and time.
        session: the session that a new execution enters; None if it belongs to none.
        model: the model of the run; None for the server's.
        question: the first line of what is asked (`types.executions.write_headline`), for lists.
        wire: the transport that it came by.
        prompts_begin_with: what its prompts show first and others of its tenant may show, too: a session, a material,
            the beginning of a conversation. Empty for nothing.
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
    session: SessionClaim | None = None
    model: ChatModel | None = None
    question: str = ""
    wire: str = ""
    prompts_begin_with: str = ""

    @property
    def limit_s(self) -> float | None:
        """The seconds that the caller and the budget allow; None if neither sets a limit."""
        own, allowed = self.budget.max_elapsed_s, self.time_limit_s
        if own is None or allowed is None:
            return allowed if own is None else own
        return min(own, allowed)

    @property
    def can_be_resumed(self) -> bool:
        """Whether a caller can come back for the run."""
        return bool(self.request_id) or self.keep_running or not self.is_unary or self.session is not None


@value
class RunEnding:
    """The content of the last event of a run; `error` is set if the run failed.

    `stop_sequence` is the stop string that ended the answer.
    """

    finish_reason: FinishReason
    answer: str = ""
    warnings: tuple[str, ...] = ()
    error: ReasondError | None = None
    stop_sequence: str = ""

    def to_failure(self) -> ExecutionFailure | None:
        """Return the stored form of the error; None if there is none."""
        error = self.error
        return None if error is None else ExecutionFailure(reason=error.reason, message=error.full_message)


def fail_with(error: ReasondError) -> RunEnding:
    """Return the ending of a run that `error` ended."""
    return RunEnding(finish_reason=FinishReason.FAILED, error=error)


def cancel_with(*warnings: str) -> RunEnding:
    """Return the ending of a run that was stopped from outside."""
    return RunEnding(finish_reason=FinishReason.CANCELLED, warnings=warnings)


def build_error_ending(error: ReasondError, *, usage: Usage) -> RunEnding:
    """Return the ending of a run that `error` ends.

    After the first model call, an exhausted budget or time limit is not a failure. A refused call still fails the run,
    but as MODEL_FAILED, because a retry may cost tokens.
    """
    if not usage.model_calls:
        return fail_with(error)
    if isinstance(error, TokenBudgetExhaustedError) or _is_out_of_time(error):
        return RunEnding(finish_reason=FinishReason.BUDGET_EXHAUSTED, warnings=(error.full_message,))
    if isinstance(error, (*UNSPENT, StoreUnavailableError)) and not isinstance(error, REFUSED):
        failure = ModelFailedError(
            f"{error.message.rstrip('.')}, after tokens were spent ({error.reason})",
            remedy=error.remedy,
            metadata=error.metadata,
        )
        failure.__cause__ = error
        return fail_with(failure)
    return fail_with(error)


def build_limit_ending(limit_s: float, *, usage: Usage) -> RunEnding:
    """Return the ending of a run whose time limit of `limit_s` seconds is over."""
    text = f"stopped after {limit_s:.3g} s, the caller's deadline or budget.max_elapsed"
    if not usage.model_calls:
        return fail_with(ModelTimeoutError(f"The execution was {text}", remedy="Allow more time."))
    return RunEnding(finish_reason=FinishReason.BUDGET_EXHAUSTED, warnings=(f"The execution was {text}.",))


def build_failure(failure: ExecutionFailure, execution_id: str, *, error: ReasondError | None) -> ReasondError:
    """Return the error to raise for a failed execution: `error` if it is in memory, else one made from `failure`."""
    copied = build_error(failure.reason, failure.message) if error is None else error.copy()
    copied.execution_id = execution_id
    return copied


def _is_out_of_time(error: ReasondError) -> bool:
    """Return whether a call failed because its answer did not begin before the run's time was over."""
    return isinstance(error, ModelTimeoutError) and error.metadata.get("limit") == CALLERS_TIME
