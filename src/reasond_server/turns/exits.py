"""How turns leave and how hand-offs end, in the words of metrics and spans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.types import FinishReason
from reasond_server.types.turns import HandedOff

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from reasond_server.eventlog.store import Recovery
    from reasond_server.telemetry.observers import TurnObserver
    from reasond_server.types.turns import ContextGoal, ContextItem

_EXITS = {FinishReason.FAILED: "failed", FinishReason.CANCELLED: "cancelled", FinishReason.EXPIRED: "expired"}


def name_exit(finish_reason: FinishReason) -> str:
    """Return how a turn left that ended with `finish_reason`: "done", "failed", "cancelled" or "expired"."""
    return _EXITS.get(finish_reason, "done")


def report_wait(observer: TurnObserver, recovery: Recovery, *, now: datetime) -> None:
    """Report the end of the hand-off after which a turn was taken that had been suspended."""
    for logged in reversed(recovery.events):
        if isinstance(logged.event, HandedOff):
            outcome = "settled" if recovery.has_waking_event else "cancelled"
            if recovery.is_due and not recovery.is_cancel_requested:
                outcome = "expired"
            observer.handoff_settled(outcome, max(0.0, (now - logged.create_time).total_seconds()))
            return


def report_context(
    observer: TurnObserver, items: Sequence[ContextItem], *, goal: ContextGoal, results: set[str]
) -> None:
    """Report the tokens of those items of a prompt that are `results`: the ids of their calls."""
    for item in items:
        if item.source in results:
            observer.context_built(goal.value, item.rendering.value, item.tokens)
