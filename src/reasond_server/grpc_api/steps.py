"""What a step shows: types -> proto. `has_texts` off leaves out everything that a model, a tool or a client wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reasond.v1 import execution_pb2, strategies_pb2
from reasond_server.grpc_api.structs import struct_of_json
from reasond_server.types import (
    BoundedContextStep,
    CarryoverMode,
    CustomStep,
    ReactStep,
    Sample,
    Thought,
    TreeStep,
)

if TYPE_CHECKING:
    from reasond_server.types import CarryoverReport, StepDetail

_CARRYOVER_MODES: Final = {
    mode: strategies_pb2.CarryoverMode.Value(f"CARRYOVER_MODE_{mode.name}") for mode in CarryoverMode
}


def with_detail(
    message: execution_pb2.Iteration, detail: StepDetail, *, has_texts: bool = True
) -> execution_pb2.Iteration:
    """Return `message` with what its step shows."""
    # An empty message does not choose an alternative of a oneof when it is copied; SetInParent does.
    match detail:
        case Thought():
            thought = message.thought
            if has_texts and detail.text:
                thought.text = detail.text
            else:
                thought.SetInParent()
            if has_texts and detail.answer:
                thought.answer = detail.answer
            return message
        case BoundedContextStep():
            message.bounded_context.CopyFrom(_window(detail, has_texts=has_texts))
            return message
        case ReactStep():
            message.react.SetInParent()
            message.react.CopyFrom(_cycle(detail, has_texts=has_texts))
            return message
        case TreeStep():
            message.tree.SetInParent()
            message.tree.CopyFrom(_node(detail, has_texts=has_texts))
            return message
        case Sample():
            message.sample.SetInParent()
            message.sample.CopyFrom(_sample(detail, has_texts=has_texts))
            return message
        case CustomStep():
            message.custom.SetInParent()
            if has_texts:
                message.custom.CopyFrom(struct_of_json(detail.data))
            return message


def _window(step: BoundedContextStep, *, has_texts: bool) -> strategies_pb2.BoundedContextStep:
    message = strategies_pb2.BoundedContextStep(
        text=step.text if has_texts else "",
        carryover=step.carryover if has_texts else "",
        carryover_mode=_CARRYOVER_MODES[step.carryover_mode],
        window_tokens=step.window_tokens,
        carryover_generated=step.carryover_generated,
        is_window_exact=step.is_window_exact,
        carryover_tokens=step.carryover_tokens,
    )
    if step.reading is not None:
        message.reading.segment, message.reading.segment_count = step.reading.segment, step.reading.segment_count
    if step.carryover_report is not None:
        message.carryover_report.SetInParent()
        message.carryover_report.CopyFrom(_report(step.carryover_report, has_texts=has_texts))
    return message


def _report(report: CarryoverReport, *, has_texts: bool) -> strategies_pb2.CarryoverReport:
    return strategies_pb2.CarryoverReport(
        before_tokens=report.before_tokens,
        after_tokens=report.after_tokens,
        dropped=[strategies_pb2.Dropped(part=one.part, tokens=one.tokens) for one in report.dropped],
        has_own_call=report.has_own_call,
        fallback_reason=report.fallback_reason if has_texts else "",
    )


def _cycle(step: ReactStep, *, has_texts: bool) -> strategies_pb2.ReactStep:
    return strategies_pb2.ReactStep(
        thought=step.thought if has_texts else "",
        actions=[
            strategies_pb2.ToolCall(
                call_id=call.call_id, tool=call.name, arguments_json=call.arguments_json if has_texts else ""
            )
            for call in step.actions
        ],
        observations=[
            strategies_pb2.ToolResult(
                call_id=result.call_id,
                result_json=result.result_json if has_texts else "",
                is_error=result.is_error,
            )
            for result in step.observations
        ],
    )


def _node(step: TreeStep, *, has_texts: bool) -> strategies_pb2.TreeStep:
    return strategies_pb2.TreeStep(
        node_id=step.node_id,
        parent_id=step.parent_id,
        depth=step.depth,
        thought=step.thought if has_texts else "",
        score=step.score,
        is_pruned=step.is_pruned,
        answer=step.answer if has_texts else "",
    )


def _sample(step: Sample, *, has_texts: bool) -> strategies_pb2.Sample:
    return strategies_pb2.Sample(
        text=step.text if has_texts else "",
        answer=step.answer if has_texts else "",
        normalized_answer=step.normalized_answer if has_texts else "",
        temperature=step.temperature,
    )
