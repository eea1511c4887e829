"""What executions are to hosts: results of tools, tasks, resources and progress."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from mcp_types import CallToolResult, Resource, TextContent
from pydantic_core import to_json

from reasond_server.http_api.json_mapping import build_event_json, describe_step, name_event
from reasond_server.types import Iteration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reasond_server.types import StreamEvent

ROOT: Final = "reasond://executions/"
JSON: Final = "application/json"
POLL_MS: Final = 1_000
_MOST_MESSAGE: Final = 500
_ENDED: Final = frozenset({"succeeded", "failed", "cancelled"})


def write_answer(result: Mapping[str, Any]) -> CallToolResult:
    """Return the end of a run, as its last event tells it, as the result of the call."""
    result = _leave_out_trace(result)
    error = result.get("error")
    if error:
        return write_failure({"message": error["message"], "data": {"reason": error["reason"]}}, result)
    is_json = result.get("answer_json") is not None
    text = to_json(result["answer_json"]).decode() if is_json else result.get("answer") or result.get("patch")
    return _write(text or f"The run ended without an answer: {result['finish_reason']}.", result)


def write_handle(execution_id: str) -> CallToolResult:
    """Return what a call in the background gets."""
    text = f"Execution {execution_id} has begun. Read it with read_execution, until its state is no longer running."
    return _write(text, {"execution_id": execution_id, "state": "running"})


def write_execution(execution: Mapping[str, Any], end: Mapping[str, Any] | None) -> CallToolResult:
    """Return an execution for who reads it, with its end once it has one; the steps are in the resource."""
    shown = {"execution": dict(execution), "result": None if end is None else _leave_out_trace(end)}
    if execution["state"] not in _ENDED or end is None:
        return _write(f"Execution {execution['execution_id']} is {execution['state']}.", shown)
    return write_answer(end).model_copy(update={"structured_content": shown, "is_error": False})


def write_failure(error: Mapping[str, Any], result: Mapping[str, Any] | None = None) -> CallToolResult:
    """Return a refusal or a failed run as the result of its call, so that the model can read it."""
    data = error["data"]
    text = f"{data['reason']}: {error['message']}\n{data.get('remedy', '')}".rstrip()
    return _write(text, result or {"error": dict(error)}, is_error=True)


def write_task(
    execution: Mapping[str, Any], end: Mapping[str, Any] | None = None, *, is_created: bool = False
) -> dict[str, Any]:
    """Return an execution as a task, whose handle is its id; of one that has ended with the result of its call."""
    state = execution["state"]
    status = {"succeeded": "completed", "failed": "completed", "cancelled": "cancelled"}.get(state, "working")
    task: dict[str, Any] = {
        "resultType": "task" if is_created else "complete",
        "taskId": execution["execution_id"],
        "createdAt": execution["create_time"],
        "lastUpdatedAt": execution["end_time"] or execution["create_time"],
        "ttlMs": _find_lifetime_ms(execution),
        "pollIntervalMs": POLL_MS,
    }
    if is_created or status != "completed":
        return task | {"status": "working" if is_created else status}
    error = (end or {}).get("error")
    if error and error["reason"] == "INTERNAL":
        # A task fails by a fault of the server alone; what a tool reports is a result.
        return {**task, "status": "failed", "error": {"code": -32603, "message": error["message"]}}
    result = write_answer(end or {"finish_reason": execution["finish_reason"]})
    return {**task, "status": status, "result": result.model_dump(by_alias=True, mode="json", exclude_none=True)}


def describe_resource(execution: Mapping[str, Any]) -> Resource:
    """Return an execution as a list of resources has it."""
    return Resource(
        uri=f"{ROOT}{execution['execution_id']}",
        name=execution["execution_id"],
        title=execution["question"] or None,
        description=f"{execution['strategy']}, {execution['state']}, {execution['create_time']}",
        mime_type=JSON,
    )


def describe_progress(event: StreamEvent) -> str:
    """Return what an event says to who waits: the beginning of its step, or its name."""
    step = describe_step(event.event) if isinstance(event.event, Iteration) else ""
    return step[:_MOST_MESSAGE] or f"{name_event(event)} ({event.execution_id})"


def read_end(event: StreamEvent) -> dict[str, Any]:
    """Return the members of a last event."""
    body: dict[str, Any] = build_event_json(event)[name_event(event)]
    return body


def _leave_out_trace(end: Mapping[str, Any]) -> dict[str, Any]:
    """Return an end as its last event tells it: a model is not to read a megabyte of steps."""
    return {name: value for name, value in end.items() if name != "trace"}


def _find_lifetime_ms(execution: Mapping[str, Any]) -> int | None:
    """Return for how long an execution is kept, from its beginning; None while it runs."""
    if execution["expire_time"] is None:
        return None
    kept = datetime.fromisoformat(execution["expire_time"]) - datetime.fromisoformat(execution["create_time"])
    return round(kept.total_seconds() * 1000)


def _write(text: str, result: Mapping[str, Any], *, is_error: bool = False) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)], structured_content=dict(result), is_error=is_error)
