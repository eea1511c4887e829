"""The metrics of one strategy as JSON: the keys of seeds 000 and 001 together, then our own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reasond_server.types import (
    BoundedContextMetrics,
    ChainOfThoughtMetrics,
    CustomMetrics,
    ReactMetrics,
    SelfConsistencyMetrics,
    TreeOfThoughtMetrics,
)
from reasond_server.wire.json_times import milliseconds

if TYPE_CHECKING:
    from reasond_server.types import Savings, StrategyMetrics, WindowMetrics

JsonObject = dict[str, Any]


def strategy_specific(metrics: StrategyMetrics | None) -> JsonObject:  # noqa: PLR0911 - a case for each kind, which mypy keeps complete
    """Return the metrics of one strategy; empty where the run ended before its first step."""
    match metrics:
        case None:
            return {}
        case ChainOfThoughtMetrics():
            return {
                "temperature": metrics.temperature,
                "max_tokens": metrics.max_tokens,
                "finish_reason": metrics.finish_reason,
                "model": metrics.model,
            }
        case BoundedContextMetrics():
            return _bounded_context(metrics)
        case ReactMetrics():
            return _react(metrics)
        case TreeOfThoughtMetrics():
            return _tree_of_thought(metrics)
        case SelfConsistencyMetrics():
            return _self_consistency(metrics)
        case CustomMetrics():
            return dict(metrics.data)


def _bounded_context(metrics: BoundedContextMetrics) -> JsonObject:
    return {
        "total_iterations": metrics.total_iterations,
        "compute_savings_pct": metrics.compute_savings_pct,
        "iterations": [_window(window) for window in metrics.iterations],
        "carryover_compressions": metrics.carryover_compressions,
        "carryover_calls": metrics.carryover_calls,
        "reading_iterations": metrics.reading_iterations,
        "savings": _savings(metrics.savings),
        "reprompt_savings": _savings(metrics.reprompt_savings),
        "capacity_tokens": metrics.capacity_tokens,
        "effective_capacity_tokens": metrics.effective_capacity_tokens,
        "is_window_exact": metrics.is_window_exact,
        "peak_window_tokens": metrics.peak_window_tokens,
    }


def _window(window: WindowMetrics) -> JsonObject:
    return {
        "iteration": window.iteration,
        "tokens": window.tokens,
        "has_answer": window.has_answer,
        "carryover_generated": window.carryover_generated,
        "execution_time_ms": milliseconds(window.execution_time_s),
        "is_reading": window.is_reading,
        "is_only_hidden_reasoning": window.is_only_hidden_reasoning,
    }


def _savings(savings: Savings | None) -> JsonObject | None:
    """Return compute saved, in per cent, signed; None where there is nothing to compare."""
    if savings is None:
        return None
    return {
        "baseline": savings.baseline.value,
        "attention_pct": savings.attention_pct,
        "kv_read_pct": savings.kv_read_pct,
        "tokens_pct": savings.tokens_pct,
        "peak_context_pct": savings.peak_context_pct,
    }


def _react(metrics: ReactMetrics) -> JsonObject:
    return {
        "total_iterations": metrics.total_iterations,
        "answer_found_at_iteration": metrics.answer_found_at_iteration,
        "temperature": metrics.temperature,
        "max_iterations": metrics.max_iterations,
        "tool_calls": metrics.tool_calls,
        "failed_tool_calls": metrics.failed_tool_calls,
        "corrections": metrics.corrections,
        "masked_observations": metrics.masked_observations,
    }


def _tree_of_thought(metrics: TreeOfThoughtMetrics) -> JsonObject:
    return {
        "nodes_expanded": metrics.nodes_expanded,
        "nodes_evaluated": metrics.nodes_evaluated,
        "nodes_pruned": metrics.nodes_pruned,
        "nodes_duplicate": metrics.nodes_duplicate,
        "depth_reached": metrics.depth_reached,
        "best_score": metrics.best_score,
    }


def _self_consistency(metrics: SelfConsistencyMetrics) -> JsonObject:
    return {
        "samples": metrics.samples,
        "votes": [{"answer": one.answer, "votes": one.votes} for one in metrics.votes],
        "margin": metrics.margin,
        "is_stopped_early": metrics.is_stopped_early,
        "is_abstained": metrics.is_abstained,
    }
