"""The tools of one run: each call is an effect, which is recorded before it begins and never made twice."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from reasond_server.errors.base import ReasondError, show
from reasond_server.errors.turns import ToolOutcomeUnknownError
from reasond_server.runs.recorded_calls import VERSION, compute_texts_digest, read_error, read_row, write_error_row
from reasond_server.telemetry.propagation import OutgoingTrace
from reasond_server.telemetry.scrubbing import shorten
from reasond_server.telemetry.spans import EXECUTE_TOOL
from reasond_server.types import ToolResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import ToolSpec
    from reasond_server.runs.effects import Effects, JournaledEffect
    from reasond_server.runs.run_trace import RunTrace
    from reasond_server.telemetry.spans import Attributes, Tracing
    from reasond_server.tools.toolbox import KeyedToolbox
    from reasond_server.types import ToolCall


class WrappedToolbox:
    """The tools of a run, of which a subclass calls each in its own way."""

    def __init__(self, *, toolbox: KeyedToolbox) -> None:
        self._toolbox = toolbox

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """The tools that may be called."""
        return self._toolbox.specs

    def is_idempotent(self, name: str) -> bool:
        """Return whether the tool is idempotent, as it declares."""
        return self._toolbox.is_idempotent(name)

    def restore(self, call: ToolCall, result: ToolResult) -> None:
        """Restore a call that was made in an earlier life of the run."""
        self._toolbox.restore(call, result)


class JournaledToolbox(WrappedToolbox):
    """The tools of a run: each call is recorded before it begins."""

    def __init__(self, *, toolbox: KeyedToolbox, effects: Effects) -> None:
        super().__init__(toolbox=toolbox)
        self._effects = effects

    async def call(self, call: ToolCall) -> ToolResult:
        """Execute `call`, or return the recorded result if the run made it before.

        Raises:
            ToolOutcomeUnknownError: the call had begun when a process ended, and must not be made twice.
            ReasondError: the error that the tool raises, or that was recorded.
        """
        digest = compute_texts_digest(call.call_id, call.name, call.arguments_json)
        effect = self._effects.begin("tool", digest, is_idempotent=self.is_idempotent(call.name))
        try:
            async with effect:
                return await self._call_once(call, effect)
        except ToolOutcomeUnknownError:
            raise _unknown_outcome(call) from None

    async def _call_once(self, call: ToolCall, effect: JournaledEffect) -> ToolResult:
        if effect.recorded is not None:
            return self._restore(call, effect.recorded)
        try:
            outcome = await self._toolbox.call(call, idempotency_key=effect.idempotency_key)
        except ReasondError as error:
            await effect.complete(encode_result(error))
            raise
        await effect.complete(encode_result(outcome))
        return outcome

    def _restore(self, call: ToolCall, recorded: str) -> ToolResult:
        outcome = decode_result(recorded)
        if isinstance(outcome, ReasondError):
            raise outcome
        self._toolbox.restore(call, outcome)
        return outcome


class TracedToolbox(WrappedToolbox):
    """The tools of a run, with a span for each call that is not replayed."""

    def __init__(self, *, toolbox: KeyedToolbox, trace: RunTrace, tracing: Tracing) -> None:
        super().__init__(toolbox=toolbox)
        self._trace = trace
        self._tracing = tracing
        self._names = frozenset(spec.name for spec in toolbox.specs)

    async def call(self, call: ToolCall, *, idempotency_key: str = "") -> ToolResult:
        """Execute `call` within a span. Raises as the tools do."""
        tracing = self._tracing
        # A name that the model invented is content, and the number of such names has no limit.
        name = call.name if call.name in self._names else "unknown"
        span = tracing.part(f"{EXECUTE_TOOL} {name}", self._attributes(call, name), parent=self._trace.open())
        try:
            with OutgoingTrace(span.context if tracing.tells_tools else None):
                result = await self._toolbox.call(call, idempotency_key=idempotency_key)
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


def encode_result(result: ToolResult | ReasondError) -> str:
    """Return the result of a tool call, or its error, as JSON text."""
    if isinstance(result, ReasondError):
        return json.dumps({"v": VERSION, "error": write_error_row(result)}, separators=(",", ":"))
    return json.dumps({"v": VERSION, "result": asdict(result)}, separators=(",", ":"))


def decode_result(body: str) -> ToolResult | ReasondError:
    """Return the result of a tool call, or its error, from `body`.

    Raises:
        ReplayError: another version of this program wrote it.
    """
    row = read_row(body)
    return read_error(row["error"]) if "error" in row else ToolResult(**row["result"])


def _unknown_outcome(call: ToolCall) -> ToolOutcomeUnknownError:
    return ToolOutcomeUnknownError(
        f"The server went down while the tool {show(call.name)} was at work; whether it did its part is not known",
        remedy="See for yourself, then ask again; what was done until then is kept.",
        metadata={"tool": call.name, "call_id": call.call_id},
    )
