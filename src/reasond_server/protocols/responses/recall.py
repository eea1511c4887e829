"""What the log of an execution knows of the conversation that it belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from reasond_server.protocols.conversations import ConversationBuilder, name_call
from reasond_server.reasoning.strategy_work import read_planned_task
from reasond_server.types import Result, Speaker, ToolCall
from reasond_server.types.turns import HandedOff, ModelCallStep, Reentered, TurnResult, TurnStarted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.executions.desk import ExecutionLog
    from reasond_server.protocols.responses.response_json import ResponseRef
    from reasond_server.types import Event, HistoryMessage
    from reasond_server.types.turns import PendingCall


def recall_echo(ref: ResponseRef, log: ExecutionLog) -> Mapping[str, Any]:
    """Return what the response tells of its request; nothing for executions of other protocols, or without content."""
    first = next((logged.event for logged in log.events if logged.sequence > ref.after), None)
    if isinstance(first, Reentered):
        return read_echo(first.echo_json)
    task = None if isinstance(first, TurnStarted) or not log.plan else read_planned_task(log.plan)
    return read_echo(first.echo_json if isinstance(first, TurnStarted) else "" if task is None else task.echo_json)


def read_echo(text: str) -> Mapping[str, Any]:
    """Return what a log keeps of a request; nothing if it keeps nothing of this protocol."""
    try:
        found = from_json(text) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def recall(ref: ResponseRef, log: ExecutionLog, *, with_output: bool = True) -> Sequence[HistoryMessage]:
    """Return what was said until the response ended, or without its output until it began."""
    builder, etag = _recall_start(log), ""
    for logged in log.events[1:]:
        event, is_own = logged.event, logged.sequence > ref.after
        if isinstance(event, Reentered):
            if is_own and logged.sequence != ref.after + 1:
                break
            for result in event.results:
                name = f"call_{ref.execution_id}_{etag}_{result.call_id}"
                builder.add_result(name, result.result_json, is_error=result.is_error)
        elif is_own and not with_output:
            break
        elif isinstance(event, HandedOff):
            etag = event.etag
            builder.add_assistant("", [_recall_call(ref, etag, one) for one in event.calls])
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


def _recall_call(ref: ResponseRef, etag: str, pending: PendingCall) -> ToolCall:
    name = name_call(ref.execution_id, etag, pending)
    return ToolCall(call_id=name, name=pending.call.name, arguments_json=pending.call.arguments_json)


def _find_text(event: Event) -> str:
    """Return what the assistant says to its client in an event."""
    if isinstance(event, ModelCallStep):
        return event.text.strip() if event.calls else ""
    if isinstance(event, Result):
        return event.answer_json or event.answer
    return event.answer if isinstance(event, TurnResult) else ""


def tell_items(said: Sequence[HistoryMessage], *, key: str) -> list[dict[str, Any]]:
    """Return what was said as items; `key` makes their ids."""
    items: list[dict[str, Any]] = []
    for message in said:
        if message.role is Speaker.USER:
            parts: list[dict[str, Any]] = [{"type": "input_text", "text": message.text}] if message.text else []
            parts += [
                {
                    "type": "input_image",
                    "detail": "auto",
                    "image_url": f"data:{image.media_type};base64,{image.base64}",
                }
                for image in message.images
            ]
            items.append({"type": "message", "role": "user", "status": "completed", "content": parts})
        elif message.text:
            part = {"type": "output_text", "text": message.text, "annotations": [], "logprobs": []}
            items.append({"type": "message", "role": "assistant", "status": "completed", "content": [part]})
        items += [
            {
                "type": "function_call",
                "call_id": call.call_id,
                "name": call.name,
                "arguments": call.arguments_json,
                "status": "completed",
            }
            for call in message.tool_calls
        ]
        items += [
            {
                "type": "function_call_output",
                "call_id": result.call_id,
                "output": result.result_json,
                "status": "completed",
            }
            for result in message.tool_results
        ]
    return [{"id": f"in_{key}_{place}", **item} for place, item in enumerate(items)]
