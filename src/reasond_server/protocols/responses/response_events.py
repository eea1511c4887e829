"""The events of a response: a pure function of the events of its log.

A structural event takes one number. A delta takes as many as its text has characters, and its `sequence_number` is the
last of them, so that a client that comes back is sent the rest of a text, whatever pieces it got before
(docs/decisions/0061-wires.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from reasond_server.protocols.conversations import find_custom_names, name_call, read_text, seal
from reasond_server.protocols.followed_runs import FollowedRun, LiveAnswer, build_lost_error
from reasond_server.protocols.responses.response_json import (
    SEALED,
    ResponseRef,
    begin_response,
    end_response,
    read_echo,
)
from reasond_server.types import FinishReason, Heartbeat, Iteration, Result, TextDelta
from reasond_server.types.turns import CallKind, HandedOff, ModelCallStep, Reentered, ToolStep, TurnResult, TurnStarted
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.types import ExecutionFailure, LoggedEvent, StreamEvent, ToolCall

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
    """How an item of one text is told: the beginning of its id, its usual members, and the names of its text and parts.

    `parts` is the member that has its parts, of which it has one: `empty`, with the text.
    """

    prefix: str
    usual: Mapping[str, Any]
    text: str
    part: str
    parts: str
    empty: Mapping[str, Any]


_MESSAGE: Final = _Form(
    prefix="msg",
    usual={"type": "message", "role": "assistant", "status": "completed"},
    text="response.output_text",
    part="response.content_part",
    parts="content",
    empty={"type": "output_text", "text": "", "annotations": [], "logprobs": []},
)
_REASONING: Final = _Form(
    prefix="rs",
    usual={"type": "reasoning"},
    text="response.reasoning_summary_text",
    part="response.reasoning_summary_part",
    parts="summary",
    empty={"type": "summary_text", "text": ""},
)


class ResponseWriter:
    """Writes the events of one response from the events of its log, each of which `take` gets in order.

    It also takes the text of an answer while it is written, if it gets all of it from the beginning. What the log has
    of the request goes before `echo`.

    Attributes:
        response: the response object as it is now; empty before the first event.
        has_ended: whether the last event was taken.
    """

    def __init__(self, echo: Mapping[str, Any]) -> None:
        self._echo = echo
        self._number = self._lost = 0
        self._run = FollowedRun(has_texts=True)
        self._draft: LiveAnswer | None = None
        self._said = ""
        self._key = ""
        self._told: list[ResponseEvent] = []
        self._where: Mapping[str, Any] = {}
        self.response: dict[str, Any] = {}
        self.has_ended = False

    def take(self, execution_id: str, logged: LoggedEvent | StreamEvent) -> Sequence[ResponseEvent]:
        """Return the events for the next event of the log.

        Raises:
            CursorExpiredError: text that was told of the answer does not count any more.
        """
        self._told = []
        if not (self.has_ended or isinstance(logged.event, Heartbeat)):
            at_s = int(logged.create_time.timestamp())
            if not self.response:
                self._begin(execution_id, logged, at_s)
            self._take(logged.event, at_s)
        return self._told

    def _begin(self, execution_id: str, first: LoggedEvent | StreamEvent, at_s: int) -> None:
        """Tell that the response begins, before the first event of the log."""
        ref = ResponseRef(execution_id=execution_id, after=first.sequence - 1)
        kept = read_echo(first.event.echo_json) if isinstance(first.event, TurnStarted | Reentered) else {}
        self._echo, self._key = kept or self._echo, ref.key
        self._run.execution_id = execution_id
        self.response = begin_response(ref, self._echo, created_at=at_s)
        self._tell("response.created", response=self.response)
        self._tell("response.in_progress", response=self.response)

    def _take(self, event: object, at_s: int) -> None:
        if isinstance(event, TextDelta):
            self._show(event)
            return
        thought = self._run.take(event)
        if isinstance(event, Iteration):
            self._answer(getattr(event.detail, "answer", ""), thought, event.edition)
        elif isinstance(event, ModelCallStep):
            text = event.text.strip()
            self._answer(text, event.thinking, event.edition)
            if event.calls and event.edition < 0:
                # No message: a later one is the answer.
                self._reason(text)
        elif isinstance(event, ToolStep):
            self._reason(thought)
        elif isinstance(event, HandedOff):
            self._hand_off(event)
            self._end(at_s)
        elif isinstance(event, Result | TurnResult):
            self._conclude(event)
            self._end(at_s, event.error)

    def _show(self, delta: TextDelta) -> None:
        """Tell what is certain of an answer while it is written."""
        place = delta.place
        if place is None:
            return
        draft = self._draft = self._draft or LiveAnswer(place.edition)
        has_begun = draft.has_begun
        certain = draft.add(delta.text, place.at)
        if certain and not has_begun:
            self._skip(place.edition)
            self._reason(place.thinking)
            self._open(_MESSAGE)
        self._write(_MESSAGE, certain)

    def _answer(self, text: str, thinking: str, edition: int) -> None:
        """Tell the reasoning and the part of the answer in a step, without what was told while it was written."""
        draft, self._draft = self._draft, None
        text = text if edition >= 0 else ""
        if draft is None or not draft.has_begun:
            self._skip(edition)
            self._reason(thinking)
            self._say(text)
        elif draft.edition == edition:
            self._write(_MESSAGE, draft.rest(text))
            self._finish(_MESSAGE, text)
        elif text:
            raise build_lost_error()
        else:
            self._finish(_MESSAGE, draft.written, status="incomplete")
            self._skip(edition)

    def _conclude(self, event: Result | TurnResult) -> None:
        if self._draft is not None and self._draft.has_begun:
            self._finish(_MESSAGE, self._draft.written, status="incomplete")
        if event.finish_reason in _BROKEN:
            # What was written of an answer may be lost.
            self._skip(_MOST_EDITIONS)
        if self._run.content != self._said:
            self._say(self._run.content)

    def _end(self, at_s: int, error: ExecutionFailure | None = None) -> None:
        self.has_ended = True
        self.response = end_response(self.response, self._run, error=error, completed_at=at_s)
        status = self.response["status"]
        self._tell(f"response.{'incomplete' if status == 'cancelled' else status}", response=self.response)

    def _skip(self, edition: int) -> None:
        """Leave out the numbers of the editions before."""
        if edition > 0:
            self._lost = self._number
            self._number = (self._number // _EDITION + edition) * _EDITION

    def _hand_off(self, event: HandedOff) -> None:
        for pending in event.calls:
            if pending.kind is CallKind.EXECUTE:
                self._call(name_call(self._run.execution_id, event.etag, pending), pending.call)
            else:
                self._say(f"The server waits for a decision about the call of {pending.call.name}.")

    def _call(self, call_id: str, call: ToolCall) -> None:
        prefix, kind, member, text = "fc", "function_call", "arguments", call.arguments_json or "{}"
        if call.name in find_custom_names(self._echo.get("tools", ())):
            prefix, kind, member, text = "ctc", "custom_tool_call", "input", read_text(text)
        where = self._locate(prefix)
        item = {"type": kind, "call_id": call_id, "name": call.name, "id": where["item_id"]}
        told = f"response.{kind}_{member}"
        self._add({**item, member: "", "status": "in_progress"})
        if text:
            self._tell(f"{told}.delta", len(text), **where, delta=text)
        self._tell(f"{told}.done", **where, name=call.name, **{member: text})
        self._close({**item, member: text, "status": "completed"})

    def _reason(self, text: str) -> None:
        """Tell an item of reasoning whose summary is `text`; nothing for an empty one."""
        if text := text.strip():
            sealed = seal(text) if SEALED in self._echo.get("include", ()) else None
            self._open(_REASONING, encrypted_content=sealed)
            self._write(_REASONING, text)
            self._finish(_REASONING, text, encrypted_content=sealed)

    def _say(self, text: str) -> None:
        """Tell a message of the assistant; nothing for an empty one."""
        if text:
            self._open(_MESSAGE)
            self._write(_MESSAGE, text)
            self._finish(_MESSAGE, text)

    def _open(self, form: _Form, **members: object) -> None:
        self._where = {**self._locate(form.prefix), f"{form.parts}_index": 0}
        begun = {"status": "in_progress"} if "status" in form.usual else {}
        self._add({"id": self._where["item_id"], **form.usual, **begun, **members, form.parts: []})
        self._tell(f"{form.part}.added", **self._where, part=form.empty)

    def _write(self, form: _Form, text: str) -> None:
        more: dict[str, Any] = {"logprobs": []} if form is _MESSAGE else {}
        if text:
            self._tell(f"{form.text}.delta", len(text), **self._where, delta=text, **more)

    def _finish(self, form: _Form, text: str, **members: object) -> None:
        more: dict[str, Any] = {}
        if form is _MESSAGE:
            self._said, more = text, {"logprobs": self._run.logprobs or []}
        part = {**form.empty, **more, "text": text}
        self._tell(f"{form.text}.done", **self._where, text=text, **more)
        self._tell(f"{form.part}.done", **self._where, part=part)
        self._close({"id": self._where["item_id"], **form.usual, **members, form.parts: [part]})

    def _locate(self, prefix: str) -> dict[str, Any]:
        """Return where the next item is told, whose id begins with `prefix`."""
        place = len(self.response["output"])
        return {"item_id": f"{prefix}_{self._key}_i{place}", "output_index": place}

    def _add(self, item: Mapping[str, Any]) -> None:
        self._tell("response.output_item.added", output_index=len(self.response["output"]), item=item)

    def _close(self, item: Mapping[str, Any]) -> None:
        self._tell("response.output_item.done", output_index=len(self.response["output"]), item=item)
        self.response = {**self.response, "output": [*self.response["output"], item]}

    def _tell(self, kind: str, takes: int = 1, /, **members: object) -> None:
        first, lost = self._number, self._lost
        self._number = self._lost = first + takes
        body = {"type": kind, "sequence_number": self._number - 1, **members}
        self._told.append(ResponseEvent(lost=lost, first=first, body=body))
