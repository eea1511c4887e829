"""The tool calls of one run: under ids of our own, within their limits, the same one twice at most."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from reasond_server.errors import TokenBudgetExhaustedError
from reasond_server.strategies.react import prompts as words
from reasond_server.tools.execution import refusal
from reasond_server.tools.read_result import READ_TOOL_RESULT
from reasond_server.tools.results import arguments_of
from reasond_server.types import FinishReason, ToolCall

if TYPE_CHECKING:
    from reasond_server.tools.toolbox import Toolbox
    from reasond_server.types import ToolResult

_MAX_SAME_CALLS: Final = 2
_MAX_TOOL_NAME: Final = 128
_NONE_LEFT: Final = "no calls are left; answer from what you know"


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """Why the next model call must answer, and how the run ends if it does not mark an answer."""

    finish_reason: FinishReason
    warning: str = ""


@dataclass(slots=True, kw_only=True)
class Calling:
    """What one run has called.

    `most` calls may be made, `is_budgets` tells whether the task's budget says so rather than the configuration.
    """

    tools: Toolbox
    most: int
    is_budgets: bool
    made: int = 0
    failed: int = 0
    _minted: int = 0
    _before: dict[str, list[str]] = field(default_factory=dict)
    _stop: Due | None = None

    @property
    def stop(self) -> Due | None:
        """Why no further call is made; None while calls may be made."""
        if self._stop is not None or self.made < self.most:
            return self._stop
        limit = "budget.max_tool_calls" if self.is_budgets else "max_tool_calls"
        return Due(
            finish_reason=FinishReason.BUDGET_EXHAUSTED if self.is_budgets else FinishReason.MAX_ITERATIONS,
            warning=f"All {self.most} tool calls of {limit} were made; the run had to answer.",
        )

    def minted(self, call: ToolCall) -> ToolCall:
        """Return `call` under an id of our own, with nothing in it that cannot be carried."""
        self._minted += 1
        return ToolCall(
            call_id=f"c{self._minted}",
            name=words.encodable(call.name)[:_MAX_TOOL_NAME],
            arguments_json=words.encodable(call.arguments_json),
        )

    async def make(self, call: ToolCall) -> tuple[ToolResult, str]:
        """Make one call unless it may not be made any more; return its result and a word on it for the model."""
        before = self._before.setdefault(words.action_key(call), [])
        note = words.REPEATED.format(call_id=before[0]) if before else ""
        if refused := self._refused(call, len(before)):
            result, note = refused, ""
        else:
            before.append(call.call_id)
            self.made += 1
            result = await self._called(call)
        self.failed += result.is_error
        return result, note

    def _refused(self, call: ToolCall, times: int) -> ToolResult | None:
        if self.stop is not None:
            return refusal(call, "not_called", _NONE_LEFT)
        if times < _MAX_SAME_CALLS:
            return None
        warning = "The model made the same call a third time; it was refused, and the run had to answer."
        self._stop = Due(finish_reason=FinishReason.MAX_ITERATIONS, warning=warning)
        return refusal(call, "repeated", f"the same call was made {_MAX_SAME_CALLS} times before; use its result")

    async def _called(self, call: ToolCall) -> ToolResult:
        try:
            return await self.tools.call(call)
        except TokenBudgetExhaustedError as error:
            self._stop = Due(finish_reason=FinishReason.BUDGET_EXHAUSTED, warning=error.full_message)
            return refusal(call, "not_called", _NONE_LEFT)


def handle_of(call: ToolCall) -> str:
    """Return the handle by which the result of `call` can be read: that of the result itself where it read one."""
    if call.name != READ_TOOL_RESULT:
        return call.call_id
    try:
        handle = arguments_of(call.arguments_json).get("handle")
    except ValueError:
        handle = None
    return handle if isinstance(handle, str) and handle.isalnum() else call.call_id
