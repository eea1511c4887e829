"""How a run ends, before it is written down: what its strategy said, or what went wrong instead."""

from __future__ import annotations

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
from reasond_server.types import FinishReason
from reasond_server.types.values import value

if TYPE_CHECKING:
    from reasond_server.errors import ReasondError
    from reasond_server.strategies.strategy import Outcome
    from reasond_server.types import ExecutionFailure, Usage


ABANDONED: Final = "Nobody waited for the result any more."
"""What the result of a run says that was cancelled because its callers had left."""


@value
class Ending:
    """What the result of a run will say; `error` is set where it failed."""

    finish_reason: FinishReason
    answer: str = ""
    warnings: tuple[str, ...] = ()
    error: ReasondError | None = None


def failed(error: ReasondError) -> Ending:
    """Return the ending of a run that `error` ended."""
    return Ending(finish_reason=FinishReason.FAILED, error=error)


def failure_of(failure: ExecutionFailure, execution_id: str, *, error: ReasondError | None) -> ReasondError:
    """Return what to raise for an execution that failed: what `error` says while it is at hand, else what was kept."""
    told = error_of(failure.reason, failure.message) if error is None else error.again()
    told.execution_id = execution_id
    return told


def cancelled(*warnings: str) -> Ending:
    """Return the ending of a run that was stopped from outside."""
    return Ending(finish_reason=FinishReason.CANCELLED, warnings=warnings)


def ending_of_error(error: ReasondError, *, usage: Usage) -> Ending:
    """Return how `error` ends the run: after the first call a budget that is gone, or time, is no failure.

    A call that is refused then is one, but not one that retrying pays nothing for.
    """
    if not usage.model_calls:
        return failed(error)
    if isinstance(error, TokenBudgetExhaustedError) or _is_out_of_time(error):
        return Ending(finish_reason=FinishReason.BUDGET_EXHAUSTED, warnings=(error.full_message,))
    if isinstance(error, (*UNSPENT, StoreUnavailableError)) and not isinstance(error, ContextExhaustedError):
        failure = ModelFailedError(
            f"{error.message.rstrip('.')}, after tokens were spent ({error.reason})",
            remedy=error.remedy,
            metadata=error.metadata,
        )
        failure.__cause__ = error
        return failed(failure)
    return failed(error)


def _is_out_of_time(error: ReasondError) -> bool:
    """Return whether a call did not begin to answer while the run had time."""
    return isinstance(error, ModelTimeoutError) and error.metadata.get("limit") == CALLERS_TIME


def ending_of_limit(limit_s: float, *, usage: Usage) -> Ending:
    """Return how a run ends whose time is up."""
    text = f"stopped after {limit_s:.3g} s, the caller's deadline or budget.max_elapsed"
    if not usage.model_calls:
        return failed(ModelTimeoutError(f"The execution was {text}", remedy="Allow more time."))
    return Ending(finish_reason=FinishReason.BUDGET_EXHAUSTED, warnings=(f"The execution was {text}.",))


def ending_of_outcome(outcome: Outcome, *, is_clamped: bool) -> Ending:
    """Return the ending that the strategy itself brought about; `is_clamped`: the budget had shortened a call."""
    reason, warnings = outcome.finish_reason, tuple(outcome.warnings)
    if reason is FinishReason.TRUNCATED and is_clamped:
        reason = FinishReason.BUDGET_EXHAUSTED
        warnings += ("The token budget cut the last model call short.",)
    return Ending(finish_reason=reason, answer=outcome.answer, warnings=warnings)
