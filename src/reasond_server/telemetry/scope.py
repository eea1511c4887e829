"""The current RPC or run: the ids for its log lines, and the parent span of its calls."""

from __future__ import annotations

import hashlib
import re
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from reasond_server.telemetry.propagation import TraceContext
    from reasond_server.telemetry.spans import Attributes, OpenSpan, SpanScope, Tracing
    from reasond_server.types import Usage

# The most calls of a JSON-RPC batch; more ids would make a line too long.
_MAX_EXECUTIONS: Final = 20
_TRACE_ID: Final = re.compile(r"(?!0{32})[0-9a-f]{32}")


class Scope:
    """One RPC or one run; log lines within it have its ids, except empty ones.

    `call_id` is the transport's id of the RPC, not the `request_id` of a task. `trace` is the context of the own span,
    or that of the caller without tracing. `span` is the parent of the spans of calls. `arrival` is set if requests are
    traced. Strategy, tokens and finish reason are those of a unary call's run. `retries` counts the attempts of model
    calls that were repeated. `wire` names the transport of an RPC whose caller is known.

    Without a trace, lines still have a trace id: the call id, or one derived from it, so that a call and its run share
    it. For a run that another process resumes, the trace id is derived from the execution id.
    """

    def __init__(
        self,
        call_id: str = "",
        trace: TraceContext | None = None,
        *,
        execution_id: str = "",
        span: SpanScope | None = None,
    ) -> None:
        self.call_id = call_id
        self._trace_id = ""
        self.execution_id = execution_id
        self.trace = trace
        self.span = span
        self.arrival: Arrival | None = None
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.retries = 0
        self.finish_reason = ""
        self.strategy = ""
        self.wire = ""

    def add_to(self, line: MutableMapping[str, Any]) -> None:
        """Add the ids that `line` does not have."""
        if self.trace is not None:
            line.setdefault("trace_id", self.trace.trace_id)
            line.setdefault("span_id", self.trace.span_id)
        elif "trace_id" not in line and (own := self._trace_id or self._own_trace_id()):
            line["trace_id"] = own
        if self.call_id and "call_id" not in line:
            line["call_id"] = self.call_id
        if self.execution_id and "execution_id" not in line:
            line["execution_id"] = self.execution_id
        if self.input_tokens is not None:
            line.setdefault("input_tokens", self.input_tokens)
            line.setdefault("output_tokens", self.output_tokens)
            line.setdefault("finish_reason", self.finish_reason)
            line.setdefault("strategy", self.strategy)

    def _own_trace_id(self) -> str:
        """Return the trace id of lines without a trace; the one of a call does not change and is kept."""
        name = self.call_id or self.execution_id
        own = name if not name or _TRACE_ID.fullmatch(name) else _make_trace_id(name)
        if self.call_id:
            self._trace_id = own
        return own


class Arrival:
    """A request of `scope` whose span begins only when the caller is known; `finish` returns the span.

    If the caller's token was accepted, the span continues the caller's trace, and the caller's flag may decide whether
    the trace is kept. Any other caller gets a new trace with a link to the one in the headers, because a stranger must
    neither fill the traces nor write into those of others.
    """

    def __init__(self, *, tracing: Tracing, scope: Scope, name: str, attributes: Attributes) -> None:
        self._tracing = tracing
        self._scope = scope
        self._name = name
        self._attributes = attributes
        self._began_ns = tracing.now_ns()
        self._span: OpenSpan | None = None
        scope.arrival = self

    def admit(self) -> None:
        """Begin the span in the caller's trace with the arrival time of the request; later calls do nothing."""
        if self._span is None:
            self._begin(is_known=True)

    def finish(self) -> OpenSpan:
        """Return the span, which the caller must end; without `admit` it is in a new trace of the server."""
        return self._span or self._begin(is_known=False)

    def _begin(self, *, is_known: bool) -> OpenSpan:
        named = self._scope.trace
        self._span = span = self._tracing.serve(
            self._name,
            self._attributes,
            caller=named if is_known else None,
            links=() if is_known or named is None else (named,),
            began_ns=self._began_ns,
        )
        self._scope.span, self._scope.trace = span, span.context
        return span


def _make_trace_id(name: str) -> str:
    """Return a trace id derived from `name`; equal names give equal ids."""
    return hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=16).hexdigest()


_current: Final[ContextVar[Scope | None]] = ContextVar("reasond_scope", default=None)


def current() -> Scope | None:
    """Return the current RPC or run; None outside of both."""
    return _current.get()


def enter(scope: Scope) -> None:
    """Make `scope` the current one for the rest of the task and for tasks that it starts."""
    _current.set(scope)


def note_caller(wire: str = "") -> None:
    """Record that the caller of the current request, which came by `wire`, is known and permitted."""
    scope = _current.get()
    if scope is None:
        return
    scope.wire = wire
    if scope.arrival is not None:
        scope.arrival.admit()


def note_execution(execution_id: str) -> None:
    """Record that the current RPC began or named an execution."""
    scope = _current.get()
    if scope is None or execution_id in scope.execution_id:
        return
    if not scope.execution_id:
        scope.execution_id = execution_id
    elif scope.execution_id.count(",") + 1 < _MAX_EXECUTIONS:
        scope.execution_id = f"{scope.execution_id},{execution_id}"


def note_result(usage: Usage, finish_reason: str, *, strategy: str) -> None:
    """Add the tokens of a unary call's run, and set its finish reason and strategy; the last of several runs wins."""
    scope = _current.get()
    if scope is not None:
        scope.input_tokens = (scope.input_tokens or 0) + usage.input_tokens
        scope.output_tokens = (scope.output_tokens or 0) + usage.output_tokens
        scope.finish_reason = finish_reason
        scope.strategy = strategy


def note_retry() -> None:
    """Record that an attempt of a model call is repeated."""
    scope = _current.get()
    if scope is not None:
        scope.retries += 1


def get_current_wire() -> str:
    """Return the transport of the current RPC, as metrics name it; empty if there is none."""
    scope = _current.get()
    return "" if scope is None else scope.wire


def get_current_trace() -> TraceContext | None:
    """Return the trace context of the current RPC or run, if any."""
    scope = _current.get()
    return None if scope is None else scope.trace
