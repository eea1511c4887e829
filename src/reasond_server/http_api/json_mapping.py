"""Domain values as JSON, with keys in the order of seed 001; declared kinds by their fields, in the declared order.

Keys are snake_case, enumerations are lower-case words, durations are whole milliseconds (`_ms`), percentages (`_pct`)
have one decimal, and times are RFC 3339 in UTC. Every key is always present, with null for an unknown value; only a
result has no `error` unless the execution failed, and no `answer_json` unless its answer satisfies the schema of the
task. Keys that seed 001 does not have (`execution_id`, `finish_reason`, `usage` and so on) are added; none of its keys
is changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pydantic_core import to_json

from reasond_server.types import BoundedContextStep, Iteration, ReactStep, Result, Thought, Usage
from reasond_server.types.kinds import EVENTS, METRICS, STEPS, Field, build_reader, list_fields

if TYPE_CHECKING:
    from reasond_server.agents.directory import RegisteredAgent
    from reasond_server.types import (
        Budget,
        Execution,
        HistoryMessage,
        Image,
        Metrics,
        StreamEvent,
        Task,
        ToolCall,
        ToolResult,
    )
    from reasond_server.types.repairs import RepairTask, RepairView, Snapshot
    from reasond_server.types.turns import Turn, TurnConversation, TurnResult

JsonObject = dict[str, Any]
_Convert: TypeAlias = Callable[[Any], Any]

_READ_VALUE: Final = attrgetter("value")


class _Writers(dict[type, Callable[[Any], JsonObject]]):
    """The writer function of each class, made when it is first needed."""

    def __missing__(self, cls: type) -> Callable[[Any], JsonObject]:
        found = self[cls] = _make_writer(cls)
        return found


WRITERS: Final = _Writers()
"""Functions that convert values of a class to JSON, for code that runs in every call and skips `build_kind_json`."""


def build_kind_json(value: object) -> JsonObject:
    """Return a value of a declared kind, or of a dataclass within one, as JSON."""
    return WRITERS[value.__class__](value)


def timestamp(moment: datetime) -> str:
    """Return `moment` by RFC 3339, in UTC with the suffix Z."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def milliseconds(seconds: float) -> int:
    """Return `seconds` in whole milliseconds, rounded."""
    return round(seconds * 1000)


def _make_writer(cls: type) -> Callable[[Any], JsonObject]:
    """Return the function that writes a `cls`."""
    event = EVENTS.kinds.get(cls)
    kind = event or STEPS.kinds.get(cls) or METRICS.kinds.get(cls)
    if kind is not None and kind.body:
        body = kind.body
        return lambda value: dict(getattr(value, body))
    fields = {field.name: field for field in list_fields(cls) if not field.is_stored_only}
    names = kind.keys if kind is not None and kind.keys else tuple(fields)
    if event is not None:
        # Their keys are those of the wire; fields without a key are only stored.
        names = [_find_field_name(name, fields) for name in names]
    elif missing := fields.keys() - set(names):
        raise TypeError(f"{cls.__name__} declares keys without {sorted(missing)}")
    read, members = build_reader(names), [_map_member(name, fields.get(name)) for name in names]
    return lambda value: {
        key: found if convert is None or found is None else convert(found)
        for (key, convert), found in zip(members, read(value), strict=True)
    }


def _find_field_name(key: str, fields: Mapping[str, Field]) -> str:
    """Return the name of the field that the key of an event shows: a duration is `x_ms` for the field `x_s`."""
    seconds = f"{key.removesuffix('_ms')}_s"
    return seconds if key not in fields and seconds in fields else key


def _map_member(name: str, field: Field | None) -> tuple[str, _Convert | None]:
    """Return the key of a field with what converts its value; a computed one (`field` is None) may be a percentage."""
    if name.endswith("_pct"):
        return name, _round_percentage
    if field is None:
        return name, None
    if field.type is float and name.endswith("_s"):
        return f"{name.removesuffix('_s')}_ms", milliseconds
    one = _find_converter(field.type)
    if not field.is_sequence:
        return field.wire_name, one
    return field.wire_name, list if one is None else lambda items: [one(item) for item in items]


def _find_converter(kind: type) -> _Convert | None:
    """Return what converts a value of type `kind`; None if it is JSON already."""
    if is_dataclass(kind):
        return WRITERS[kind]
    if issubclass(kind, Enum):
        return _READ_VALUE
    if kind is datetime:
        return timestamp
    return dict if kind is Mapping else None


