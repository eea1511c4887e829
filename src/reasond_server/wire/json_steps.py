"""Steps as JSON: as items of a trace, whose keys are those of seeds 000 and 001, and as the proto structures them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from reasond_server.types import BoundedContextStep, CustomStep, ReactStep, Sample, Thought, TreeStep
from reasond_server.wire.json_times import milliseconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.types import (
        CarryoverReport,
        Iteration,
        ReadingProgress,
        StepDetail,
        ToolCall,
        ToolResult,
    )

JsonObject = dict[str, Any]


def trace_items(step: Iteration, *, answer: str = "") -> list[JsonObject]:
    """Return what a trace shows of `step`: one item, or for chain of thought a `reasoning` and an `answer`.

    `answer` is that of the run: seed 001 shows it as the observation of the ReAct cycle that found it.
    """
    detail = step.detail
    match detail:
        case Thought():
            pair = (("reasoning", detail.text), ("answer", detail.answer))
            return [{"type": kind, "content": content} for kind, content in pair if content]
        case BoundedContextStep():
            return [_window_item(step, detail)]
        case ReactStep():
            return [_cycle_item(step, detail, answer)]
        case TreeStep():
            return [{**_item(step, "thought", detail.thought), **_node(detail)}]
        case Sample():
            return [{**_item(step, "sample", detail.text), **_sample(detail)}]
        case CustomStep():
            return [dict(detail.data)]


def detail_json(detail: StepDetail) -> tuple[str, JsonObject]:
    """Return the name of a step's kind, as the proto's Iteration has it, and its content."""
    match detail:
        case Thought():
            return "thought", {"text": detail.text, "answer": detail.answer}
        case BoundedContextStep():
            return "bounded_context", {
                "text": detail.text,
                **_carryover(detail),
                "window_tokens": detail.window_tokens,
                "reading": _reading(detail.reading),
            }
        case ReactStep():
            return "react", {"thought": detail.thought, **_calls(detail)}
        case TreeStep():
            return "tree", {"thought": detail.thought, **_node(detail)}
        case Sample():
            return "sample", {"text": detail.text, **_sample(detail)}
        case CustomStep():
            return "custom", dict(detail.data)


def _item(step: Iteration, kind: str, content: str) -> JsonObject:
    """Return what every item of a trace has that is no pair of reasoning and answer."""
    return {
        "type": kind,
        "iteration": step.index,
        "content": content,
        "answer_found": step.answer_found,
        "tokens": step.usage.total_tokens,
        "execution_time_ms": milliseconds(step.elapsed_s),
    }


def _window_item(step: Iteration, detail: BoundedContextStep) -> JsonObject:
    """Return a window; its tokens are those of the window, which calls for a carryover are no part of."""
    return {
        **_item(step, "reading" if detail.reading else "reasoning", detail.text),
        "tokens": detail.window_tokens,
        **_carryover(detail),
        "reading": _reading(detail.reading),
    }


def _cycle_item(step: Iteration, detail: ReactStep, answer: str) -> JsonObject:
    """Return a cycle: seed 001's six keys first, then the calls and results that its two texts are made from."""
    action, observation = _action(detail.actions), "\n".join(map(_observation, detail.observations))
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
        **_calls(detail),
    }


def _action(calls: Sequence[ToolCall]) -> str:
    """Return calls as text, such as `calculator({"expression": "2+2"})`, a line each."""
    return "\n".join(f"{call.name}({call.arguments_json})" for call in calls)


def _observation(result: ToolResult) -> str:
    """Return a result as text: that of a JSON string without its quotes, anything else as it came."""
    try:
        value = json.loads(result.result_json)
    except (ValueError, RecursionError):
        value = None
    text = value if isinstance(value, str) else result.result_json
    return f"Error: {text}" if result.is_error else text


def _calls(detail: ReactStep) -> JsonObject:
    """Return the calls of tools and their results, whose arguments and content stay JSON text."""
    return {
        "actions": [
            {"call_id": call.call_id, "tool": call.name, "arguments_json": call.arguments_json}
            for call in detail.actions
        ],
        "observations": [
            {"call_id": result.call_id, "result_json": result.result_json, "is_error": result.is_error}
            for result in detail.observations
        ],
    }


def _node(detail: TreeStep) -> JsonObject:
    """Return a node of the tree without its thought."""
    return {
        "node_id": detail.node_id,
        "parent_id": detail.parent_id,
        "depth": detail.depth,
        "score": detail.score,
        "is_pruned": detail.is_pruned,
        "answer": detail.answer,
    }


def _sample(detail: Sample) -> JsonObject:
    """Return a sample without its text."""
    return {
        "answer": detail.answer,
        "normalized_answer": detail.normalized_answer,
        "temperature": detail.temperature,
    }


def _carryover(detail: BoundedContextStep) -> JsonObject:
    """Return what a window hands on, how that was made, and how its tokens were counted."""
    return {
        "carryover": detail.carryover,
        "carryover_mode": detail.carryover_mode.value,
        "carryover_tokens": detail.carryover_tokens,
        "carryover_generated": detail.carryover_generated,
        "is_window_exact": detail.is_window_exact,
        "carryover_report": _report(detail.carryover_report),
    }


def _report(report: CarryoverReport | None) -> JsonObject | None:
    """Return how a carryover was made; None for a window that made none."""
    if report is None:
        return None
    return {
        "before_tokens": report.before_tokens,
        "after_tokens": report.after_tokens,
        "dropped": [{"part": one.part, "tokens": one.tokens} for one in report.dropped],
        "has_own_call": report.has_own_call,
        "fallback_reason": report.fallback_reason,
    }


def _reading(reading: ReadingProgress | None) -> JsonObject | None:
    """Return which part of the material was read; None for a window that reasoned."""
    return {"segment": reading.segment, "segment_count": reading.segment_count} if reading else None
