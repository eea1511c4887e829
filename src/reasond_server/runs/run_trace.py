"""The trace of a run: the spans of the run and of its step in progress, and its ids in the log lines."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from reasond_server.errors.base import ReasondError
from reasond_server.telemetry.propagation import TraceContext
from reasond_server.telemetry.scope import Scope, current, enter
from reasond_server.telemetry.spans import INVOKE_AGENT, INVOKE_WORKFLOW, STEP_SPAN, Attributes, OpenSpan, Tracing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reasond_server.types import Execution


class RunTrace:
    """The open spans of a run; the spans of calls are children of the span of the step in progress.

    A replayed step has no span, because it had one in the process that made it. `links` are the trace contexts of the
    executions that the run replaces, or of the leg before: the life of the execution that suspended it. `is_takeover`
    says that another process began the run, `is_woken` that it was suspended until now.

    Attributes:
        tracing: where the spans go; None before `begin` or if nothing is traced.
    """

    def __init__(self, *, links: Sequence[str] = (), is_takeover: bool = False, is_woken: bool = False) -> None:
        self._links = links
        self._is_takeover = is_takeover
        self._is_woken = is_woken
        self._scope: Scope | None = None
        self._span: OpenSpan | None = None
        self._step: OpenSpan | None = None
        self._since_ns = 0
        self.tracing: Tracing | None = None

    @property
    def text(self) -> str:
        """The trace context of the run's span as text; empty if nothing is traced."""
        return "" if self._span is None else self._span.context.text

    def begin(self, execution: Execution, tracing: Tracing | None, *, caller: str, agent: str) -> None:
        """Begin the spans of the run; from now on the spans and log lines of this task belong to the run.

        `caller` is the caller's trace context, `agent` the agent that does the work; both may be empty.
        """
        starter = current()
        # A suspended execution is woken by a later call than the one that began it.
        own = None if starter is None or not self._is_woken else starter.trace
        self._scope = scope = Scope(
            call_id="" if starter is None else starter.call_id,
            execution_id=execution.execution_id,
            trace=own or TraceContext.of_text(caller),
        )
        enter(scope)
        if tracing is None:
            return
        name, attributes = self._describe(execution, agent)
        links = [context for context in map(TraceContext.of_text, self._links) if context is not None]
        self.tracing = tracing
        self._span = span = tracing.run(name, attributes, parent=scope.trace, links=links)
        self._since_ns = tracing.now_ns()
        scope.span, scope.trace = self, span.context

    def enter_again(self) -> None:
        """Let the spans and log lines of another task belong to the run as well."""
        if self._scope is not None:
            enter(self._scope)

    def link_rpc(self) -> None:
        """Link the span of the current RPC to this run, which another RPC began."""
        scope = current()
        if self._span is not None and scope is not None and scope.span is not None:
            scope.span.open().link(self._span.context)

    def open(self) -> OpenSpan:
        """Return the span of the step in progress, which began when the last one ended; call it only if traced."""
        if self._step is None:
            assert self.tracing is not None  # noqa: S101 - only traced runs have this scope
            assert self._span is not None  # noqa: S101 - as above
            attributes = {"openinference.span.kind": "CHAIN"}
            self._step = self.tracing.part(STEP_SPAN, attributes, parent=self._span, began_ns=self._since_ns)
        return self._step

    def note(self, attributes: Attributes) -> None:
        """Add attributes to the span of the run, if it is traced."""
        if self._span is not None:
            self._span.set(attributes)

    def note_step(self, attributes: Attributes) -> None:
        """Add attributes to the span of the step in progress, if it is traced."""
        if self.tracing is not None:
            self.open().set(attributes)

    def end_step(self, attributes: Attributes | None = None) -> None:
        """End the span of the step in progress with `attributes`; without them only if a call was made in the step."""
        if self.tracing is None:
            return
        if attributes is not None:
            self.open().set(attributes)
        step, self._step = self._step, None
        if step is not None:
            step.end()
        self._since_ns = self.tracing.now_ns()

    @contextmanager
    def part(self, name: str, attributes: Attributes, *, timed_as: str) -> Iterator[Scope | None]:
        """Open the span of a part of the step in progress; yield its scope, None if nothing is traced.

        When the block ends, the span gets its milliseconds as the attribute `timed_as`.

        The spans of calls that this task makes within the block are its children, and those of tasks that begin there.
        A generator must not yield within the block, because the scope belongs to the task.
        """
        if self.tracing is None or self._scope is None:
            yield None
            return
        before, run, began_ns = current(), self._scope, self.tracing.now_ns()
        span = self.tracing.part(name, {"openinference.span.kind": "CHAIN", **attributes}, parent=self.open())
        part = Scope(call_id=run.call_id, execution_id=run.execution_id, trace=span.context, span=span)
        enter(part)
        try:
            yield part
        except ReasondError as error:
            span.fail(error.reason)
            raise
        finally:
            enter(before or run)
            span.set({timed_as: round((self.tracing.now_ns() - began_ns) / 1e6)})
            span.end()

    def end(self, attributes: Attributes, *, reason: str) -> None:
        """End all open spans with the `attributes` of the run; `reason` is the error reason of a failure, or empty."""
        span = self._span
        if span is None:
            return
        self.end_step()
        span.set(attributes)
        if reason:
            span.fail(reason)
        span.end()

    def _describe(self, execution: Execution, agent: str) -> tuple[str, Attributes]:
        """Return the name of the run's span and its first attributes."""
        operation, what = (INVOKE_AGENT, agent) if agent else (INVOKE_WORKFLOW, execution.strategy)
        attributes: Attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.workflow.name": execution.strategy,
            "gen_ai.conversation.id": execution.session_id or execution.execution_id,
            "gen_ai.request.model": execution.model,
            "openinference.span.kind": "AGENT",
        }
        if agent:
            attributes["gen_ai.agent.name"] = agent
        if execution.session_id:
            attributes["reasond.execution.id"] = execution.execution_id
        if self._is_takeover:
            attributes["reasond.execution.is_takeover"] = True
        return f"{operation} {what}", attributes