def _round_percentage(value: float) -> float:
    # Adding zero turns -0.0 into 0.0.
    return round(value, 1) + 0.0


MAX_TRACE_BYTES: Final = 1024 * 1024
"""Most bytes of JSON that the items of one trace may take."""
_MOST_BYTES: Final = 6
"""Most bytes that a character of a text takes, as an escape such as `\\u0000`."""
_PUNCTUATION: Final = 6
"""Bytes around a key and a text: four quotation marks, a colon and a comma."""


def build_result_json(result: Result, steps: Sequence[Iteration]) -> JsonObject:
    """Return `result` with `steps` as its trace, in the shape that seed 001 defines for `reasoning.execute`.

    A trace over MAX_TRACE_BYTES keeps its first items, and `warnings` says how many were omitted.
    """
    items = [item for step in steps for item in list_trace_items(step, answer=result.answer)]
    kept = _take_within(items, MAX_TRACE_BYTES)
    warnings = list(result.warnings)
    if len(kept) < len(items):
        warnings.append(
            f"The trace holds the first {len(kept)} of {len(items)} items: all of them are over {MAX_TRACE_BYTES} "
            "bytes. Stream the execution to read every step."
        )
    return _build_result(result, warnings, trace=kept)


def build_task_json(task: Task) -> JsonObject:
    """Return `task` as the parameters of `reasoning.execute` that ask for it again."""
    params = asdict(task)
    params["budget"] = _build_budget_json(task.budget)
    params["strategy_config"] = params.pop("config")
    params["images"] = _list_images(task.images)
    params["history"] = [_build_message_json(message) for message in task.history]
    # It is no parameter: the protocol that the task came by wrote it.
    del params["echo_json"]
    return params


def _build_budget_json(budget: Budget) -> JsonObject:
    params = asdict(budget)
    elapsed_s = params.pop("max_elapsed_s")
    return {**params, "max_elapsed_ms": None if elapsed_s is None else milliseconds(elapsed_s)}


def _build_message_json(message: HistoryMessage) -> JsonObject:
    calls = [
        {"call_id": call.call_id, "tool": call.name, "arguments_json": call.arguments_json}
        for call in message.tool_calls
    ]
    members = {
        "role": message.role.value,
        "text": message.text,
        "images": _list_images(message.images),
        "reasoning": message.reasoning,
        "tool_calls": calls,
        "tool_results": [asdict(result) for result in message.tool_results],
    }
    return {name: part for name, part in members.items() if part}


def _list_images(images: Sequence[Image]) -> list[JsonObject]:
    return [{"media_type": image.media_type, "data": image.base64} for image in images]


def build_completed_json(result: Result) -> JsonObject:
    """Return `result` without a trace, as the last event of a stream carries it."""
    return _build_result(result, list(result.warnings))


def _build_result(result: Result, warnings: list[str], **trace: list[JsonObject]) -> JsonObject:
    """Return `result` with `warnings`, and with the member `trace` if it is given."""
    shown = {
        "answer": result.answer,
        "strategy_used": result.strategy_used,
        "metrics": build_metrics_json(result.metrics),
        **trace,
        "execution_id": result.execution_id,
        "finish_reason": result.finish_reason.value if result.finish_reason else None,
        "strategy_source": result.strategy_source.value,
        "model": result.model,
        "warnings": warnings,
    }
    if result.answer_json:
        shown["answer_json"] = json.loads(result.answer_json)
    if result.error is not None:
        shown["error"] = {"reason": result.error.reason, "message": result.error.message}
    return shown


def build_metrics_json(metrics: Metrics) -> JsonObject:
    """Return `metrics`; `strategy_specific` is empty if the run ended before its first step."""
    return {
        "total_tokens": metrics.usage.total_tokens,
        "execution_time_ms": milliseconds(metrics.execution_time_s),
        "strategy_specific": {} if metrics.strategy_specific is None else build_kind_json(metrics.strategy_specific),
        "usage": WRITERS[Usage](metrics.usage),
    }


