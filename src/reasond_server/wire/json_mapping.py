"""Domain values as JSON: hand-written, one function per value, keys in the order that clients know (seed 001).

Keys are snake_case, enumerations are their lower-case words, durations whole milliseconds (`_ms`) and
times RFC 3339 in UTC. Every key is always present and null where nothing is known, except the `error` of a
result, which only failed ones have. Keys that seed 001 does not know (`execution_id`, `finish_reason`, `usage`
and so on) are added; none of its keys is changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_json

from reasond_server.types import ExecutionStarted, Heartbeat, Iteration, Result, TextDelta
from reasond_server.wire.json_metrics import strategy_specific
from reasond_server.wire.json_steps import detail_json, trace_items
from reasond_server.wire.json_times import milliseconds, timestamp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.agents.agent_service import CardView
    from reasond_server.agents.directory import RegisteredAgent
    from reasond_server.reasoning.service import StrategyInfo
    from reasond_server.types import Event, Execution, Metrics, StreamEvent, Usage

MAX_TRACE_BYTES: Final = 1024 * 1024
"""Most bytes of JSON that the items of one trace may take."""

JsonObject = dict[str, Any]


def result_json(result: Result, steps: Sequence[Iteration]) -> JsonObject:
    """Return `result` with `steps` as its trace, in the shape that seed 001 gives `reasoning.execute`.

    A trace over MAX_TRACE_BYTES keeps its first items, and `warnings` says how many were left out.
    """
    items = [item for step in steps for item in trace_items(step, answer=result.answer)]
    kept = _within(items, MAX_TRACE_BYTES)
    warnings = list(result.warnings)
    if len(kept) < len(items):
        warnings.append(
            f"The trace holds the first {len(kept)} of {len(items)} items: all of them are over {MAX_TRACE_BYTES} "
            "bytes. Stream the execution to read every step."
        )
    return _result(result, warnings, trace=kept)


def completed_json(result: Result) -> JsonObject:
    """Return `result` without a trace, as the last event of a stream carries it."""
    return _result(result, list(result.warnings))


def _result(result: Result, warnings: list[str], **trace: list[JsonObject]) -> JsonObject:
    """Return `result` with these warnings, and with the member `trace` where one is given."""
    shown = {
        "answer": result.answer,
        "strategy_used": result.strategy_used,
        "metrics": metrics_json(result.metrics),
        **trace,
        "execution_id": result.execution_id,
        "finish_reason": result.finish_reason.value if result.finish_reason else None,
        "strategy_source": result.strategy_source.value,
        "model": result.model,
        "warnings": warnings,
    }
    if result.error is not None:
        shown["error"] = {"reason": result.error.reason, "message": result.error.message}
    return shown


def metrics_json(metrics: Metrics) -> JsonObject:
    """Return `metrics`; `strategy_specific` is empty where the run ended before its first step."""
    return {
        "total_tokens": metrics.usage.total_tokens,
        "execution_time_ms": milliseconds(metrics.execution_time_s),
        "strategy_specific": strategy_specific(metrics.strategy_specific),
        "usage": usage_json(metrics.usage),
    }


def usage_json(usage: Usage) -> JsonObject:
    """Return the tokens and calls that were spent."""
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_input_tokens": usage.cached_input_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "model_calls": usage.model_calls,
        "source": usage.source.value,
    }


def execution_json(execution: Execution) -> JsonObject:
    """Return `execution` as its owner sees it; the tenant is not repeated."""
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
        "usage": usage_json(execution.usage),
        "request_id": execution.request_id,
        "model": execution.model,
    }


def strategy_json(info: StrategyInfo) -> JsonObject:
    """Return what clients may know about a strategy, its configuration's JSON Schema included."""
    return {
        "name": info.name,
        "description": info.description,
        "config_schema": dict(info.config_schema),
        "default_config": dict(info.default_config),
        "capabilities": list(info.capabilities),
        "is_default": info.is_default,
        "ceilings": dict(info.ceilings),
        "cost_class": info.cost_class.value if info.cost_class else None,
        "cost_formula": info.cost_formula,
    }


def card_json(view: CardView) -> JsonObject:
    """Return an agent's card; `card_json` holds it byte for byte, so that signatures still verify."""
    return {
        "card": dict(view.card),
        "card_json": view.card_json,
        "etag": view.etag,
        "supported_methods": list(view.supported_methods),
        "capabilities": list(view.capabilities),
    }


def agent_json(agent: RegisteredAgent) -> JsonObject:
    """Return an agent of the directory as its owner sees it; the tenant is not repeated."""
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


def event_json(event: StreamEvent) -> JsonObject:
    """Return one event of a stream: its place, its time, and what happened under `event_name(event)`."""
    return {
        "execution_id": event.execution_id,
        "sequence": event.sequence,
        "create_time": timestamp(event.create_time),
        event_name(event): _happening(event.event),
    }


def event_name(event: StreamEvent) -> str:
    """Return the name of the field of ReasonIterationsResponse that carries `event`."""
    match event.event:
        case ExecutionStarted():
            return "started"
        case Iteration():
            return "iteration"
        case TextDelta():
            return "delta"
        case Heartbeat():
            return "heartbeat"
        case Result():
            return "completed"


def is_logged(event: StreamEvent) -> bool:
    """Return whether `event` has a sequence number of its own, so that a stream can resume after it."""
    return not isinstance(event.event, TextDelta | Heartbeat)


def iteration_json(step: Iteration) -> JsonObject:
    """Return `step` in the structure of the proto's Iteration."""
    name, detail = detail_json(step.detail)
    return {
        "index": step.index,
        "answer_found": step.answer_found,
        "usage": usage_json(step.usage),
        "elapsed_ms": milliseconds(step.elapsed_s),
        name: detail,
    }


def _happening(event: Event | TextDelta | Heartbeat) -> JsonObject:
    """Return the body of an event."""
    match event:
        case ExecutionStarted():
            return {
                "strategy": event.strategy,
                "strategy_source": event.strategy_source.value,
                "model": event.model,
                "config": dict(event.config),
            }
        case Iteration():
            return iteration_json(event)
        case TextDelta():
            return {"iteration_index": event.iteration_index, "text": event.text}
        case Heartbeat():
            return {}
        case Result():
            return completed_json(event)


def _within(items: list[JsonObject], limit: int) -> list[JsonObject]:
    """Return the first of `items` whose JSON, with its separators, stays within `limit` bytes."""
    # Two brackets, and a comma less than there are items.
    if len(to_json(items, inf_nan_mode="null")) - 1 <= limit:
        return items
    kept: list[JsonObject] = []
    room = limit
    for item in items:
        room -= len(to_json(item, inf_nan_mode="null")) + 1
        if room < 0:
            break
        kept.append(item)
    return kept
