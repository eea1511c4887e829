"""One model call: its room to write, the fragments of its stream, and the parsed reply at its end."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeVar

from reasond_server.context.own_marks import settle_reply
from reasond_server.context.replies import Fragment, ParsedReply, TagParser
from reasond_server.context.tags import TagKind
from reasond_server.errors.base import InternalError
from reasond_server.errors.model import ContextExhaustedError, ModelProtocolError
from reasond_server.llm.counting.requests import bound_images, bound_messages, count_request, render_call
from reasond_server.llm.model import LONG_TEXT_CHARACTERS, ChatRequest, Finished, ModelFinish, ReasoningText, Text
from reasond_server.llm.prefaced_model import list_messages
from reasond_server.types import NOTHING, Usage, UsageSource
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from reasond_server.llm.model import ChatModel, Message, ModelEvent, TokenCounter, ToolSpec
    from reasond_server.types import ToolCall

ResultT = TypeVar("ResultT")

LEAST_TOKENS: Final = 100
"""Fewest tokens that a call must have room to write."""

_READ_CLOSING: Final = attrgetter("closing")
# About 64 tokens: a model that is about to end may write this much after its closing tag.
_ROOM_TO_END_CHARACTERS: Final = 256


@value
class ModelReply:
    """The complete reply of a call; `calls` are native tool calls.

    A reply with a closing tag has the finish STOP, whatever the model wrote after the tag. `cut_usage` is the usage of
    an earlier call for the same reply, which stop strings ended in its hidden reasoning. `usage` does not include it.
    """

    parsed: ParsedReply
    finish: ModelFinish
    usage: Usage
    calls: Sequence[ToolCall] = ()
    cut_usage: Usage = NOTHING

    @property
    def is_only_hidden_reasoning(self) -> bool:
        """Whether the model wrote only hidden reasoning."""
        parsed = self.parsed
        has_reasoned = bool(self.usage.reasoning_tokens or parsed.thinking.strip())
        return has_reasoned and not (parsed.text.strip() or parsed.content.strip())

    @property
    def spent(self) -> Usage:
        """The usage of all calls that were made for this reply."""
        return self.usage + self.cut_usage

    @property
    def reasoning_tokens(self) -> int:
        """The tokens of hidden reasoning: as reported, or all output if the report does not separate them."""
        return self.usage.reasoning_tokens or self.usage.output_tokens


class ReplyListener:
    """Turns the events of one call into fragments and a reply: send `request`, `take` each event, then `close`.

        is_asking = True
        while is_asking:
            ... send `request`, `take` its events ...
            is_asking = listener.ask_again()
        rest, reply = listener.close(counter)

    The closing tags of `kinds` are the stop strings. Some providers ignore stop strings: their text after the closing
    tag is read and dropped, because the usage comes at the end of the call. After much more text `is_done` becomes
    true: then close the call, and `close` counts its usage (UsageSource.ESTIMATED). `label` is the label of the
    ChatRequest.
    """

    def __init__(
        self,
        *,
        messages: Sequence[Message],
        max_tokens: int,
        temperature: float,
        top_p: float | None = None,
        kinds: Sequence[TagKind] = (TagKind.ANSWER, TagKind.CONTINUE),
        tools: Sequence[ToolSpec] = (),
        tool_choice: str = "auto",
        label: str = "",
        seed: int | None = None,
    ) -> None:
        self._kinds = kinds
        self._cut_usage = NOTHING
        self._parser = parser = TagParser(kinds=kinds)
        self.request = ChatRequest(
            messages=messages,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            stop=tuple(map(_READ_CLOSING, kinds)),
            is_stop_advice=True,
            tools=tools,
            tool_choice=tool_choice,
            label=label,
            seed=seed,
            has_enough=lambda: parser.is_done,
        )
        self._past = 0
        self._behind: list[str] = []
        self._written: list[str] = []
        self._calls: list[ToolCall] = []
        self._finished: Finished | None = None

    @property
    def is_done(self) -> bool:
        """Whether to close the call: the reply is complete, and the model keeps writing."""
        return self._past > _ROOM_TO_END_CHARACTERS

    def take(self, event: ModelEvent) -> Sequence[Fragment]:
        """Take one event of the model and return the fragments that are certain now."""
        if isinstance(event, Finished):
            self._finished = event
        elif self._parser.is_done:
            self._pass_over(event)
        elif isinstance(event, Text):
            self._written.append(event.text)
            return self._parser.feed(event.text)
        elif isinstance(event, ReasoningText):
            self._written.append(event.text)
            return self._parser.feed_reasoning(event.text)
        else:
            self._calls.append(event)
        return ()

    def _pass_over(self, event: Text | ReasoningText | ToolCall) -> None:
        """Count text after the closing tag: it is billed, and its length shows whether the model stops."""
        text = event.text if isinstance(event, Text | ReasoningText) else event.arguments_json
        self._written.append(text)
        if isinstance(event, Text):
            self._behind.append(text)
        self._past += len(text)

    def ask_again(self) -> bool:
        """Return whether to send `request` again, now without stop strings, because they ended the reasoning.

        The text of the first call is discarded. A request is repeated at most once.
        """
        finished = self._finished
        if finished is None or not finished.is_stopped_in_reasoning or not self.request.stop:
            return False
        self._cut_usage = finished.usage
        self._parser = parser = TagParser(kinds=self._kinds)
        self.request = replace(self.request, stop=(), has_enough=lambda: parser.is_done)
        self._finished, self._written = None, []
        return True

    def close(self, counter: TokenCounter) -> tuple[Sequence[Fragment], ModelReply]:
        """Return the fragments that were held back, and the reply.

        Raises:
            ModelProtocolError: the stream of the model ended without a finish reason.
        """
        parser = self._parser
        finished = self._end_for_model(counter) if self._finished is None else self._finished
        if parser.is_done:
            parsed = parser.result
            reason = ModelFinish.LENGTH if parsed.is_cut else ModelFinish.STOP
            behind = "".join([parser.behind, *self._behind])
            return (), ModelReply(
                parsed=settle_reply(parsed, self.request.messages, behind=behind),
                finish=reason,
                usage=finished.usage,
                calls=tuple(self._calls),
                cut_usage=self._cut_usage,
            )
        # The text does not include stop strings, so after STOP an open tag counts as closed, except in quoted code.
        is_stop = finished.reason is ModelFinish.STOP
        rest = parser.close(is_stop=is_stop)
        parsed = parser.result
        is_cut = is_stop and parsed.kind is not None and not parsed.is_closed
        return rest, ModelReply(
            parsed=settle_reply(parsed, self.request.messages),
            finish=ModelFinish.LENGTH if is_cut else finished.reason,
            usage=finished.usage,
            calls=tuple(self._calls),
            cut_usage=self._cut_usage,
        )

    def _end_for_model(self, counter: TokenCounter) -> Finished:
        """Return the `Finished` of a call that was closed before the model ended it."""
        if not self._parser.is_done:
            raise ModelProtocolError("the model's stream ended without a reason")
        usage = Usage(
            input_tokens=count_request(self.request, counter),
            output_tokens=counter.count_text("".join([*self._written, *map(render_call, self._calls)])),
            model_calls=1,
            source=UsageSource.ESTIMATED,
        )
        reason = ModelFinish.LENGTH if self._parser.result.is_cut else ModelFinish.STOP
        return Finished(reason=reason, usage=usage)


async def hear(
    *,
    model: ChatModel,
    messages: Sequence[Message],
    max_tokens: int,
    temperature: float,
    kinds: Sequence[TagKind] = (TagKind.ANSWER, TagKind.CONTINUE),
    tools: Sequence[ToolSpec] = (),
    tool_choice: str = "auto",
    label: str = "",
) -> AsyncGenerator[Fragment | ModelReply, None]:
    """Call `model` and yield fragments as they become certain, then one ModelReply; see `ReplyListener`.

    Raises:
        ModelProtocolError: the stream of the model ended without a finish reason.
        ReasondError: as `model.stream`.
    """
    listener = ReplyListener(
        messages=messages,
        max_tokens=max_tokens,
        temperature=temperature,
        kinds=kinds,
        tools=tools,
        tool_choice=tool_choice,
        label=label,
    )
    is_asking = True
    while is_asking:
        events = model.stream(listener.request)
        try:
            async for event in events:
                for fragment in listener.take(event):
                    yield fragment
                if listener.is_done:
                    break
        finally:
            await events.aclose()
        is_asking = listener.ask_again()
    rest, reply = listener.close(model.counter)
    for fragment in rest:
        yield fragment
    yield reply


async def take_reply(call: AsyncGenerator[Fragment | ModelReply, None]) -> ModelReply:
    """Return the reply of a call of `hear`; its fragments are dropped.

    Raises:
        ReasondError: as `hear`.
    """
    reply: ModelReply | None = None
    async with aclosing(call) as heard:
        async for piece in heard:
            reply = piece if isinstance(piece, ModelReply) else reply
    if reply is None:
        raise InternalError("a model call ended without a reply")
    return reply


async def measure_room(
    messages: Sequence[Message], *, max_tokens: int, model: ChatModel, limit: int | None = None
) -> tuple[int, tuple[str, ...]]:
    """Return the tokens that the model may write after `messages`, and a warning if they are less than `max_tokens`.

    Prompt and output together fit the model's context window, and `limit` tokens if it is given.

    Raises:
        ContextExhaustedError: the context window has no room for `LEAST_TOKENS`.
    """
    window = model.context_window
    if limit is not None and (window is None or limit < window):
        window = limit
    if window is None:
        return max_tokens, ()
    told = await model.count_exactly(messages)
    prompt = await count_prompt(messages, model.counter) if told is None else told
    room = window - prompt
    if room < LEAST_TOKENS:
        raise build_no_room_error(prompt, window, least=LEAST_TOKENS)
    if room >= max_tokens:
        return max_tokens, ()
    warning = (
        f"max_tokens was lowered from {max_tokens} to {room}: the prompt has {prompt} tokens and the model's "
        f"context window {window}."
    )
    return room, (warning,)


def build_no_room_error(prompt: int, window: int, *, least: int) -> ContextExhaustedError:
    """Return the error for a prompt of `prompt` tokens that leaves fewer than `least` of the model's `window`."""
    return ContextExhaustedError(
        f"the prompt has {prompt} tokens, which leaves {max(window - prompt, 0)} of the model's context window of "
        f"{window}; at least {least} are needed to answer",
        remedy="Shorten query or material, or use the strategy 'bounded_context', which reads long material in "
        "segments.",
        metadata={"prompt_tokens": str(prompt), "context_window": str(window)},
    )


async def count_prompt(messages: Sequence[Message], counter: TokenCounter) -> int:
    """Return the tokens of `messages` by `counter`; a long prompt is counted in a thread."""
    if sum([len(message.content) for message in list_messages(messages, counter)]) > LONG_TEXT_CHARACTERS:
        return await asyncio.to_thread(counter.count_prompt, messages)
    return counter.count_prompt(messages)


async def run_by_size(characters: int, work: Callable[[], ResultT]) -> ResultT:
    """Return the result of `work`, which handles `characters` characters; it runs in a thread if these are many."""
    return await asyncio.to_thread(work) if characters > LONG_TEXT_CHARACTERS else work()


def bound_prompt(messages: Sequence[Message], counter: TokenCounter) -> int:
    """Return an upper bound of a prompt's tokens: an exact count, or the bytes if the counter only estimates.

    A token is at least one byte.
    """
    if counter.is_exact:
        return counter.count_prompt(messages)
    whole = list_messages(messages, counter)
    return bound_messages(whole) + bound_images(whole)
