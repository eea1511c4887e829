"""The events of a response: a pure function of the events of its log.

A structural event takes one number. A delta takes as many as its text has characters, and its `sequence_number` is the
last of them, so that a client that comes back is sent the rest of a text, whatever pieces it got before
(docs/decisions/0061-wires.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from reasond_server.http_api.json_mapping import describe_step
from reasond_server.protocols.conversations import name_call
from reasond_server.protocols.followed_runs import read_logprobs
from reasond_server.protocols.live_answers import LiveAnswer, build_lost_error
from reasond_server.protocols.responses.response_json import ECHO, LOGPROBS, SEALED, begin_response, end_response
from reasond_server.protocols.sealed_reasoning import seal
from reasond_server.types import NOTHING, FinishReason, Iteration, Result, TextDelta
from reasond_server.types.turns import CallKind, HandedOff, LedgerState, ModelCallStep, ToolStep, TurnResult
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from reasond_server.protocols.responses.response_json import ResponseRef
    from reasond_server.types import ExecutionFailure, Usage

_ENDS: Final = {"completed": "response.completed", "failed": "response.failed"}
_INCOMPLETE: Final = "response.incomplete"
_EDITION: Final = 1 << 22
"""More numbers than the text of one model call takes: each edition of an answer has others."""
_MOST_EDITIONS: Final = 64
_BROKEN: Final = frozenset({FinishReason.FAILED, FinishReason.CANCELLED, FinishReason.EXPIRED})


@value
class ResponseEvent:
    """One event: `first` is the first number that it takes, and the body's `sequence_number` the last one.

    The numbers from `lost` to `first` are those of text that does not count any more.
    """

    lost: int
    first: int
    body: Mapping[str, Any]

    def after(self, number: int) -> Mapping[str, Any] | None:
        """Return what a client that has everything up to `number` still needs of it; None for nothing.

        Raises:
            CursorExpiredError: the client has text that does not count any more.
        """
        last: int = self.body["sequence_number"]
        if last <= number:
            return None
        if self.lost <= number < self.first:
            raise build_lost_error()
        if number < self.first or "delta" not in self.body:
            return self.body
        return {**self.body, "delta": self.body["delta"][number - self.first + 1 :]}


@value
class _Form:
    """How an item of one text is told: its type, the beginning of its id, and the names of its text, part and index."""

    kind: str
    prefix: str
    text: str
    part: str
    index: str
    empty: Mapping[str, Any]
    more: Mapping[str, Any]


_MESSAGE: Final = _Form(
    kind="message",
    prefix="msg",
    text="response.output_text",
    part="response.content_part",
    index="content_index",
    empty={"type": "output_text", "text": "", "annotations": [], "logprobs": []},
    more={"logprobs": []},
)
_REASONING: Final = _Form(
    kind="reasoning",
    prefix="rs",
    text="response.reasoning_summary_text",
    part="response.reasoning_summary_part",
    index="summary_index",
    empty={"type": "summary_text", "text": ""},
    more={},
)


class ResponseWriter:
    """Writes the events of one response from the events of its log, each of which `take` gets in order.

    It also takes the text of an answer while it is written, if it gets all of it from the beginning.

    Attributes:
        response: the response object as it is now; None before the first event.
        has_ended: whether the last event was taken.
    """

    def __init__(self, ref: ResponseRef, echo: Mapping[str, Any]) -> None:
        self._ref = ref
        self._echo = {**ECHO, **echo}
        self._number = self._lost = 0
        self._usage = NOTHING
        self._draft: LiveAnswer | None = None
        self._said = ""
        self._logprobs: Sequence[Mapping[str, Any]] = ()
        self.response: dict[str, Any] | None = None
        self.has_ended = False

    def take(self, event: object, create_time: datetime) -> Sequence[ResponseEvent]:
        """Return the events for the next event of the log.

        Raises:
            CursorExpiredError: text that was told of the answer does not count any more.
        """
        return () if self.has_ended else list(self._take(event, create_time))

    def _take(self, event: object, at: datetime) -> Iterator[ResponseEvent]:
        if self.response is None:
            self.response = begin_response(self._ref, self._echo, created_at=int(at.timestamp()))
            yield self._tell("response.created", response=self.response)
            yield self._tell("response.in_progress", response=self.response)
        if isinstance(event, TextDelta):
            yield from self._show(event)
        elif isinstance(event, Iteration):
            answer: str = getattr(event.detail, "answer", "") if event.edition >= 0 else ""
            self._logprobs = read_logprobs(event) if LOGPROBS in self._echo.get("include", ()) else ()
            yield from self._answer(answer, describe_step(event), event.edition)
        elif isinstance(event, ModelCallStep):
            self._usage += event.usage
            text = event.text.strip()
            yield from self._answer(text if event.edition >= 0 else "", event.thinking, event.edition)
            if event.calls and event.edition < 0:
                # No message: a later one is the answer.
                yield from self._reason(text)
        elif isinstance(event, ToolStep):
            if event.state is not LedgerState.STARTED:
                yield from self._reason(f"{event.tool}: {event.state}")
        elif isinstance(event, HandedOff):
            yield from self._hand_off(event)
            yield self._end(at, self._usage)
        elif isinstance(event, Result | TurnResult):
            yield from self._conclude(event, at)

    def _show(self, delta: TextDelta) -> Iterator[ResponseEvent]:
        """Yield what can be told of an answer while it is written."""
        place = delta.place
        if place is None:
            return
        draft = self._draft = self._draft or LiveAnswer(place.edition)
        certain = draft.add(delta.text, place.at)
        if certain and not draft.has_begun:
            self._skip(place.edition)
            yield from self._reason(place.thinking)
            yield from self._begin(_MESSAGE, status="in_progress", role="assistant", content=[])
            draft.has_begun = True
        yield from self._write(_MESSAGE, certain)

    def _answer(self, text: str, thinking: str, edition: int) -> Iterator[ResponseEvent]:
        """Yield the reasoning and the part of the answer in a step, without what was told while it was written."""
        draft, self._draft = self._draft, None
        if draft is None or not draft.has_begun:
            self._skip(edition)
            yield from self._reason(thinking)
            yield from self._write_message(text)
        elif draft.edition == edition:
            yield from self._write(_MESSAGE, draft.rest(text))
            yield from self._finish_message(text)
        elif text:
            raise build_lost_error()
        else:
            yield from self._leave(draft)
            self._skip(edition)

    def _leave(self, draft: LiveAnswer) -> Iterator[ResponseEvent]:
        """Yield the end of an answer that was not written whole."""
        yield from self._finish_message("".join(draft.told), status="incomplete")

    def _conclude(self, event: Result | TurnResult, at: datetime) -> Iterator[ResponseEvent]:
        answer, usage = event.answer, self._usage
        if isinstance(event, Result):
            answer, usage = event.answer_json or answer, event.metrics.usage
        if self._draft is not None and self._draft.has_begun:
            yield from self._leave(self._draft)
        if event.finish_reason in _BROKEN:
            # What was written of an answer may be lost.
            self._skip(_MOST_EDITIONS)
        self._warn(event.warnings)
        if answer != self._said:
            yield from self._write_message(answer)
        yield self._end(at, usage, event.finish_reason, event.error)

    def _skip(self, edition: int) -> None:
        """Leave out the numbers of the editions before."""
        if edition > 0:
            self._lost = self._number
            self._number = (self._number // _EDITION + edition) * _EDITION

    def _hand_off(self, event: HandedOff) -> Iterator[ResponseEvent]:
        for pending in event.calls:
            name, arguments = pending.call.name, pending.call.arguments_json or "{}"
            if pending.kind is not CallKind.EXECUTE:
                yield from self._write_message(f"The server waits for a decision about the call of {name}.")
                continue
            item = {
                "type": "function_call",
                "call_id": name_call(self._ref.execution_id, event.etag, pending),
                "name": name,
                "id": self._name_item("fc"),
                "arguments": "",
                "status": "in_progress",
            }
            where = {"item_id": item["id"], "output_index": self._place}
            kind = "response.function_call_arguments"
            yield self._tell("response.output_item.added", output_index=self._place, item=item)
            yield self._tell(f"{kind}.delta", len(arguments), **where, delta=arguments)
            yield self._tell(f"{kind}.done", **where, name=name, arguments=arguments)
            yield self._close({**item, "arguments": arguments, "status": "completed"})

    def _reason(self, text: str) -> Iterator[ResponseEvent]:
        """Yield an item of reasoning whose summary is `text`; nothing for an empty one."""
        text = text.strip()
        if text:
            sealed = seal(text) if SEALED in self._echo.get("include", ()) else None
            yield from self._begin(_REASONING, summary=[], encrypted_content=sealed)
            yield from self._write(_REASONING, text)
            yield from self._finish(_REASONING, "summary", text, encrypted_content=sealed)

    def _write_message(self, text: str) -> Iterator[ResponseEvent]:
        """Yield a message of the assistant; nothing for an empty one."""
        if text:
            yield from self._begin(_MESSAGE, status="in_progress", role="assistant", content=[])
            yield from self._write(_MESSAGE, text)
            yield from self._finish_message(text)

    def _finish_message(self, text: str, *, status: str = "completed") -> Iterator[ResponseEvent]:
        self._said = text
        yield from self._finish(_MESSAGE, "content", text, status=status, role="assistant")

    def _begin(self, form: _Form, **members: object) -> Iterator[ResponseEvent]:
        item = {"type": form.kind, "id": self._name_item(form.prefix), **members}
        yield self._tell("response.output_item.added", output_index=self._place, item=item)
        yield self._tell(f"{form.part}.added", **self._locate(form), part=form.empty)

    def _write(self, form: _Form, text: str) -> Iterator[ResponseEvent]:
        if text:
            yield self._tell(f"{form.text}.delta", len(text), **self._locate(form), delta=text, **form.more)

    def _finish(self, form: _Form, parts: str, text: str, **members: object) -> Iterator[ResponseEvent]:
        more = {**form.more, "logprobs": self._logprobs} if form.more and self._logprobs else form.more
        where, part = self._locate(form), {**form.empty, **more, "text": text}
        yield self._tell(f"{form.text}.done", **where, text=text, **more)
        yield self._tell(f"{form.part}.done", **where, part=part)
        item = {"type": form.kind, "id": self._name_item(form.prefix), **members, parts: [part]}
        yield self._close(item)

    def _locate(self, form: _Form) -> dict[str, Any]:
        return {"item_id": self._name_item(form.prefix), "output_index": self._place, form.index: 0}

    def _end(
        self,
        at: datetime,
        usage: Usage,
        reason: FinishReason | None = None,
        error: ExecutionFailure | None = None,
    ) -> ResponseEvent:
        assert self.response is not None  # noqa: S101 - `_take` has begun it
        self.has_ended = True
        self.response = end_response(
            self.response, reason=reason, error=error, usage=usage, completed_at=int(at.timestamp())
        )
        return self._tell(_ENDS.get(self.response["status"], _INCOMPLETE), response=self.response)

    def _warn(self, warnings: Sequence[str]) -> None:
        assert self.response is not None  # noqa: S101 - as above
        own = self.response["reasond"]
        # Events that were told have the object as it was.
        self.response = {**self.response, "reasond": {**own, "warnings": [*own["warnings"], *warnings]}}

    @property
    def _place(self) -> int:
        """The place of the item that is being written."""
        return 0 if self.response is None else len(self.response["output"])

    def _name_item(self, prefix: str) -> str:
        return f"{prefix}_{self._ref.key}_i{self._place}"

    def _close(self, item: Mapping[str, Any]) -> ResponseEvent:
        assert self.response is not None  # noqa: S101 - as above
        event = self._tell("response.output_item.done", output_index=self._place, item=item)
        self.response = {**self.response, "output": [*self.response["output"], item]}
        return event

    def _tell(self, kind: str, takes: int = 1, /, **members: object) -> ResponseEvent:
        first, lost = self._number, self._lost
        self._number = self._lost = first + takes
        return ResponseEvent(
            lost=lost, first=first, body={"type": kind, "sequence_number": self._number - 1, **members}
        )
