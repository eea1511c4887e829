"""Where a run stands: in a trace, by its spans, and in the logs, by its ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.runs.tracing import RunTrace
from reasond_server.telemetry.propagation import TraceContext
from reasond_server.telemetry.scope import Scope, current, enter
from reasond_server.telemetry.spans import INVOKE_AGENT, INVOKE_WORKFLOW

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.runs.run import Run
    from reasond_server.telemetry.spans import Attributes, Tracing


def link_to(run: Run | None) -> None:
    """Let the span of the RPC at work point at `run`, which another one began."""
    scope = current()
    if run is not None and run.trace is not None and scope is not None and scope.span is not None:
        scope.span.open().link(run.trace.context)


def enter_run(run: Run, tracing: Tracing | None) -> None:
    """Let what happens from here on in this task, and its log lines, belong to `run`, and begin its spans, if any."""
    starter = current()
    scope = Scope(
        call_id="" if starter is None else starter.call_id,
        execution_id=run.identity.execution_id,
        trace=TraceContext.of_text(run.assignment.trace),
    )
    run.scope = scope
    enter(scope)
    if tracing is None:
        return
    name, attributes = _named(run)
    span = tracing.run(name, attributes, parent=scope.trace, links=_links(run.links))
    run.trace = trace = RunTrace(span=span, tracing=tracing)
    scope.span, scope.trace = trace, trace.context


def reenter_run(run: Run) -> None:
    """Let what another task does about `run` belong to it as well."""
    if run.scope is not None:
        enter(run.scope)


def leave_run(run: Run) -> None:
    """End what is open of `run` in its trace."""
    if run.trace is not None:
        run.trace.end(_result(run), reason="" if run.error is None else run.error.reason)


def _named(run: Run) -> tuple[str, Attributes]:
    """Return the name of the run's span and what is known when it begins."""
    execution, agent = run.identity, run.assignment.task.agent
    operation, what = (INVOKE_AGENT, agent) if agent else (INVOKE_WORKFLOW, execution.strategy)
    attributes: Attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.workflow.name": execution.strategy,
        "gen_ai.conversation.id": execution.execution_id,
        "gen_ai.request.model": execution.model,
        "openinference.span.kind": "AGENT",
    }
    if agent:
        attributes["gen_ai.agent.name"] = agent
    if run.is_takeover:
        attributes["reasond.execution.is_takeover"] = True
    return f"{operation} {what}", attributes


def _links(texts: Sequence[str]) -> Sequence[TraceContext]:
    return [context for context in map(TraceContext.of_text, texts) if context is not None]


def _result(run: Run) -> Attributes:
    execution, usage = run.execution, run.usage
    attributes: Attributes = {
        "reasond.steps": run.step_count,
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "reasond.usage.source": usage.source.value,
    }
    if execution.finish_reason is not None:
        attributes["reasond.finish_reason"] = execution.finish_reason.value
    elif run.stop_reason is not None:
        attributes["reasond.stop_reason"] = run.stop_reason.value
    if run.journal is not None and run.journal.recalled:
        attributes["reasond.replayed_calls"] = run.journal.recalled
    return attributes
