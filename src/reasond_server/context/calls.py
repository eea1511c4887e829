"""One model call: its room to write, the fragments of its stream, and the parsed reply at its end."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeVar

from reasond_server.context.own_marks import TagCutter, find_own_names, settle_reply
from reasond_server.context.replies import Fragment, ParsedReply, TagParser
from reasond_server.context.reply_holds import CallHold, LoopWatch, TextHold
from reasond_server.context.tags import TagKind
from reasond_server.dialects.native_calls import unwrap_arguments
from reasond_server.dialects.reasoning_marks import LONE_CLOSE, may_leave_open
from reasond_server.dialects.written_calls import read_text_calls
from reasond_server.errors.base import InternalError
from reasond_server.errors.model import ContextExhaustedError, ModelProtocolError
from reasond_server.llm.counting.requests import bound_images, bound_messages, count_request, render_call
from reasond_server.llm.model import LONG_TEXT_CHARACTERS, ChatRequest, Finished, ModelFinish, ReasoningText, Text
from reasond_server.llm.wrapped_models import list_messages
from reasond_server.types import NOTHING, Json, TokenChance, ToolCall, Usage, UsageSource
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from reasond_server.llm.model import ChatModel, Message, ModelEvent, TokenCounter, ToolSpec

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
    `is_call_unread`: the model began a call of a tool that cannot be read, in its text or by its finish reason.
    `is_repetition`: all that the model wrote repeats the prompt, and was taken out.
    `is_loop`: the call was closed, because the model only repeated itself; the finish is LENGTH.
    `model` and `tokens` are those of `Finished`.
    """

    parsed: ParsedReply
    finish: ModelFinish
    usage: Usage
    calls: Sequence[ToolCall] = ()
    cut_usage: Usage = NOTHING
    is_call_unread: bool = False
    is_repetition: bool = False
    is_loop: bool = False
    model: str = ""
    tokens: Sequence[TokenChance] = ()

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


