"""What a response tells again of its request, and the items that it was asked with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from reasond_server.reasoning.strategy_work import read_planned_task
from reasond_server.types import Speaker
from reasond_server.types.turns import Reentered, TurnStarted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.executions.desk import ExecutionLog
    from reasond_server.protocols.responses.response_json import ResponseRef
    from reasond_server.types import HistoryMessage


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
