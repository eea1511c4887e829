"""The model calls of a turn: with the model of the mode in force, and with tools in the form that this model has.

Of several replies to one prompt the next step is one that most of them agree with. Replies agree if they make the same
calls in the same order: the same tools with arguments of equal JSON values. All replies without a call are one vote for
answering now, whatever they say. Of equals the first wins, and the votes end as soon as no further reply can change the
outcome (`context.votes`).
"""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Final

from reasond_server.context.calls import ModelReply, ReplyListener
from reasond_server.context.tags import TagKind
from reasond_server.context.text_calls import (
    ACTION_RULE,
    INVENTED_OBSERVATION,
    UnreadableActionError,
    cut_invention,
    read_action,
)
from reasond_server.context.vote_forms import normalize_answer
from reasond_server.context.votes import Tally
from reasond_server.dialects.reasoning_marks import may_leave_open
from reasond_server.errors.base import InternalError
from reasond_server.errors.model import ModelProtocolError, ModelUnavailableError, RequestRefusedError
from reasond_server.eventlog.store import Record
from reasond_server.llm.model import ChatModel, Message, ModelFinish, Role, TokenCounter, ToolSpec
from reasond_server.runs.accounts import fork_counter
from reasond_server.types import NOTHING, Json, ToolCall, Usage, UsageSource
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from reasond_server.context.replies import Fragment
    from reasond_server.llm.metered_model import MeteredModel
    from reasond_server.runs.run import Run


CORRECTION_TOKENS: Final = 128
"""Tokens that prompts for models without native tools leave free, to ask again after a reply that breaks the form."""

UNPUBLISHED: Final = "unpublished"
"""The label of calls whose text nobody is shown."""

_MAX_CORRECTIONS: Final = 2
_TAKEN_BACK: Final = (
    "Text that was streamed while the model wrote it turned out to be its reasoning: the answer is in the event of the "
    "call and in the result."
)
_NOTHING: Final = "Your last reply was empty. Answer, or call a tool."
_UNREAD_CALL: Final = (
    "Your last reply was not read: it has a call of a tool in a form that is none. Call the tool as it is offered, "
    "with its arguments as one JSON object."
)
_CUT_ACTION: Final = "Your reply was cut off within its <action>. Write less."


@value
class TurnReply:
    """What the model replied; the `calls` have the ids of the provider, which are empty for calls in text."""

    text: str
    thinking: str
    finish: str
    calls: Sequence[ToolCall]


class ModelCaller:
    """Makes the model calls of one turn; `backends` are the models that modes may name."""

    def __init__(
        self, run: Run, *, backends: Mapping[str, ChatModel], temperature: float, seed: int | None = None
    ) -> None:
        self._run = run
        self._backends = backends
        self._temperature = temperature
        self._seed = seed
        self._counters: dict[str, TokenCounter] = {}
        self._left_open: set[str] = set()

    @property
    def model(self) -> MeteredModel:
        """The model that is called, with the budget of the run."""
        return self._run.accounts.model

    def switch_to(self, backend: str) -> MeteredModel:
        """Call the model of `backend` from now on, and return it; empty means that of the server.

        Raises:
            InternalError: there is no such backend.
        """
        if not backend:
            self.model.switch_to()
            return self.model
        if backend not in self._backends:
            raise InternalError(f"the mode names the backend {backend!r}, which this server does not have")
        chosen = self._backends[backend]
        # What the counters of other turns learn must not change the prompts of this one.
        counter = self._counters.setdefault(backend, fork_counter(chosen.counter, {}))
        self.model.switch_to(chosen, counter)
        return self.model

    async def ask(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec],
        max_tokens: int,
        is_last: bool,
        index: int,
        tool_choice: str = "",
        is_published: bool = True,
        is_answer: bool = False,
        json_schema: Json | None = None,
    ) -> TurnReply:
        """Return the reply of model call `index`, and publish its text as it comes; with `is_last` it has no calls.

        `tool_choice` is that of `ChatRequest`, for models with native tools.

        `json_schema` is the form of the reply, which the model's server enforces; one that refuses is asked without.

        If not `is_published`, followers get no text of it before its event. With `is_answer` its text is part of what
        the client gets, whether calls follow it or not.
        The model is asked again, at most twice, if its reply is empty or breaks the form of calls.

        Raises:
            ModelProtocolError: it broke the form each time.
            ReasondError: as the model's `stream`.
        """
        is_native = self.model.has_native_tools
        asked, said = messages, ""
        for _ in range(1 + _MAX_CORRECTIONS):
            listener = ReplyListener(
                messages=asked,
                max_tokens=max_tokens,
                temperature=self._temperature,
                kinds=(TagKind.ACTION,) if tools and not is_native else (),
                tools=tools if is_native else (),
                tool_choice="none" if is_last else tool_choice or "auto",
                seed=self._seed,
                described=tools,
                json_schema=json_schema,
                label="" if is_published else UNPUBLISHED,
                holds_text=may_leave_open(self.model.name) or self.model.name in self._left_open,
            )
            try:
                reply = await self._listen(listener, index if is_published else None, is_answer=is_answer)
            except (RequestRefusedError, ModelUnavailableError):
                if json_schema is None:
                    raise
                json_schema = None
                continue
            text, calls, said = _read_reply(reply, () if is_native else tools)
            if is_last or not said:
                return _take(reply, text, () if is_last else calls)
            asked = _add(messages, said)
        if said == _NOTHING:
            return _take(reply, text, ())
        raise ModelProtocolError(
            f"the model {self.model.name} broke the form of tool calls {1 + _MAX_CORRECTIONS} times: {said}",
            remedy="Use a model with native tools, or a stronger one, for turns with tools.",
        )

    async def _listen(self, listener: ReplyListener, index: int | None, *, is_answer: bool) -> ModelReply:
        """Make the call once everything before it is committed; with an index publish the text as it comes."""
        model = self.model
        thinking: list[str] = []

        def publish(fragment: Fragment) -> None:
            if fragment.is_thinking:
                thinking.append(fragment.text)
            elif fragment.kind is None and index is not None:
                self._run.subscribers.publish(index, fragment.text, thinking=thinking if is_answer else None)

        is_asking = True
        while is_asking:
            async with aclosing(model.stream(listener.request)) as events:
                async for event in events:
                    for fragment in listener.take(event):
                        publish(fragment)
                    if listener.is_done:
                        break
            is_asking = listener.ask_again()
        rest, reply = listener.close(model.counter)
        for fragment in rest:
            publish(fragment)
        if listener.has_taken_back and index is not None:
            self._left_open.add(model.name)
            model.warnings_of_calls[_TAKEN_BACK] = None
        return reply