@dataclass(slots=True)
class _CurrentParser:
    """The parser of a reply that may be read again."""

    parser: TagParser


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

    Some models write calls of `tools`, or of tools `described` in the prompt, into their text in a form of their own.
    From where such a call may begin, no fragments are returned before the end, and the reply has the calls.

    With `ends_loops`, `is_done` is also true when the model has begun to repeat one piece of text over and over.

    With `holds_text`, text is returned only when it is known to be no reasoning: when reasoning was told apart, or at
    the end. Without it, `has_taken_back` says that text which was returned turned out to be reasoning.

    Tags of ours that come back are cut out (`own_marks`), unless `keeps_tags`. `before` is what the caller put before
    `messages`.
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
        described: Sequence[ToolSpec] = (),
        label: str = "",
        seed: int | None = None,
        json_schema: Json | None = None,
        top_logprobs: int | None = None,
        holds_text: bool = False,
        ends_loops: bool = False,
        keeps_tags: bool = False,
        before: Sequence[Message] = (),
    ) -> None:
        self._kinds = kinds
        is_whole = keeps_tags or json_schema is not None
        self._cutter = None if is_whole else TagCutter(partial(find_own_names, messages, kinds, before))
        self._cut_kind: TagKind | None = None
        self._loop = LoopWatch() if ends_loops else None
        self._tools = {spec.name: spec.parameters for spec in (*tools, *described)}
        self._cut_usage = NOTHING
        # A bound method in the request would make a cycle, which keeps whole prompts until they are looked for.
        self._current = current = _CurrentParser(TagParser(kinds=kinds))
        self._hold = CallHold()
        self._text_hold = TextHold(is_open=holds_text)
        self._texts: list[str] = []
        self._behind = ""
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
            json_schema=json_schema,
            top_logprobs=top_logprobs,
            has_enough=lambda: current.parser.is_done,
        )
        self._past = 0
        self._written: list[str] = []
        self._calls: list[ToolCall] = []
        self._finished: Finished | None = None

    @property
    def _parser(self) -> TagParser:
        return self._current.parser

    @property
    def has_taken_back(self) -> bool:
        """Whether text that was returned, and not held back, turned out to be reasoning."""
        return self._parser.has_taken_back and not self._text_hold.is_used

    @property
    def is_done(self) -> bool:
        """Whether to close the call: the reply is complete, and the model keeps writing, or it is a loop."""
        return self._past > _ROOM_TO_END_CHARACTERS or self._is_loop

    @property
    def _is_loop(self) -> bool:
        return self._loop is not None and self._loop.is_found and not self._parser.is_done

    def take(self, event: ModelEvent) -> Sequence[Fragment]:
        """Take one event of the model and return the fragments that are certain now."""
        if self._loop is not None and isinstance(event, Text | ReasoningText):
            self._loop.take(event.text)
        return self._cut(self._text_hold.take(self._take(event), has_taken_back=self._parser.has_taken_back))

    def _cut(self, fragments: Sequence[Fragment], *, is_end: bool = False) -> Sequence[Fragment]:
        """Return `fragments` without tags of ours; an end that may begin one is held back."""
        cutter = self._cutter
        if cutter is None or not (fragments or is_end):
            return fragments
        shown: list[Fragment] = []
        for each in fragments:
            if each.is_thinking or each.kind is TagKind.ACTION:
                shown.append(each)
                continue
            if each.kind is not self._cut_kind:
                shown.append(Fragment(text=cutter.feed("", is_end=True), kind=self._cut_kind))
            self._cut_kind = each.kind
            text = cutter.feed(each.text)
            shown.append(each if text is each.text else Fragment(text=text, kind=each.kind))
        if is_end:
            shown.append(Fragment(text=cutter.feed("", is_end=True), kind=self._cut_kind))
        return tuple([each for each in shown if each.text])

    def _take(self, event: ModelEvent) -> Sequence[Fragment]:
        parser = self._parser
        if isinstance(event, Finished):
            self._finished = event
        elif parser.is_done:
            return self._pass_over(event)
        elif isinstance(event, Text):
            self._written.append(event.text)
            self._texts.append(event.text)
            fragments = self._show(parser.feed(event.text))
            self._behind = parser.behind
            return [*fragments, *self._read_again()] if self._behind else fragments
        elif isinstance(event, ReasoningText):
            self._written.append(event.text)
            return parser.feed_reasoning(event.text)
        else:
            self._calls.append(unwrap_arguments(event, self._tools.get(event.name)))
        return ()

    def _show(self, fragments: Sequence[Fragment]) -> Sequence[Fragment]:
        return self._hold.take(fragments) if self._tools else fragments

    def _pass_over(self, event: Text | ReasoningText | ToolCall) -> Sequence[Fragment]:
        """Count text after the closing tag: it is billed, and its length shows whether the model stops."""
        text = event.text if isinstance(event, Text | ReasoningText) else event.arguments_json
        self._written.append(text)
        self._past += len(text)
        if not isinstance(event, Text):
            return ()
        self._texts.append(event.text)
        self._behind += event.text
        return self._read_again()

    def _read_again(self) -> Sequence[Fragment]:
        """Read what stands behind reasoning that ends only behind the tags of an answer: it quoted them."""
        if LONE_CLOSE not in self._behind:
            return ()
        before, _, after = "".join(self._texts).rpartition(LONE_CLOSE)
        thinking = self._parser.result.thinking
        self._current.parser, self._texts, self._past = TagParser(kinds=self._kinds), [after], 0
        self._parser.feed_reasoning(thinking + before)
        fragments = self._show(self._parser.feed(after))
        self._behind = self._parser.behind
        return fragments

    def ask_again(self) -> bool:
        """Return whether to send `request` again, now without stop strings, because they ended the reasoning.

        The text of the first call is discarded. A request is repeated at most once.
        """
        finished = self._finished
        if finished is None or not finished.is_stopped_in_reasoning or not self.request.stop:
            return False
        if self._tools and read_text_calls(self._parser.result.thinking, self._tools):
            return False
        self._cut_usage = finished.usage
        self._current.parser, self._hold = TagParser(kinds=self._kinds), CallHold()
        self.request = replace(self.request, stop=())
        self._finished, self._written, self._texts, self._behind = None, [], [], ""
        return True

    def close(self, counter: TokenCounter) -> tuple[Sequence[Fragment], ModelReply]:
        """Return the fragments that were held back, and the reply.

        Raises:
            ModelProtocolError: the stream of the model ended without a finish reason.
        """
        rest, reply = self._close(counter)
        rest = self._text_hold.close(rest, has_taken_back=self._parser.has_taken_back)
        if not self._tools:
            return self._cut(rest, is_end=True), reply
        shown = self._cut([*self._hold.take(rest), *self._hold.release()], is_end=True)
        read = read_calls(reply, self._tools)
        return (shown if read is reply else ()), read

    def _close(self, counter: TokenCounter) -> tuple[Sequence[Fragment], ModelReply]:
        parser = self._parser
        finished = self._end_for_model(counter) if self._finished is None else self._finished
        if parser.is_done:
            parsed = parser.result
            reason = ModelFinish.LENGTH if parsed.is_cut else ModelFinish.STOP
            settled = settle_reply(
                parsed, self.request.messages, behind=self._behind, cutter=self._cutter, kinds=self._kinds
            )
            return (), ModelReply(
                parsed=settled,
                finish=reason,
                is_repetition=_is_emptied(parsed, settled),
                usage=finished.usage,
                calls=tuple(self._calls),
                cut_usage=self._cut_usage,
                model=finished.model,
                tokens=finished.tokens,
            )
        # The text does not include stop strings, so after STOP an open tag counts as closed, except in quoted code.
        is_stop = finished.reason is ModelFinish.STOP
        rest = parser.close(is_stop=is_stop)
        parsed = parser.result
        is_cut = is_stop and parsed.kind is not None and not parsed.is_closed
        settled = settle_reply(parsed, self.request.messages, cutter=self._cutter, kinds=self._kinds)
        return rest, ModelReply(
            parsed=settled,
            is_repetition=_is_emptied(parsed, settled),
            finish=ModelFinish.LENGTH if is_cut else finished.reason,
            usage=finished.usage,
            calls=tuple(self._calls),
            cut_usage=self._cut_usage,
            is_loop=self._finished is None,
            model=finished.model,
            tokens=finished.tokens,
        )

    def _end_for_model(self, counter: TokenCounter) -> Finished:
        """Return the `Finished` of a call that was closed before the model ended it."""
        if not (self._parser.is_done or self._is_loop):
            raise ModelProtocolError("the model's stream ended without a reason")
        usage = Usage(
            input_tokens=count_request(self.request, counter),
            output_tokens=counter.count_text("".join([*self._written, *map(render_call, self._calls)])),
            model_calls=1,
            source=UsageSource.ESTIMATED,
        )
        reason = ModelFinish.LENGTH if self._is_loop or self._parser.result.is_cut else ModelFinish.STOP
        return Finished(reason=reason, usage=usage)


