"""The response object with all its members, what it tells again of its request, and the ids of responses and items."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import from_json

from reasond_server.errors.base import show
from reasond_server.errors.executions import ExecutionNotFoundError
from reasond_server.protocols.followed_runs import write_usage
from reasond_server.protocols.wire_errors import map_code
from reasond_server.reasoning.strategy_work import read_planned_task
from reasond_server.types import FinishReason, Speaker
from reasond_server.types.turns import TurnStarted
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reasond_server.executions.desk import ExecutionLog
    from reasond_server.protocols.followed_runs import FollowedRun
    from reasond_server.types import ExecutionFailure, HistoryMessage

_RESPONSE_ID: Final = re.compile(r"resp_(?P<execution>[A-Za-z0-9-]{1,128})(?:_(?P<after>[1-9][0-9]{0,9}))?\Z")
ECHO: Final[Mapping[str, Any]] = {
    "background": False,
    "frequency_penalty": 0.0,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "model": "reasond",
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""What a response tells of its request, where that says nothing else."""

_STATUSES: Final = {
    FinishReason.ANSWERED: "completed",
    FinishReason.ANSWERED_UNTAGGED: "completed",
    FinishReason.CANCELLED: "cancelled",
    FinishReason.FAILED: "failed",
    FinishReason.EXPIRED: "failed",
}


SEALED: Final = "reasoning.encrypted_content"
"""What a client includes that keeps its conversations itself, and sends back nothing else of a reasoning."""
LOGPROBS: Final = "message.output_text.logprobs"
"""What a client includes that wants the log probabilities of the answer."""


@value
class ResponseRef:
    """Where a response is kept: its execution, and for a later leg of a turn the event that this leg comes after."""

    execution_id: str
    after: int = 0

    @property
    def key(self) -> str:
        """What the ids of its items have of it."""
        return f"{self.execution_id}_{self.after}" if self.after else self.execution_id

    @property
    def response_id(self) -> str:
        """The id of the response."""
        return f"resp_{self.key}"


def parse_response_id(response_id: str) -> ResponseRef:
    """Return where the response is.

    Raises:
        ExecutionNotFoundError: it is no id of a response of this server.
    """
    match = _RESPONSE_ID.match(response_id)
    if match is None:
        raise ExecutionNotFoundError(
            f"Response not found: {show(response_id)}", remedy="Use an id that this server returned to the same tenant."
        )
    return ResponseRef(execution_id=match["execution"], after=int(match["after"] or 0))


def begin_response(ref: ResponseRef, echo: Mapping[str, Any], *, created_at: int) -> dict[str, Any]:
    """Return the response object as it begins; `echo` is what the request said of it."""
    return {
        "id": ref.response_id,
        "object": "response",
        "created_at": created_at,
        "completed_at": None,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "output": [],
        "usage": None,
        **{name: echo.get(name, usual) for name, usual in ECHO.items()},
        "reasond": {"execution_id": ref.execution_id, "warnings": list(echo.get("warnings", ()))},
    }


def end_response(
    response: Mapping[str, Any], run: FollowedRun, *, error: ExecutionFailure | None, completed_at: int
) -> dict[str, Any]:
    """Return the response object at the end of `run`; what waits for results of tools is complete."""
    reason = run.finish_reason
    status = "completed" if reason is None else _STATUSES.get(reason, "incomplete")
    details = "content_filter" if reason is FinishReason.CONTENT_FILTERED else "max_output_tokens"
    return {
        **response,
        "status": status,
        "completed_at": completed_at if status == "completed" else None,
        "incomplete_details": {"reason": details} if status == "incomplete" else None,
        "error": {"code": map_code(error.reason), "message": error.message} if error and status == "failed" else None,
        "usage": write_usage(run.usage, "input", "output"),
        "reasond": {
            **response["reasond"],
            "finish_reason": None if reason is None else reason.value,
            "warnings": [*response["reasond"]["warnings"], *run.warnings],
        },
    }


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
