"""Spans by OpenTelemetry's conventions; OpenTelemetry is imported only if tracing is on.

Source: open-telemetry/semantic-conventions-genai ("chat", "execute_tool", "invoke_agent", "invoke_workflow") and the
RPC and HTTP conventions; all except HTTP are still in development. The names are written out here, because the
published GenAI constants are marked as deprecated.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from reasond_server.telemetry.observers import TRANSPORTS
from reasond_server.telemetry.propagation import TraceContext

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, Tracer


Attributes = dict[str, Any]
"""The attributes of a span: text, numbers, booleans, and sequences of them."""

STEP_SPAN: Final = "step"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"
RUN_PROGRAM: Final = "run_program"
INVOKE_AGENT: Final = "invoke_agent"
INVOKE_WORKFLOW: Final = "invoke_workflow"
GENERATE_CANDIDATES: Final = "reasoning.generateCandidates"
SCORE_CANDIDATES: Final = "reasoning.scoreCandidates"
PATCH_VALIDATION: Final = "reasoning.patchValidation"
REPAIR_SPANS: Final = (GENERATE_CANDIDATES, SCORE_CANDIDATES, PATCH_VALIDATION)
"""Names that seed 004 gives the spans of repairs, as it gives those of their attributes; no other span has them."""

ATTRIBUTES: Final[Mapping[str, str]] = {
    "averageCriticScore": "Mean score of the candidates, 0-100; absent where none was scored",
    "criticLatencyMs": "How long their checks took, in milliseconds",
    "error.type": "Why it failed: the reason of our error, or the code of the status",
    "gen_ai.agent.name": "The agent that the task named; `turn` for turns",
    "gen_ai.conversation.id": "The id of the session of a turn; without one, and for runs, the id of the execution",
    "gen_ai.input.messages": "What the model was sent; only with `content`",
    "gen_ai.operation.name": "`chat`, `execute_tool`, `invoke_agent` or `invoke_workflow`",
    "gen_ai.output.messages": "What the model wrote; only with `content`",
    "gen_ai.provider.name": "`openai` for every OpenAI-compatible server, `reasond.demo` for the embedded model",
    "gen_ai.request.max_tokens": "Most tokens that the call may write",
    "gen_ai.request.model": "The model that was asked for",
    "gen_ai.request.stop_sequences": "Texts that end the call",
    "gen_ai.request.stream": "Always true: every call is streamed",
    "gen_ai.request.temperature": "Temperature of the call",
    "gen_ai.response.finish_reasons": "Why the model stopped, in a list of one",
    "gen_ai.response.time_to_first_chunk": "Seconds until the first text came",
    "gen_ai.tool.call.arguments": "What the tool was given; only with `content`",
    "gen_ai.tool.call.id": "The id of the call",
    "gen_ai.tool.call.result": "What the tool returned; only with `content`",
    "gen_ai.tool.name": "The tool; `unknown` where the model invented one",
    "gen_ai.usage.cache_read.input_tokens": "Input tokens that the provider had in its cache",
    "gen_ai.usage.input_tokens": "Tokens of the prompt",
    "gen_ai.usage.output_tokens": "Tokens that the model wrote, hidden reasoning included",
    "gen_ai.usage.reasoning.output_tokens": "Tokens of hidden reasoning",
    "gen_ai.workflow.name": "The strategy",
    "generationLatencyMs": "How long the candidates took, in milliseconds",
    "http.request.method": "Method of the request; `_OTHER` for one that is not common",
    "http.response.status_code": "Status of the answer; 499 where the client had left",
    "http.route": "The path, where there is something at it",
    "modelID": "The model that was asked for candidates",
    "numCandidates": "Candidates that were asked for",
    "numCandidatesScored": "Candidates that the critics judged",
    "openinference.span.kind": "The same for tools that read OpenInference: AGENT, CHAIN, LLM, TOOL",
    "patchID": "The candidate of the patch",
    "reasond.call.warnings": "What a model call left out or found odd",
    "reasond.execution.id": "The execution that a call began or named, or the turn of a session; several in a batch",
    "reasond.execution.is_takeover": "True where the run goes on from what another process left",
    "reasond.finish_reason": "How the run ended",
    "reasond.handoff.calls": "Calls that a turn handed off to its client when it left",
    "reasond.replayed_calls": "Calls that were answered from the log instead of being made again",
    "reasond.request.id": "The id of the call, which is `call_id` in the logs",
    "reasond.step.answer_found": "Whether the step found the answer",
    "reasond.step.index": "The step's index, from 0; a stretch without a step of its own has none",
    "reasond.steps": "Steps of the run",
    "reasond.stop_reason": "Why the run left the process without an end: `handed_over`, `lost` or `fenced`",
    "reasond.turn.exit": "How a turn left: `done`, `client_tools` (handed off), `failed`, `cancelled` or `expired`",
    "reasond.turn.mode": "The mode of the conversation when the turn left",
    "reasond.usage.source": "`reported` by the provider, `estimated` or `partial`",
    "retryCount": "Attempts of their calls that were repeated",
    "rpc.method": "Full name of the method, `_OTHER` for one that does not exist; several in a batch of JSON-RPC",
    "rpc.response.status_code": "Name of the gRPC status code",
    "rpc.system.name": "The protocol: " + ", ".join(f"`{each}`" for each in TRANSPORTS),
    "tokensIn": "Input tokens of the candidates",
    "tokensOut": "Tokens that the model wrote for them, hidden reasoning included",
    "validationLatencyMs": "How long the patch and its held-out checks took, in milliseconds",
    "validationStatus": "`success` or `failure`",
}
"""Every attribute that a span may have, and its meaning."""


class SpanScope(Protocol):
    """The parent of the spans of calls."""

    def open(self) -> OpenSpan:
        """Return the span that is open now."""


class OpenSpan:
    """A span that has begun. If its trace is not sampled, its methods have no effect."""

    def __init__(self, span: Span, *, otel: Any) -> None:  # noqa: ANN401 - a module
        self._span = span
        self._otel = otel
        self.context = _read_context(span.get_span_context())
        self.is_recording = span.is_recording()

    def open(self) -> OpenSpan:
        """Return the span itself."""
        return self

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes."""
        if self.is_recording:
            self._span.set_attributes(attributes)

    def rename(self, name: str) -> None:
        """Change the name to `name`."""
        if self.is_recording:
            self._span.update_name(name)

    def fail(self, reason: str, *, is_fault: bool = True) -> None:
        """Record the reason of a failure; `is_fault` is False if only the caller made a mistake."""
        if self.is_recording:
            self._span.set_attribute("error.type", reason)
            if is_fault:
                self._span.set_status(self._otel.Status(self._otel.StatusCode.ERROR))

    def link(self, context: TraceContext) -> None:
        """Add a link to another span."""
        if self.is_recording:
            self._span.add_link(_build_remote(self._otel, context))

    def end(self) -> None:
        """End the span now; later calls have no effect."""
        self._span.end()