def build_execution_json(execution: Execution) -> JsonObject:
    """Return `execution` for its owner; the tenant is omitted."""
    return {
        "execution_id": execution.execution_id,
        "state": execution.state.value,
        "strategy": execution.strategy,
        "strategy_source": execution.strategy_source.value,
        "finish_reason": execution.finish_reason.value if execution.finish_reason else None,
        "create_time": timestamp(execution.create_time),
        "end_time": timestamp(execution.end_time) if execution.end_time else None,
        "expire_time": timestamp(execution.expire_time) if execution.expire_time else None,
        "last_sequence": execution.last_sequence,
        "usage": WRITERS[Usage](execution.usage),
        "request_id": execution.request_id,
        "model": execution.model,
        "question": execution.question,
        "outcome": execution.outcome,
        "client": execution.client,
        "wire": execution.wire,
    }


def build_agent_json(agent: RegisteredAgent) -> JsonObject:
    """Return an agent of the directory for its owner; the tenant is omitted."""
    return {
        "agent_id": agent.agent_id,
        "card": dict(agent.card),
        "card_json": agent.card_json,
        "capabilities": list(agent.capabilities),
        "strategies": list(agent.strategies),
        "etag": agent.etag,
        "create_time": timestamp(agent.create_time),
        "update_time": timestamp(agent.update_time),
        "expire_time": timestamp(agent.expire_time) if agent.expire_time else None,
    }


def build_event_json(event: StreamEvent, *, id_name: str = "execution_id") -> JsonObject:
    """Return one event of a stream: its sequence number, its time, and its body under the key `event_name(event)`.

    `id_name` is the key of its log's id.
    """
    kind = event.event.__class__
    return {
        id_name: event.execution_id,
        "sequence": event.sequence,
        "create_time": timestamp(event.create_time),
        EVENTS.kinds[kind].wire_tag: _BODIES.get(kind, build_kind_json)(event.event),
    }


def name_event(event: StreamEvent) -> str:
    """Return the name of the field that carries `event` in the response of its streaming RPC."""
    return EVENTS.kinds[event.event.__class__].wire_tag


def is_logged(event: StreamEvent) -> bool:
    """Return whether `event` has its own sequence number, so that a stream can resume after it."""
    return EVENTS.kinds[event.event.__class__].is_logged


def build_turn_view_json(turn: Turn, result: TurnResult | None) -> JsonObject:
    """Return a turn, and how it ended; null before that."""
    return {"turn": build_kind_json(turn), "result": None if result is None else build_kind_json(result)}


def build_conversation_json(conversation: TurnConversation) -> JsonObject:
    """Return what was said to a turn."""
    return {
        "system": conversation.system,
        "history": [_build_message_json(message) for message in conversation.history],
        "message": conversation.message,
        "material": conversation.material,
        "context": [build_kind_json(block) for block in conversation.context],
        "left_out_messages": conversation.left_out_messages,
    }


def build_repair_view_json(view: RepairView) -> JsonObject:
    """Return the execution of a repair, and how it ended; null before that."""
    return {
        "execution": build_execution_json(view.execution),
        "repair": None if view.repair is None else build_kind_json(view.repair),
        "task": None if view.task is None else _build_repair_task_json(view.task),
    }


def _build_repair_task_json(task: RepairTask) -> JsonObject:
    """Return `task` as the parameters of `repair.execute` that ask for it again; its code is a snapshot."""
    params = asdict(task)
    params["budget"] = _build_budget_json(task.budget)
    for check in params["checks"]:
        check["timeout_ms"] = milliseconds(check.pop("timeout_s")) or None
    return params


def build_snapshot_json(snapshot: Snapshot) -> JsonObject:
    """Return a snapshot without its files, and the digests of the contents that are missing."""
    return {
        "snapshot": {
            "snapshot_id": snapshot.snapshot_id,
            "file_count": snapshot.file_count,
            "total_bytes": snapshot.total_bytes,
            "expire_time": timestamp(snapshot.expire_time),
        },
        "missing": list(snapshot.missing),
    }


def build_iteration_json(step: Iteration) -> JsonObject:
    """Return `step` in the structure of the proto's Iteration."""
    return {
        "index": step.index,
        "answer_found": step.answer_found,
        "usage": WRITERS[Usage](step.usage),
        "elapsed_ms": milliseconds(step.elapsed_s),
        STEPS.kinds[step.detail.__class__].wire_tag: WRITERS[step.detail.__class__](step.detail),
    }


