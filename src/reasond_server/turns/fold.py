"""The state of a turn, folded from the events of its log; nothing else is stored about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from reasond_server.context.step_records import PromptMemory
from reasond_server.llm.counting.requests import count_bytes
from reasond_server.types import Event, ToolCall, ToolResult
from reasond_server.types.turns import (
    CallKind,
    ContextGoal,
    HandedOff,
    LedgerEntry,
    LedgerState,
    LoggedRendering,
    ModeChange,
    ModelCallStep,
    Reentered,
    Rendering,
    ToolStep,
    TurnResult,
    TurnStarted,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from reasond_server.types.turns import Decision


_WHOLE: Final = "stop"
_MOST_SHOWN_BYTES: Final = 4_096
"""A ledger has many calls: the whole of a larger text is read with ReadToolResult, or in the events."""


@dataclass(slots=True, kw_only=True)
class LedgerCall:
    """One tool call of a turn with what is known of it; `kind` is what the client is asked for while it is handed off.

    `is_approved` is a person's decision about it, None while there is none, and `refusal` its reason.
    """

    call: ToolCall
    provider_id: str
    state: LedgerState = LedgerState.EXPECTED
    kind: CallKind | None = None
    is_approved: bool | None = None
    refusal: str = ""
    result: ToolResult | None = None

    @property
    def entry(self) -> LedgerEntry:
        """The call as callers see it."""
        result, arguments = self.result, self.call.arguments_json
        result_bytes = 0 if result is None else count_bytes(result.result_json)
        return LedgerEntry(
            call_id=self.call.call_id,
            tool=self.call.name,
            state=self.state,
            is_error=result is not None and result.is_error,
            result_bytes=result_bytes,
            arguments_json=arguments if count_bytes(arguments) <= _MOST_SHOWN_BYTES else "",
            result_json="" if result is None or result_bytes > _MOST_SHOWN_BYTES else result.result_json,
            refusal=self.refusal,
        )


@dataclass(slots=True, kw_only=True)
class FoldedReply:
    """One reply of the model with its calls."""

    step: ModelCallStep
    calls: Sequence[LedgerCall]


@dataclass(slots=True, kw_only=True)
class TurnProgress:
    """How far a turn has come.

    Attributes:
        start: the first event; None before it is appended.
        mode: the mode in force.
        replies: the replies of the model in order.
        ledger: all tool calls by id, in the order in which the model asked for them.
        handoff: the hand-off that waits for the client; None if there is none.
        reentries: how often the client has come back.
        renderings: how prompts show results, thoughts and earlier turns, by source.
        kept_bytes: the bytes of all results.
        result: the last event, once the turn has ended.
        summary_calls: how many model calls were made for summaries; they are no `replies`.
        unsummarised: the calls whose results had no summary that could be used.
        memory: what the prompts that this process makes have in common.
    """

    start: TurnStarted | None = None
    mode: str = ""
    replies: list[FoldedReply] = field(default_factory=list)
    ledger: dict[str, LedgerCall] = field(default_factory=dict)
    handoff: HandedOff | None = None
    reentries: int = 0
    renderings: dict[str, LoggedRendering] = field(default_factory=dict)
    kept_bytes: int = 0
    result: TurnResult | None = None
    summary_calls: int = 0
    unsummarised: list[str] = field(default_factory=list)
    memory: PromptMemory = field(default_factory=PromptMemory, repr=False, compare=False)

    @property
    def model_calls(self) -> int:
        """The number of model calls that were made so far."""
        return len(self.replies) + self.summary_calls

    @property
    def made_calls(self) -> int:
        """The number of calls that were made, or were handed off, so far."""
        idle = (LedgerState.EXPECTED, LedgerState.NOT_RUN)
        return sum(one.state not in idle for one in self.ledger.values())

    @property
    def draft(self) -> str:
        """The last text of the model, for a turn that ends before it answers."""
        return next((one.step.text for one in reversed(self.replies) if one.step.text.strip()), "")

    @property
    def written_answer(self) -> str:
        """The last planning reply if it answers; empty if it calls tools, is empty or was cut."""
        plans = [one for one in self.replies if one.step.goal is ContextGoal.PLANNING]
        if not plans or plans[-1].calls or plans[-1].step.finish != _WHOLE:
            return ""
        return plans[-1].step.text.strip()

    @property
    def was_reduced(self) -> bool:
        """Whether the last planning prompt showed less of a result of this turn than there is."""
        plans = [one.step for one in self.replies if one.step.goal is ContextGoal.PLANNING]
        shown = plans[-1].context if plans else ()
        return any(item.source in self.ledger and item.rendering is not Rendering.FULL for item in shown)

    def apply(self, event: Event) -> None:
        """Take in the next event of the log."""
        match event:
            case ToolStep():
                self._take_tool(event)
            case ModelCallStep():
                self._take_reply(event)
            case TurnStarted():
                self.start, self.mode = event, event.mode
            case ModeChange():
                self.mode = event.new_mode
            case HandedOff():
                self._take_handoff(event)
            case Reentered():
                self._take_reentry(event)
            case TurnResult():
                self.result, self.handoff = event, None
            case _:
                pass

    def _take_reply(self, step: ModelCallStep) -> None:
        if step.goal is ContextGoal.SUMMARY:
            self.summary_calls += 1
            self.renderings |= {one.source: one for one in step.renderings}
            self.unsummarised += [one.source for one in step.renderings if one.rendering is not Rendering.SUMMARY]
            return
        ids = [*step.provider_ids, *[""] * len(step.calls)]
        calls = [LedgerCall(call=call, provider_id=ids[place]) for place, call in enumerate(step.calls)]
        self.replies.append(FoldedReply(step=step, calls=calls))
        self.ledger |= {one.call.call_id: one for one in calls}
        self.renderings |= {one.source: one for one in step.renderings}

    def _take_tool(self, step: ToolStep) -> None:
        one = self.ledger[step.call_id]
        one.state = step.state
        if step.state.is_closed and step.state is not LedgerState.UNKNOWN:
            one.result = ToolResult(call_id=step.call_id, result_json=step.result_json, is_error=step.is_error)
            self.kept_bytes += step.result_bytes

    def _take_handoff(self, event: HandedOff) -> None:
        self.handoff = event
        for pending in event.calls:
            one = self.ledger[pending.call.call_id]
            one.state, one.kind = LedgerState.HANDED_OFF, pending.kind

    def _take_reentry(self, event: Reentered) -> None:
        self.handoff = None
        self.reentries += 1
        for result in event.results:
            one = self.ledger[result.call_id]
            one.result = result
            self.kept_bytes += count_bytes(result.result_json)
            one.state = LedgerState.FAILED if result.is_error else LedgerState.SUCCEEDED
        for decision in event.decisions:
            self._take_decision(decision)

    def _take_decision(self, decision: Decision) -> None:
        one = self.ledger[decision.call_id]
        one.is_approved, one.refusal, one.state = decision.is_approved, decision.reason, LedgerState.EXPECTED


def fold(events: Iterable[Event]) -> TurnProgress:
    """Return the state after `events`, the log of a turn from its beginning."""
    progress = TurnProgress()
    for event in events:
        progress.apply(event)
    return progress