def _is_emptied(parsed: ParsedReply, settled: ParsedReply) -> bool:
    """Return whether nothing is left of what a reply had outside its reasoning."""
    return bool((parsed.text + parsed.content).strip()) and not (settled.text + settled.content).strip()


def read_calls(reply: ModelReply, tools: Mapping[str, Json]) -> ModelReply:
    """Return a reply with the calls of `tools` that its text has in a form of the model's own; else the same reply.

    What follows such a call is dropped: the model cannot know its result. A reply that ended for calls and has none
    has a call that cannot be read.
    """
    parsed = reply.parsed
    inner = read_text_calls(parsed.content, tools) if parsed.kind is TagKind.ANSWER else None
    if inner is not None and inner.calls and not reply.calls:
        text = f"{parsed.text}{inner.text}"
        parsed = replace(parsed, text=text, kind=None, content="", is_closed=False)
        return replace(reply, parsed=parsed, calls=tuple(inner.calls), finish=ModelFinish.TOOL_CALLS)
    source = parsed.content if parsed.kind is TagKind.ANSWER and not parsed.text.strip() else parsed.text
    is_thought = not (source.strip() or reply.calls) and reply.finish is not ModelFinish.LENGTH
    # What stands before an answer, and not at its end, tells what was done.
    found = read_text_calls(parsed.thinking if is_thought else source, tools, may_go_on=parsed.kind is None)
    if found is None or parsed.kind is TagKind.ACTION:
        is_missing = reply.finish is ModelFinish.TOOL_CALLS and not reply.calls
        return replace(reply, is_call_unread=True) if is_missing else reply
    text = "" if is_thought else found.text
    parsed = replace(parsed, text=text, kind=None, content="", is_closed=False)
    if reply.calls:
        return replace(reply, parsed=parsed)
    finish = ModelFinish.TOOL_CALLS if found.calls else reply.finish
    is_unread = found.is_unread and reply.finish is not ModelFinish.LENGTH
    return replace(reply, parsed=parsed, calls=tuple(found.calls), finish=finish, is_call_unread=is_unread)


async def stream_reply(
    *,
    model: ChatModel,
    messages: Sequence[Message],
    max_tokens: int,
    temperature: float,
    kinds: Sequence[TagKind] = (TagKind.ANSWER, TagKind.CONTINUE),
    tools: Sequence[ToolSpec] = (),
    tool_choice: str = "auto",
    label: str = "",
    json_schema: Json | None = None,
    top_logprobs: int | None = None,
    ends_loops: bool = False,
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
        json_schema=json_schema,
        top_logprobs=top_logprobs,
        # Text before the tag of an answer is reasoning anyway.
        holds_text=TagKind.ANSWER not in kinds and may_leave_open(model.name),
        ends_loops=ends_loops,
        before=list_messages((), model.counter),
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
    """Return the reply of a call of `stream_reply`; its fragments are dropped.

    Raises:
        ReasondError: as `stream_reply`.
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
    exact = await model.count_exactly(messages)
    prompt = await count_prompt(messages, model.counter) if exact is None else exact
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
