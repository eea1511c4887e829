"""The form in which callers see executions and strategies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING

from reasond_server.reasoning.strategy_work import read_planned_task
from reasond_server.types import CostClass, Execution, Iteration, Json, LoggedEvent, Metrics, Principal, Result, Task
from reasond_server.types.values import value

if TYPE_CHECKING:
    from reasond_server.executions.desk import ExecutionDesk


@value
class ExecutionView:
    """An execution with its result and steps; both are partial unless it has ended successfully.

    `task` is what was asked for; None where it was not read, or is not kept. `events` is the log as far as it was read.
    """

    execution: Execution
    result: Result
    steps: Sequence[Iteration]
    task: Task | None = None
    events: Sequence[LoggedEvent] = ()


@value
class StrategyInfo:
    """A strategy as clients see it; `config_schema` is JSON Schema, draft 2020-12.

    `ceilings` holds the operator's ceilings by parameter. If the strategy does not declare how its model calls grow,
    `cost_class` is None and `cost_formula` is empty.
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


async def read_view(
    desk: ExecutionDesk, caller: Principal, execution_id: str, *, with_task: bool = False
) -> ExecutionView:
    """Return an execution of reasoning with its result so far. Raises as `ExecutionDesk.read`.

    With `with_task` it has the task, unless the store keeps no content.
    """
    log = await desk.read(caller, execution_id, with_plan=with_task)
    view = build_view(log.execution, log.events)
    return replace(view, task=read_planned_task(log.plan)) if with_task else view


def build_view(execution: Execution, events: Sequence[LoggedEvent], *, result: Result | None = None) -> ExecutionView:
    """Return the execution with the content of its log; events that were appended after it was read are left out.

    A `result` that the caller already got is used even if the log did not accept it.
    """
    if events and events[-1].sequence > execution.last_sequence:
        events = [logged for logged in events if logged.sequence <= execution.last_sequence]
    steps = [logged.event for logged in events if isinstance(logged.event, Iteration)]
    if result is None:
        last = events[-1].event if events else None
        result = last if isinstance(last, Result) else _build_partial(execution)
    return ExecutionView(execution=execution, result=result, steps=steps, events=events)


def _build_partial(execution: Execution) -> Result:
    """Return the partial result of an execution that has not ended: its usage, without an answer."""
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
