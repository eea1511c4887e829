"""Where a run stands: in a trace, by the spans of it and of its step in progress, and in the logs, by its ids."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from reasond_server.runs.phase import LEAVES, STOP_REASONS, Trigger
from reasond_server.runs.work import RunEnding
from reasond_server.telemetry.propagation import TraceContext
from reasond_server.telemetry.scope import Scope, current, enter
from reasond_server.telemetry.spans import INVOKE_AGENT, INVOKE_WORKFLOW, STEP_SPAN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.runs.run import Run
    from reasond_server.telemetry.observers import RunObserver
    from reasond_server.telemetry.spans import Attributes, OpenSpan, Tracing

_log = logging.getLogger("reasond.executions")
_REPORTED = frozenset({Trigger.FINISH, Trigger.FAIL, Trigger.REFUSE})


class RunTrace:
    """What is open of a run in its trace: the spans of calls are children of its step in progress.

    A step that is only replayed has no span, because it had one in the process that made it. `links` are places in the
    traces of the executions whose place the run takes; `is_takeover` tells that another process began it.

    Attributes:
        tracing: where the spans go; None where nothing is traced, or before `begin`.
    """

    __slots__ = ("_is_takeover", "_links", "_scope", "_since_ns", "_span", "_step", "tracing")

    def __init__(self, *, links: Sequence[str] = (), is_takeover: bool = False) -> None:
        self._links = links
        self._is_takeover = is_takeover
        self._scope: Scope | None = None
        self._span: OpenSpan | None = None
        self._step: OpenSpan | None = None
        self._since_ns = 0
        self.tracing: Tracing | None = None

    def begin(self, run: Run, tracing: Tracing | None) -> None:
        """Let what happens from here on in this task, and its log lines, belong to `run`, and begin its spans."""
        starter = current()
        self._scope = scope = Scope(
            request_id="" if starter is None else starter.request_id,
            execution_id=run.identity.execution_id,
            trace=TraceContext.of_text(run.work.request.trace),
        )
        enter(scope)
        if tracing is None:
            return
        name, attributes = self._describe(run)
        links = [context for context in map(TraceContext.of_text, self._links) if context is not None]
        self.tracing = tracing
        self._span = span = tracing.run(name, attributes, parent=scope.trace, links=links)
        self._since_ns = tracing.now_ns()
        scope.span, scope.trace = self, span.context

    def enter_again(self) -> None:
        """Let what another task does about the run belong to it as well."""
        if self._scope is not None:
            enter(self._scope)

    def link_rpc(self) -> None:
        """Let the span of the RPC at work point at this run, which another one began."""
        scope = current()
        if self._span is not None and scope is not None and scope.span is not None:
            scope.span.open().link(self._span.context)

    def open(self) -> OpenSpan:
        """Return the span of the step in progress, which began where the one before ended; only while it is traced."""
        if self._step is None:
            assert self.tracing is not None  # noqa: S101 - nobody has the scope of a run that is not traced
            assert self._span is not None  # noqa: S101 - likewise
            attributes = {"openinference.span.kind": "CHAIN"}
            self._step = self.tracing.part(STEP_SPAN, attributes, parent=self._span, began_ns=self._since_ns)
        return self._step

    def end_step(self, attributes: Attributes | None = None) -> None:
        """End the step in progress with what came of it; without `attributes` only if anything was called in it."""
        if self.tracing is None:
            return
        if attributes is not None:
            self.open().set(attributes)
        step, self._step = self._step, None
        if step is not None:
            step.end()
        self._since_ns = self.tracing.now_ns()

    def end(self, run: Run) -> None:
        """End everything that is open, with what came of the run."""
        span = self._span
        if span is None:
            return
        self.end_step()
        span.set(_result_of(run))
        if run.error is not None:
            span.fail(run.error.reason)
        span.end()

    def _describe(self, run: Run) -> tuple[str, Attributes]:
        """Return the name of the run's span and what is known when it begins."""
        execution, agent = run.identity, run.work.agent
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
        if self._is_takeover:
            attributes["reasond.execution.is_takeover"] = True
        return f"{operation} {what}", attributes


def link_to(run: Run | None) -> None:
    """Let the span of the RPC at work point at `run`, if there is one."""
    if run is not None:
        run.trace.link_rpc()


def report_left(run: Run, observer: RunObserver) -> None:
    """Report the end as callers saw it: a store that took nothing does not know how a run ended."""
    ending = run.ending if run.result is not None and isinstance(run.ending, RunEnding) else None
    if ending is None and run.cause is not None and run.cause in STOP_REASONS:
        observer.run_handed(STOP_REASONS[run.cause])
    observer.run_left(
        run.identity.strategy,
        "" if ending is None else ending.finish_reason.value,
        steps=run.work.new_step_count,
        duration_s=0.0 if ending is None else run.accounts.elapsed_s,
        metrics=run.work.metrics,
    )


def log_end(run: Run) -> None:
    """Log how a run ended; only for debugging where the access log says it, in the line of the one call it was for."""
    if run.cause is not None and run.cause in LEAVES:
        left = {"execution_id": run.identity.execution_id, "stop_reason": STOP_REASONS[run.cause]}
        _log.info("execution left to another process", extra=left)
        return
    is_logged = run.work.request.can_be_resumed or run.cause not in _REPORTED or run.error is not None
    if not _log.isEnabledFor(level := logging.INFO if is_logged else logging.DEBUG):
        return
    execution = run.log.execution
    facts = {
        "execution_id": execution.execution_id,
        "strategy": execution.strategy,
        "finish_reason": str(execution.finish_reason or ""),
        "reason": "" if run.error is None else run.error.reason,
        "total_tokens": execution.usage.total_tokens,
        "model_calls": execution.usage.model_calls,
        "steps": run.work.step_count,
    }
    _log.log(level, "execution ended", extra=facts)


def _result_of(run: Run) -> Attributes:
    execution, usage = run.log.execution, run.accounts.usage
    attributes: Attributes = {
        "reasond.steps": run.work.step_count,
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "reasond.usage.source": usage.source.value,
    }
    if execution.finish_reason is not None:
        attributes["reasond.finish_reason"] = execution.finish_reason.value
    elif run.cause is not None and run.cause in STOP_REASONS:
        attributes["reasond.stop_reason"] = STOP_REASONS[run.cause]
    if run.journal is not None and run.journal.recalled:
        attributes["reasond.replayed_calls"] = run.journal.recalled
    return attributes