class Tracing:
    """Begins spans. `has_content` says whether they may hold texts of callers, models and tools.

    With `tells_models` the servers of models receive the trace context, with `tells_tools` the servers that tools call.
    """

    def __init__(
        self,
        *,
        tracer: Tracer,
        has_content: bool = False,
        tells_models: bool = False,
        tells_tools: bool = False,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        from opentelemetry import trace  # noqa: PLC0415 - only where something is traced
        from opentelemetry.context import Context  # noqa: PLC0415 - as above

        self._otel = trace
        # An empty context, so that no span comes from OpenTelemetry's own context, which libraries propagate.
        self._nowhere = Context()
        self._tracer = tracer
        self.has_content = has_content
        self.tells_models = tells_models
        self.tells_tools = tells_tools
        self.now_ns = now_ns

    def serve(
        self,
        name: str,
        attributes: Attributes,
        *,
        caller: TraceContext | None,
        links: Sequence[TraceContext] = (),
        began_ns: int | None = None,
    ) -> OpenSpan:
        """Begin the span of a request that `caller` made; None begins a trace."""
        kind = self._otel.SpanKind.SERVER
        return self._start(name, kind, attributes, self._set_remote_parent(caller), began_ns, links=links)

    def run(
        self, name: str, attributes: Attributes, *, parent: TraceContext | None, links: Sequence[TraceContext] = ()
    ) -> OpenSpan:
        """Begin the span of a run, which may be in another process than its parent."""
        return self._start(name, self._otel.SpanKind.INTERNAL, attributes, self._set_remote_parent(parent), links=links)

    def part(self, name: str, attributes: Attributes, *, parent: OpenSpan, began_ns: int | None = None) -> OpenSpan:
        """Begin an internal child span of `parent`."""
        return self._start_child(name, self._otel.SpanKind.INTERNAL, attributes, parent, began_ns)

    def call(
        self, name: str, attributes: Attributes, *, parent: SpanScope | None, trace: TraceContext | None = None
    ) -> OpenSpan:
        """Begin the span of a call to another program; without a `parent` it is a child of `trace`."""
        kind = self._otel.SpanKind.CLIENT
        if parent is None:
            return self._start(name, kind, attributes, self._set_remote_parent(trace))
        return self._start_child(name, kind, attributes, parent.open(), None)

    def _start_child(
        self,
        name: str,
        kind: Any,  # noqa: ANN401 - an enumeration of a package that may be missing
        attributes: Attributes,
        parent: OpenSpan,
        began_ns: int | None,
    ) -> OpenSpan:
        if not parent.is_recording:
            # No child of an unsampled span is sampled.
            return parent
        return self._start(name, kind, attributes, self._set_parent(parent), began_ns)

    def _start(
        self,
        name: str,
        kind: Any,  # noqa: ANN401 - as above
        attributes: Attributes,
        context: Context,
        began_ns: int | None = None,
        *,
        links: Sequence[TraceContext] = (),
    ) -> OpenSpan:
        linked = [self._otel.Link(_build_remote(self._otel, link)) for link in links]
        span = self._tracer.start_span(
            name, context=context, kind=kind, attributes=attributes, links=linked, start_time=began_ns
        )
        return OpenSpan(span, otel=self._otel)

    def _set_parent(self, parent: OpenSpan) -> Context:
        return self._otel.set_span_in_context(parent._span, self._nowhere)  # noqa: SLF001 - the two are one

    def _set_remote_parent(self, parent: TraceContext | None) -> Context:
        if parent is None:
            return self._nowhere
        return self._otel.set_span_in_context(
            self._otel.NonRecordingSpan(_build_remote(self._otel, parent)), self._nowhere
        )


def _build_remote(otel: Any, context: TraceContext) -> SpanContext:  # noqa: ANN401 - a module
    made: SpanContext = otel.SpanContext(
        trace_id=int(context.trace_id, 16),
        span_id=int(context.span_id, 16),
        is_remote=True,
        trace_flags=otel.TraceFlags(otel.TraceFlags.SAMPLED if context.is_sampled else otel.TraceFlags.DEFAULT),
        trace_state=otel.TraceState.from_header([context.state]) if context.state else None,
    )
    return made


def _read_context(span: SpanContext) -> TraceContext:
    return TraceContext(
        trace_id=f"{span.trace_id:032x}",
        span_id=f"{span.span_id:016x}",
        is_sampled=span.trace_flags.sampled,
        state=span.trace_state.to_header() if span.trace_state else "",
    )
