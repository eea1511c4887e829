"""What a response tells again of its request, and the items that it was asked with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from reasond_server.reasoning.strategy_work import read_planned_task
from reasond_server.types import Speaker
from reasond_server.types.turns import TurnStarted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reasond_server.executions.desk import ExecutionLog
    from reasond_server.types import HistoryMessage


def recall_echo(log: ExecutionLog) -> Mapping[str, Any]:
    """Return what a task's plan keeps of its request; the legs of a turn keep it in their first events."""
    is_turn = not log.plan or isinstance(log.events[0].event, TurnStarted)
    task = None if is_turn else read_planned_task(log.plan)
    return {} if task is None else read_echo(task.echo_json)


def read_echo(text: str) -> Mapping[str, Any]:
    """Return what a log keeps of a request; nothing if it keeps nothing of this protocol."""
    found = from_json(text) if text else {}
    return found if isinstance(found, dict) else {}


def tell_items(message: HistoryMessage) -> Iterator[dict[str, Any]]:
    """Yield what was said as items."""
    if message.role is Speaker.USER:
        said = [{"type": "input_text", "text": message.text}] if message.text else []
        shown = [
            {"type": "input_image", "detail": "auto", "image_url": f"data:{image.media_type};base64,{image.base64}"}
            for image in message.images
        ]
        yield {"type": "message", "role": "user", "content": [*said, *shown]}
    elif message.text:
        part = {"type": "output_text", "text": message.text, "annotations": [], "logprobs": []}
        yield {"type": "message", "role": "assistant", "content": [part]}
    for call in message.tool_calls:
        yield {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments_json}
    for result in message.tool_results:
        yield {"type": "function_call_output", "call_id": result.call_id, "output": result.result_json}