def _take(reply: ModelReply, text: str, calls: Sequence[ToolCall]) -> TurnReply:
    return TurnReply(text=text, thinking=reply.parsed.thinking, finish=reply.finish.value, calls=tuple(calls))


def _read_reply(reply: ModelReply, described: Sequence[ToolSpec]) -> tuple[str, Sequence[ToolCall], str]:
    """Return the text, the calls, and what to say if a call cannot be read or nothing was written.

    `described` are the tools that the model calls in its text.
    """
    parsed = reply.parsed
    if reply.calls:
        return parsed.text, reply.calls, ""
    if reply.is_call_unread:
        return parsed.text, (), _UNREAD_CALL
    if described:
        return _read_text(reply, described)
    is_empty = reply.finish is ModelFinish.STOP and not parsed.text.strip()
    return parsed.text, (), _NOTHING if is_empty else ""


def _read_text(reply: ModelReply, described: Sequence[ToolSpec]) -> tuple[str, Sequence[ToolCall], str]:
    """Return the text, the call that it ends with if there is one, and what to say if it breaks the form."""
    parsed = reply.parsed
    invented = cut_invention(parsed.text)
    if invented is not None:
        return invented, (), INVENTED_OBSERVATION
    if parsed.kind is not TagKind.ACTION:
        return parsed.text, (), ""
    if not parsed.is_closed:
        return parsed.text, (), _CUT_ACTION
    try:
        tools = {spec.name: spec.parameters for spec in described}
        return parsed.text.rstrip(), (read_action(parsed.content, call_id="", tools=tools),), ""
    except UnreadableActionError as error:
        return parsed.text, (), f"Your last reply was not read: {error}. {ACTION_RULE.strip()}"


def _add(messages: Sequence[Message], said: str) -> Sequence[Message]:
    """Return `messages` with our words at the end."""
    *before, last = messages
    if last.role is Role.USER:
        return (*before, replace(last, content=f"{last.content}\n{said}"))
    return (*messages, Message(role=Role.USER, content=said))


SAMPLE: Final = "sample"
"""The beginning of the key of a record: a reply of the turn that follows, to its model call with the number behind it.

A repeated request takes over the records of a turn that was cancelled, whose prompts were others.
"""

_ANSWER: Final = "answer"


@dataclass(kw_only=True)
class ToolVotes:
    """The replies so far to the model call `index` of the turn `turn_id`, of at most `samples`.

    Attributes:
        usage: what the `replies` of earlier lives of the turn have spent.
    """

    turn_id: str
    index: int
    samples: int
    replies: list[TurnReply] = field(default_factory=list)
    usage: Usage = NOTHING

    @property
    def _tally(self) -> Tally:
        return Tally(cast=[spell_step(each) for each in self.replies])

    @property
    def is_settled(self) -> bool:
        """Whether no further reply can change the outcome."""
        return self._tally.is_decided(self.samples - len(self.replies), min_agreement=0)

    @property
    def winner(self) -> TurnReply:
        """The first reply with the calls that most replies make; there is at least one."""
        tally = self._tally
        return self.replies[tally.cast.index(tally.winner)]

    def add(self, reply: TurnReply, spent: Usage) -> Record:
        """Take a reply that has `spent` tokens, and return its record: a later life does not ask for it again."""
        self.replies.append(reply)
        row = {"v": 1, "reply": asdict(reply), "spent": asdict(spent)}
        return Record(key=f"{SAMPLE}::{self.turn_id}::{self.index}::{len(self.replies)}", body=json.dumps(row))

    def restore(self, records: Iterable[Record]) -> None:
        """Take the replies to this call that `records` of earlier lives have."""
        for record in records:
            if is_sample(record, self.turn_id, self.index) and len(self.replies) < self.samples:
                row = json.loads(record.body)
                calls = tuple(ToolCall(**call) for call in row["reply"]["calls"])
                self.replies.append(TurnReply(**{**row["reply"], "calls": calls}))
                self.usage += Usage(**{**row["spent"], "source": UsageSource(row["spent"]["source"])})


def is_sample(record: Record, turn_id: str, index: int) -> bool:
    """Return whether `record` is that of a reply to the model call `index` of the turn."""
    return record.key.startswith(f"{SAMPLE}::{turn_id}::{index}::")


def spell_step(reply: TurnReply) -> str:
    """Return the form of a reply by which votes are counted."""
    calls = [[call.name, normalize_answer(call.arguments_json)] for call in reply.calls]
    return json.dumps(calls) if calls else _ANSWER