_BODIES: Final[Mapping[type, Callable[[Any], JsonObject]]] = {
    Iteration: build_iteration_json,
    Result: build_completed_json,
}
"""Functions that write the body of events with more members than their fields."""


def list_trace_items(step: Iteration, *, answer: str = "") -> list[JsonObject]:
    """Return the items of `step` in a trace: one item, or for chain of thought a `reasoning` and an `answer`.

    `answer` is the answer of the run: seed 001 shows it as the observation of the ReAct cycle that found it.
    """
    detail = step.detail
    if isinstance(detail, Thought):
        pair = (("reasoning", detail.text), ("answer", detail.answer))
        return [{"type": kind, "content": content} for kind, content in pair if content]
    if isinstance(detail, ReactStep):
        return [_build_cycle_item(step, detail, answer)]
    kind, body = STEPS.kinds[detail.__class__], build_kind_json(detail)
    if kind.body:
        return [body]
    item = {
        "type": kind.trace_type,
        "iteration": step.index,
        "content": body.pop(kind.headline),
        "answer_found": step.answer_found,
        "tokens": step.usage.total_tokens,
        "execution_time_ms": milliseconds(step.elapsed_s),
    }
    if isinstance(detail, BoundedContextStep):
        # The tokens are those of the window; calls for a carryover are not part of it.
        item |= {"type": "reading" if detail.reading else "reasoning", "tokens": body.pop("window_tokens")}
    return [item | body]


def describe_step(step: Iteration) -> str:
    """Return what a step did as text: its headline, the calls of ReAct with their results, or third-party JSON."""
    detail = step.detail
    if isinstance(detail, ReactStep):
        calls, results = _format_action(detail.actions), "\n".join(map(_format_observation, detail.observations))
        named = (detail.thought, calls and f"Action: {calls}", results and f"Observation: {results}")
        return "\n".join(text for text in named if text)
    kind = STEPS.kinds[detail.__class__]
    if kind.body:
        return to_json(build_kind_json(detail), inf_nan_mode="null").decode()
    text: str = getattr(detail, kind.headline)
    return text


def _build_cycle_item(step: Iteration, detail: ReactStep, answer: str) -> JsonObject:
    """Return a cycle: seed 001's six keys first, then the calls and results behind `action` and `observation`."""
    action, observation = _format_action(detail.actions), "\n".join(map(_format_observation, detail.observations))
    if step.answer_found and not detail.actions:
        action, observation = "Answer", answer
    return {
        "iteration": step.index,
        "thought": detail.thought,
        "action": action,
        "observation": observation,
        "answer_found": step.answer_found,
        "tokens": step.usage.total_tokens,
        "type": "cycle",
        "execution_time_ms": milliseconds(step.elapsed_s),
        **build_kind_json(detail),
    }


def _format_action(calls: Sequence[ToolCall]) -> str:
    """Return calls as text, one per line, such as `calculator({"expression": "2+2"})`."""
    return "\n".join(f"{call.name}({call.arguments_json})" for call in calls)


def _format_observation(result: ToolResult) -> str:
    """Return a result as text: the value of a JSON string, any other JSON unchanged."""
    try:
        value = json.loads(result.result_json)
    except (ValueError, RecursionError):
        value = None
    text = value if isinstance(value, str) else result.result_json
    return f"Error: {text}" if result.is_error else text


def _surely_fit(items: list[JsonObject], limit: int) -> bool:
    """Return whether `items` of texts alone take at most `limit` bytes of JSON, whatever the texts are.

    Nearly every trace does, and its texts need not be written to see that.
    """
    characters = 0
    for item in items:
        for name, text in item.items():
            if type(text) is not str:
                return False
            characters += len(name) + len(text)
    return _MOST_BYTES * characters + _PUNCTUATION * sum(map(len, items)) + 3 * len(items) + 2 <= limit


def _take_within(items: list[JsonObject], limit: int) -> list[JsonObject]:
    """Return as many of the first `items` as fit into `limit` bytes of JSON, separators included."""
    # Two brackets, and one comma less than items.
    if _surely_fit(items, limit) or len(to_json(items, inf_nan_mode="null")) - 1 <= limit:
        return items
    kept: list[JsonObject] = []
    room = limit
    for item in items:
        room -= len(to_json(item, inf_nan_mode="null")) + 1
        if room < 0:
            break
        kept.append(item)
    return kept
