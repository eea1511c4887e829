"""What the events of an execution say to a client: reasoning, the answer, or calls of the client's tools."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from reasond_server.errors.request import InvalidRequestError
from reasond_server.http_api.json_mapping import MAX_TRACE_BYTES, describe_step
from reasond_server.protocols.conversations import BETWEEN, name_call
from reasond_server.turns.history import TURN, warn_of_left_out
from reasond_server.types import NOTHING, FinishReason, Iteration, Result, TextDelta, ToolCall, Usage
from reasond_server.types.turns import CallKind, HandedOff, LedgerState, ModelCallStep, ToolStep, TurnResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.types.turns import ContextItem


class FollowedRun:
    """Takes the events of one execution in order.

    What a turn says before its calls is reasoning, unless the wire `has_texts` of its own for it.

    Attributes:
        execution_id: the execution, which the caller sets.
        texts: the texts of the steps.
        said: what a turn has said before its calls, where it is no reasoning.
        logprobs: the tokens of the answer, by the names of OpenAI; None if they were not asked for.
        usage: of a turn that of this leg alone, because clients add up the usage of all answers.
    """

    def __init__(self, *, has_texts: bool = False) -> None:
        self.execution_id = ""
        self.texts: list[str] = []
        self.said: list[str] = []
        self.usage = NOTHING
        self.logprobs: list[dict[str, Any]] | None = None
        self._end: Result | TurnResult | None = None
        self._handoff: HandedOff | None = None
        self._has_texts = has_texts
        self._told_step = -1
        self._prompts: list[Sequence[ContextItem]] = []

    def take(self, event: object) -> str:
        """Take in an event and return what a reader of the reasoning is told; empty for nothing."""
        if isinstance(event, TextDelta):
            self._told_step = event.iteration_index
            return event.text
        if isinstance(event, Result):
            self._end, self.usage = event, event.metrics.usage
        elif isinstance(event, TurnResult):
            self._end = event
        elif isinstance(event, HandedOff):
            self._handoff = event
        text = ""
        if isinstance(event, ModelCallStep):
            text = self._take_reply(event)
        elif isinstance(event, Iteration):
            text = describe_step(event)
            self.logprobs = read_logprobs(event) or self.logprobs
        elif isinstance(event, ToolStep) and event.state is not LedgerState.STARTED:
            text = f"{event.tool}: {event.state}"
        if text:
            self.texts.append(text)
        if isinstance(event, Iteration | ModelCallStep) and event.index == self._told_step:
            # Whoever reads the text as it is written does not need it again.
            return BETWEEN
        return text + BETWEEN if text else ""

    def _take_reply(self, reply: ModelCallStep) -> str:
        """Take in a reply of a turn, and return its reasoning."""
        self.usage += reply.usage
        self._prompts.append(reply.context)
        said = reply.text.strip() if reply.calls else ""
        if self._has_texts and reply.edition >= 0:
            self.said += filter(None, [said])
            said = ""
        return BETWEEN.join(filter(None, (reply.thinking.strip(), said)))

    @property
    def content(self) -> str:
        """The answer; where a schema was asked for, the JSON that satisfies it; empty at a hand-off."""
        if isinstance(self._end, Result):
            return self._end.answer_json or self._end.answer
        return "" if self._end is None else self._end.answer

    @property
    def finish_reason(self) -> FinishReason | None:
        """How the execution ended; None if it waits for results of calls."""
        return None if self._end is None else self._end.finish_reason

    @property
    def warnings(self) -> Sequence[str]:
        """The warnings of the execution; at a hand-off, of what did not reach the model."""
        return warn_of_left_out(self._prompts) if self._end is None else self._end.warnings

    @property
    def stop_sequence(self) -> str | None:
        """The stop string that ended the answer; None if none did."""
        return (self._end.stop_sequence or None) if self._end is not None else None

    def list_calls(self) -> list[ToolCall]:
        """Return the pending calls, with the ids by which their results find back.

        Raises:
            InvalidRequestError: a client of another product cannot settle one of them.
        """
        if self._handoff is None:
            return []
        others = [one for one in self._handoff.calls if one.kind is not CallKind.EXECUTE]
        if others:
            kinds = ", ".join(f"{one.call.name} ({one.kind})" for one in others)
            raise InvalidRequestError(
                f"The turn {self.execution_id} waits for a decision that this interface cannot give: {kinds}",
                remedy=f"Decide with `reasond turns resolve {self.execution_id}`, or have the operator take the tool "
                "out of [turns] needs_approval.",
            )
        return [
            replace(one.call, call_id=name_call(self.execution_id, self._handoff.etag, one))
            for one in self._handoff.calls
        ]

    def describe(self, warnings: Sequence[str]) -> dict[str, Any]:
        """Return what other products have no place for."""
        end = self._end
        strategy: dict[str, Any] = {"strategy": TURN}
        if isinstance(end, Result):
            strategy = {"strategy": end.strategy_used, "strategy_source": end.strategy_source.value}
        return {
            "execution_id": self.execution_id,
            **strategy,
            "finish_reason": end.finish_reason.value if end is not None and end.finish_reason else None,
            "model": None if end is None else end.model,
            "model_calls": self.usage.model_calls,
            "usage_source": self.usage.source.value,
            "warnings": [*self.warnings, *warnings],
        }


def write_usage(usage: Usage, read: str, written: str) -> dict[str, Any]:
    """Return the usage by the names of one of OpenAI's wires, with its words for what is read and what is written."""
    return {
        f"{read}_tokens": usage.input_tokens,
        f"{read}_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        f"{written}_tokens": usage.output_tokens,
        f"{written}_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def read_logprobs(step: Iteration) -> list[dict[str, Any]]:
    """Return the tokens of the answer in a step, by the names of OpenAI; none if they were not asked for."""
    rows = from_json(step.logprobs_json) if step.logprobs_json else ()
    return [
        {**_name_token(text, chance), "top_logprobs": [_name_token(*other) for other in top]}
        for text, chance, top in rows
    ]


def _name_token(text: str, chance: float) -> dict[str, Any]:
    return {"token": text, "logprob": chance, "bytes": [*text.encode("utf-8", "replace")]}


def keep_reasoning(texts: list[str], most_bytes: int = MAX_TRACE_BYTES) -> tuple[list[str], Sequence[str]]:
    """Return as many of the first `texts` as fit, and a warning if some do not."""
    room = most_bytes
    for place, text in enumerate(texts):
        room -= len(text.encode("utf-8", "surrogatepass"))
        if room < 0:
            warning = (
                f"The reasoning holds the first {place} of {len(texts)} steps: all of them are over {most_bytes} "
                "bytes. Stream the completion to read every step."
            )
            return texts[:place], (warning,)
    return texts, ()
