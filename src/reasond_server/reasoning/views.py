"""What the front door tells of executions and strategies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from reasond_server.types import Iteration, Metrics, Result
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.types import CostClass, Execution, Json, LoggedEvent


@value
class ExecutionView:
    """An execution with its result and steps; both are partial until it has ended well."""

    execution: Execution
    result: Result
    steps: Sequence[Iteration]


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyInfo:
    """What clients are told of a strategy; `config_schema` is JSON Schema, draft 2020-12.

    `ceilings` holds the operator's by parameter. `cost_class` is None where the strategy does not say how its
    model calls grow, and `cost_formula` is then empty.
    """

    name: str
    description: str
    config_schema: Json
    default_config: Json
    capabilities: Sequence[str]
    is_default: bool
    ceilings: Json = field(default_factory=dict)
    cost_class: CostClass | None = None
    cost_formula: str = ""


def view_of(execution: Execution, events: Sequence[LoggedEvent], *, result: Result | None = None) -> ExecutionView:
    """Return the execution with what its log holds; what was appended since it was read is left out.

    A `result` that its caller was told stands even where the log took nothing more.
    """
    if events and events[-1].sequence > execution.last_sequence:
        events = [logged for logged in events if logged.sequence <= execution.last_sequence]
    steps = [logged.event for logged in events if isinstance(logged.event, Iteration)]
    if result is None:
        last = events[-1].event if events else None
        result = last if isinstance(last, Result) else _partial(execution)
    return ExecutionView(execution=execution, result=result, steps=steps)


def _partial(execution: Execution) -> Result:
    """Return the result of an execution that has not ended: no answer, what was spent."""
    return Result(
        execution_id=execution.execution_id,
        answer="",
        strategy_used=execution.strategy,
        strategy_source=execution.strategy_source,
        finish_reason=None,
        metrics=Metrics(usage=execution.usage, execution_time_s=0.0),
        warnings=("The execution is still running.",),
        model=execution.model,
    )
