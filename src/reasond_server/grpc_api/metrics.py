"""What a run reports: types -> proto, written into the message that carries it: that takes a quarter of copying."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reasond.v1 import execution_pb2, strategies_pb2
from reasond_server.grpc_api.structs import struct_of_json
from reasond_server.grpc_api.times import duration, fill_duration
from reasond_server.types import (
    BoundedContextMetrics,
    ChainOfThoughtMetrics,
    CustomMetrics,
    ReactMetrics,
    SavingsBaseline,
    SelfConsistencyMetrics,
    TreeOfThoughtMetrics,
    UsageSource,
)

if TYPE_CHECKING:
    from reasond_server.types import Metrics, Savings, StrategyMetrics, Usage

_USAGE_SOURCES: Final = {
    source: execution_pb2.UsageSource.Value(f"USAGE_SOURCE_{source.name}") for source in UsageSource
}
_BASELINES: Final = {
    baseline: strategies_pb2.SavingsBaseline.Value(f"SAVINGS_BASELINE_{baseline.name}") for baseline in SavingsBaseline
}


def fill_usage(message: execution_pb2.Usage, usage: Usage) -> None:
    """Write what was spent into a message that is empty."""
    message.source = _USAGE_SOURCES[usage.source]
    # What is nothing says the same unwritten, and a field takes longer to write than to look at.
    if usage.model_calls:
        message.model_calls = usage.model_calls
    if usage.input_tokens:
        message.input_tokens = usage.input_tokens
    if usage.output_tokens:
        message.output_tokens = usage.output_tokens
    if usage.cached_input_tokens:
        message.cached_input_tokens = usage.cached_input_tokens
    if usage.reasoning_tokens:
        message.reasoning_tokens = usage.reasoning_tokens


def metrics_message(metrics: Metrics) -> execution_pb2.Metrics:
    """Return what a run reports."""
    message = execution_pb2.Metrics()
    fill_metrics(message, metrics)
    return message


def fill_metrics(message: execution_pb2.Metrics, metrics: Metrics) -> None:
    """Write what a run reports; `strategy_specific` stays unset before the first step."""
    message.total_tokens = metrics.usage.total_tokens
    fill_duration(message.execution_time, metrics.execution_time_s)
    fill_usage(message.usage, metrics.usage)
    if metrics.strategy_specific is not None:
        _with_specific(message, metrics.strategy_specific)


def _with_specific(message: execution_pb2.Metrics, metrics: StrategyMetrics) -> execution_pb2.Metrics:
    # An empty message does not choose an alternative of a oneof when it is copied; SetInParent does.
    match metrics:
        case ChainOfThoughtMetrics():
            _fill_chain_of_thought(message.chain_of_thought, metrics)
            return message
        case BoundedContextMetrics():
            message.bounded_context.SetInParent()
            message.bounded_context.CopyFrom(_bounded_context(metrics))
            return message
        case ReactMetrics():
            message.react.SetInParent()
            message.react.CopyFrom(_react(metrics))
            return message
        case TreeOfThoughtMetrics():
            message.tree_of_thought.SetInParent()
            message.tree_of_thought.CopyFrom(_tree_of_thought(metrics))
            return message
        case SelfConsistencyMetrics():
            message.self_consistency.SetInParent()
            message.self_consistency.CopyFrom(_self_consistency(metrics))
            return message
        case CustomMetrics():
            message.custom.SetInParent()
            message.custom.CopyFrom(struct_of_json(metrics.data))
            return message


def _fill_chain_of_thought(message: strategies_pb2.ChainOfThoughtMetrics, metrics: ChainOfThoughtMetrics) -> None:
    message.temperature, message.max_tokens = metrics.temperature, metrics.max_tokens
    message.finish_reason, message.model = metrics.finish_reason, metrics.model


def _bounded_context(metrics: BoundedContextMetrics) -> strategies_pb2.BoundedContextMetrics:
    windows = [
        strategies_pb2.BoundedContextIterationMetrics(
            iteration=window.iteration,
            tokens=window.tokens,
            has_answer=window.has_answer,
            carryover_generated=window.carryover_generated,
            execution_time=duration(window.execution_time_s),
            is_reading=window.is_reading,
            is_only_hidden_reasoning=window.is_only_hidden_reasoning,
        )
        for window in metrics.iterations
    ]
    return strategies_pb2.BoundedContextMetrics(
        total_iterations=metrics.total_iterations,
        reading_iterations=metrics.reading_iterations,
        iterations=windows,
        carryover_compressions=metrics.carryover_compressions,
        savings=_savings(metrics.savings),
        compute_savings_pct=metrics.compute_savings_pct,
        capacity_tokens=metrics.capacity_tokens,
        effective_capacity_tokens=metrics.effective_capacity_tokens,
        is_window_exact=metrics.is_window_exact,
        peak_window_tokens=metrics.peak_window_tokens,
        reprompt_savings=_savings(metrics.reprompt_savings),
        carryover_calls=metrics.carryover_calls,
    )


def _savings(savings: Savings | None) -> strategies_pb2.Savings | None:
    if savings is None:
        return None
    return strategies_pb2.Savings(
        baseline=_BASELINES[savings.baseline],
        attention_pct=savings.attention_pct,
        kv_read_pct=savings.kv_read_pct,
        tokens_pct=savings.tokens_pct,
        peak_context_pct=savings.peak_context_pct,
    )


def _react(metrics: ReactMetrics) -> strategies_pb2.ReactMetrics:
    return strategies_pb2.ReactMetrics(
        total_iterations=metrics.total_iterations,
        answer_found_at_iteration=metrics.answer_found_at_iteration,
        temperature=metrics.temperature,
        max_iterations=metrics.max_iterations,
        tool_calls=metrics.tool_calls,
        failed_tool_calls=metrics.failed_tool_calls,
        corrections=metrics.corrections,
        masked_observations=metrics.masked_observations,
    )


def _tree_of_thought(metrics: TreeOfThoughtMetrics) -> strategies_pb2.TreeOfThoughtMetrics:
    return strategies_pb2.TreeOfThoughtMetrics(
        nodes_expanded=metrics.nodes_expanded,
        nodes_evaluated=metrics.nodes_evaluated,
        nodes_pruned=metrics.nodes_pruned,
        nodes_duplicate=metrics.nodes_duplicate,
        depth_reached=metrics.depth_reached,
        best_score=metrics.best_score,
    )


def _self_consistency(metrics: SelfConsistencyMetrics) -> strategies_pb2.SelfConsistencyMetrics:
    return strategies_pb2.SelfConsistencyMetrics(
        samples=metrics.samples,
        votes=[strategies_pb2.AnswerVotes(answer=one.answer, votes=one.votes) for one in metrics.votes],
        margin=metrics.margin,
        is_stopped_early=metrics.is_stopped_early,
        is_abstained=metrics.is_abstained,
    )
