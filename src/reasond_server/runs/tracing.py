"""What is open of a traced run: its step in progress, its tools. Spans of model calls come from `llm.tracing`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.telemetry.propagation import OutgoingTrace
from reasond_server.telemetry.redaction import shorten
from reasond_server.telemetry.spans import EXECUTE_TOOL, STEP_SPAN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import ToolSpec
    from reasond_server.telemetry.propagation import TraceContext
    from reasond_server.telemetry.spans import Attributes, OpenSpan, Tracing
    from reasond_server.tools.toolbox import Toolbox
    from reasond_server.types import Iteration, ToolCall, ToolResult


class RunTrace:
    """What is open of a run: the spans of calls are children of its step in progress.

    A step that is only replayed has no span, because it had one in the process that made it.
    """

    def __init__(self, *, span: OpenSpan, tracing: Tracing) -> None:
        self._tracing = tracing
        self._span = span
        self._step: OpenSpan | None = None
        self._since_ns = tracing.now_ns()

    @property
    def context(self) -> TraceContext:
        """Where the run stands."""
        return self._span.context

    def open(self) -> OpenSpan:
        """Return the span of the step in progress, which began where the one before ended."""
        if self._step is None:
            attributes = {"openinference.span.kind": "CHAIN"}
            self._step = self._tracing.part(STEP_SPAN, attributes, parent=self._span, began_ns=self._since_ns)
        return self._step

    def step_made(self, iteration: Iteration) -> None:
        """End the step in progress."""
        self.open().set(
            {
                "reasond.step.index": iteration.index,
                "reasond.step.answer_found": iteration.answer_found,
                "gen_ai.usage.input_tokens": iteration.usage.input_tokens,
                "gen_ai.usage.output_tokens": iteration.usage.output_tokens,
            }
        )
        self.step_left()

    def step_left(self) -> None:
        """End the step in progress, if anything was called in it."""
        step, self._step = self._step, None
        if step is not None:
            step.end()
        self._since_ns = self._tracing.now_ns()

    def end(self, attributes: Attributes, *, reason: str = "") -> None:
        """End everything with what came of it; `reason` is that of a failure."""
        self.step_left()
        self._span.set(attributes)
        if reason:
            self._span.fail(reason)
        self._span.end()

    def tools(self, toolbox: Toolbox) -> Toolbox:
        """Return `toolbox` with a span for every call."""
        return TracedToolbox(toolbox=toolbox, trace=self, tracing=self._tracing) if toolbox.specs else toolbox


class TracedToolbox:
    """The tools of a run, with a span for each call that is really made."""

    def __init__(self, *, toolbox: Toolbox, trace: RunTrace, tracing: Tracing) -> None:
        self._toolbox = toolbox
        self._trace = trace
        self._tracing = tracing
        self._names = frozenset(spec.name for spec in toolbox.specs)

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """The tools that may be called."""
        return self._toolbox.specs

    def is_idempotent(self, name: str) -> bool:
        """Return what the tool says."""
        return self._toolbox.is_idempotent(name)

    def restore(self, call: ToolCall, result: ToolResult) -> None:
        """Take a call that was made in an earlier life of the run."""
        self._toolbox.restore(call, result)

    async def call(self, call: ToolCall) -> ToolResult:
        """Execute `call` within a span. Raises as the tools do."""
        tracing = self._tracing
        # A name that the model invented is content, and there is no end of them.
        name = call.name if call.name in self._names else "unknown"
        span = tracing.part(f"{EXECUTE_TOOL} {name}", self._attributes(call, name), parent=self._trace.open())
        try:
            with OutgoingTrace(span.context if tracing.tells_tools else None):
                result = await self._toolbox.call(call)
            if result.is_error:
                span.fail("tool_error")
            if tracing.has_content:
                span.set({"gen_ai.tool.call.result": shorten(result.result_json)})
        except Exception as error:
            span.fail(getattr(error, "reason", "INTERNAL"))
            raise
        else:
            return result
        finally:
            span.end()

    def _attributes(self, call: ToolCall, name: str) -> Attributes:
        attributes: Attributes = {
            "gen_ai.operation.name": EXECUTE_TOOL,
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": call.call_id[:128],
            "openinference.span.kind": "TOOL",
        }
        if self._tracing.has_content:
            attributes["gen_ai.tool.call.arguments"] = shorten(call.arguments_json)
        return attributes
