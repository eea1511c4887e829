"""What is left of an event in a store that must not keep content: numbers, names and how it ended, no text."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from reasond_server.types import (
    BoundedContextStep,
    CustomMetrics,
    CustomStep,
    ExecutionFailure,
    Iteration,
    ReactStep,
    Result,
    Sample,
    SelfConsistencyMetrics,
    Thought,
    TreeStep,
)

if TYPE_CHECKING:
    from reasond_server.types import Event, StepDetail, StrategyMetrics

NOT_RECORDED: Final = "The server keeps no content ([store] record_content): the texts of this execution are gone."


def redacted(event: Event) -> Event:
    """Return `event` without anything that the caller, the model or a tool wrote."""
    if isinstance(event, Iteration):
        return replace(event, detail=_detail(event.detail))
    if not isinstance(event, Result):
        return event
    error = event.error and ExecutionFailure(reason=event.error.reason, message="The message was not kept.")
    metrics = replace(event.metrics, strategy_specific=_metrics(event.metrics.strategy_specific))
    return replace(event, answer="", metrics=metrics, warnings=(NOT_RECORDED,), error=error)


def _detail(detail: StepDetail) -> StepDetail:
    if isinstance(detail, Thought):
        return Thought(text="")
    if isinstance(detail, BoundedContextStep):
        return replace(detail, text="", carryover="")
    if isinstance(detail, ReactStep):
        actions = [replace(action, arguments_json="{}") for action in detail.actions]
        observations = [replace(observation, result_json="{}") for observation in detail.observations]
        return ReactStep(thought="", actions=actions, observations=observations)
    if isinstance(detail, TreeStep):
        return replace(detail, thought="", answer="")
    if isinstance(detail, Sample):
        return replace(detail, text="", answer="", normalized_answer="")
    return CustomStep(data={})


def _metrics(metrics: StrategyMetrics | None) -> StrategyMetrics | None:
    if isinstance(metrics, SelfConsistencyMetrics):
        return replace(metrics, votes=[replace(vote, answer="") for vote in metrics.votes])
    return CustomMetrics(data={}) if isinstance(metrics, CustomMetrics) else metrics
