"""What is told of a run when it leaves this process: to who counts, and to the log of the server."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from reasond_server.runs.run import Stop

if TYPE_CHECKING:
    from reasond_server.runs.run import Run
    from reasond_server.telemetry.observers import RunObserver

_log = logging.getLogger("reasond.executions")


def tell_left(run: Run, observer: RunObserver) -> None:
    """Tell the observer, from what callers were told: a store that took nothing does not know how a run ended."""
    result = run.result
    if result is None and run.stop_reason is not None:
        observer.run_handed(run.stop_reason.value)
    observer.run_left(
        run.identity.strategy,
        "" if result is None or result.finish_reason is None else result.finish_reason.value,
        steps=run.step_count - len(run.known),
        duration_s=0.0 if result is None else result.metrics.execution_time_s,
        metrics=run.metrics,
    )


def log_end(run: Run) -> None:
    """Log how a run ended; only for debugging where the access log says it, in the line of the one call it was for."""
    if run.stop_reason in {Stop.LOST, Stop.FENCED, Stop.HANDED_OVER}:
        left = {"execution_id": run.identity.execution_id, "stop_reason": run.stop_reason.value}
        _log.info("execution left to another process", extra=left)
        return
    is_logged = run.assignment.can_be_resumed or run.told is None or run.error is not None
    if not _log.isEnabledFor(level := logging.INFO if is_logged else logging.DEBUG):
        return
    execution = run.execution
    facts = {
        "execution_id": execution.execution_id,
        "strategy": execution.strategy,
        "finish_reason": str(execution.finish_reason or ""),
        "reason": "" if run.error is None else run.error.reason,
        "total_tokens": execution.usage.total_tokens,
        "model_calls": execution.usage.model_calls,
        "steps": run.step_count,
    }
    _log.log(level, "execution ended", extra=facts)
