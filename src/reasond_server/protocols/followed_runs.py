"""What the events of an execution say to a client: reasoning, calls of its tools, or the answer as it is written."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from pydantic_core import from_json

from reasond_server.errors.executions import CursorExpiredError
from reasond_server.errors.request import InvalidRequestError
from reasond_server.http_api.json_mapping import MAX_TRACE_BYTES, describe_step
from reasond_server.protocols.conversations import BETWEEN, name_call
from reasond_server.turns.history import TURN, warn_of_left_out
from reasond_server.types import NOTHING, AnswerPlace, FinishReason, Iteration, Result, TextDelta, ToolCall, Usage
from reasond_server.types.turns import CallKind, HandedOff, LedgerState, ModelCallStep, ToolStep, TurnResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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


class LiveAnswer:
    """The answer that is being written: white space that may be its end is held back."""

    def __init__(self, edition: int) -> None:
        self.edition = edition
        self._told: list[str] = []
        self._held = ""
        self._at = 0

    @property
    def has_begun(self) -> bool:
        """Whether some of it was sent."""
        return bool(self._told)

    @property
    def written(self) -> str:
        """What was sent."""
        return "".join(self._told)

    def add(self, text: str, at: int) -> str:
        """Return what can be sent now that the text after the character `at` came; nothing after a gap."""
        if at != self._at:
            return ""
        self._at += len(text)
        text = self._held + text if self._told else text.lstrip()
        certain = text.rstrip()
        self._held = text[len(certain) :]
        if certain:
            self._told.append(certain)
        return certain

    def rest(self, text: str) -> str:
        """Return what was not sent yet of the whole `text`, which begins with what was."""
        return text[sum(map(len, self._told)) :]


def build_lost_error() -> CursorExpiredError:
    """Return the error for a client that has text of another edition (`AnswerPlace`)."""
    return CursorExpiredError(
        "The text that was told of the answer does not count any more: the process that wrote it was lost, or the "
        "model took it back",
        remedy="Read the response again from its start; a chat or a message is sent again.",
    )


class AnswerFrames(Protocol):
    """Writes what is told of one run, in the frames of a protocol."""

    def think(self, text: str) -> Iterator[bytes]:
        """Yield a piece of thinking."""

    def end_thinking(self) -> Iterator[bytes]:
        """Yield the end of the thinking, if some is open."""

    def say(self, text: str, *, is_whole: bool = True) -> Iterator[bytes]:
        """Yield a piece of the answer, which ends the thinking; `is_whole` with the last one."""


class AnswerTeller:
    """Tells the events of a run as thinking and text; text while it is written, where the log will begin with it.

    Attributes:
        said: the text that was told last.
    """

    def __init__(self, frames: AnswerFrames, *, shows_thinking: bool, shows_deltas: bool, is_live: bool = True) -> None:
        self._frames = frames
        self._shows_thinking = shows_thinking
        self._shows_deltas = shows_thinking and shows_deltas
        self._is_live = is_live
        self._draft: LiveAnswer | None = None
        self.said = ""

    def tell(self, run: FollowedRun, event: object) -> Iterator[bytes]:
        """Yield what `event` tells, which `run` takes.

        Raises:
            CursorExpiredError: text that was told of the answer does not count any more.
        """
        if isinstance(event, TextDelta) and event.place is not None and self._is_live:
            yield from self._show(event.text, event.place)
            return
        if isinstance(event, TextDelta) and not self._shows_deltas:
            return
        before = len(run.said)
        text = run.take(event)
        draft = self._draft
        if isinstance(event, Iteration | ModelCallStep):
            self._draft = None
            if draft is not None and draft.has_begun:
                yield from self._settle(draft, event)
                return
        if self._shows_thinking:
            is_piece = isinstance(event, TextDelta)
            if piece := text if is_piece else text.removesuffix(BETWEEN):
                yield from self._frames.think(piece)
            if text and not is_piece:
                yield from self._frames.end_thinking()
        for self.said in run.said[before:]:
            yield from self._frames.say(self.said)

    def _show(self, text: str, place: AnswerPlace) -> Iterator[bytes]:
        draft = self._draft = self._draft or LiveAnswer(place.edition)
        has_begun = draft.has_begun
        certain = draft.add(text, place.at)
        if certain and not has_begun and self._shows_thinking and place.thinking.strip():
            yield from self._frames.think(place.thinking.strip())
        if certain:
            yield from self._frames.say(certain, is_whole=False)

    def _settle(self, draft: LiveAnswer, step: Iteration | ModelCallStep) -> Iterator[bytes]:
        """Yield the rest of the text that was told while it was written."""
        text = step.text.strip() if isinstance(step, ModelCallStep) else getattr(step.detail, "answer", "")
        if text and draft.edition != step.edition:
            raise build_lost_error()
        self.said = text or draft.written
        yield from self._frames.say(draft.rest(self.said))

    def end(self, run: FollowedRun) -> Iterator[bytes]:
        """Yield what was not told yet of the thinking and the answer."""
        draft, self._draft = self._draft, None
        if draft is not None and draft.has_begun:
            self.said = run.content if run.content.startswith(draft.written) else draft.written
            yield from self._frames.say(draft.rest(self.said))
        yield from self._frames.end_thinking()
        if run.content not in {"", self.said}:
            yield from self._frames.say(run.content)
