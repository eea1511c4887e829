"""What the log of an execution knows of the conversation that it belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.protocols.conversations import ConversationBuilder, name_call
from reasond_server.reasoning.strategy_work import read_planned_task
from reasond_server.types import Event, HistoryMessage, Result, ToolCall
from reasond_server.types.turns import HandedOff, ModelCallStep, PendingCall, Reentered, TurnResult, TurnStarted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.executions.desk import ExecutionLog


def recall(
    execution_id: str, log: ExecutionLog, *, after: int = 0, with_output: bool = True
) -> Sequence[HistoryMessage]:
    """Return what was said until the leg after the event `after` ended, or without its output until it began."""
    builder, etag = _recall_start(log), ""
    for logged in log.events[1:]:
        event, is_own = logged.event, logged.sequence > after
        if isinstance(event, Reentered):
            if is_own and logged.sequence != after + 1:
                break
            for result in event.results:
                name = f"call_{execution_id}_{etag}_{result.call_id}"
                builder.add_result(name, result.result_json, is_error=result.is_error)
        elif is_own and not with_output:
            break
        elif isinstance(event, HandedOff):
            etag = event.etag
            builder.add_assistant("", [_recall_call(execution_id, etag, one) for one in event.calls])
        else:
            builder.add_assistant(_find_text(event))
    return builder.build().said


def _recall_start(log: ExecutionLog) -> ConversationBuilder:
    """Return a builder that has what was said before the execution, and what it was asked."""
    first = log.events[0].event if log.events else None
    if isinstance(first, TurnStarted):
        builder = ConversationBuilder(first.history)
        builder.add_user(first.message, first.images)
        return builder
    task = read_planned_task(log.plan) if log.plan else None
    if task is None:
        return ConversationBuilder()
    builder = ConversationBuilder(task.history)
    builder.add_user(task.query, task.images)
    return builder


def _recall_call(execution_id: str, etag: str, pending: PendingCall) -> ToolCall:
    name = name_call(execution_id, etag, pending)
    return ToolCall(call_id=name, name=pending.call.name, arguments_json=pending.call.arguments_json)


def _find_text(event: Event) -> str:
    """Return what the assistant says to its client in an event."""
    if isinstance(event, ModelCallStep):
        return event.text.strip() if event.calls else ""
    if isinstance(event, Result):
        return event.answer_json or event.answer
    return event.answer if isinstance(event, TurnResult) else ""
