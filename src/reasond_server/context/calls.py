"""One call of a model, heard through the tag parser: fragments while it writes, then the whole reply."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reasond_server.context.replies import Fragment, Parsed, TagParser
from reasond_server.context.tags import TagKind
from reasond_server.errors import ModelProtocolError
from reasond_server.llm.model import ChatRequest, Finished, ModelFinish, ReasoningText
from reasond_server.types import ToolCall, Usage, UsageSource

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reasond_server.llm.model import ChatModel, Message, ToolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The last thing heard of a call; `calls` are those of tools that were offered natively.

    A call that we closed after the closing tag counts as STOP.
    """

    parsed: Parsed
    finish: ModelFinish
    usage: Usage
    calls: Sequence[ToolCall] = ()


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
) -> AsyncGenerator[Fragment | Reply, None]:
    """Call `model` and yield fragments as they become certain, then one Reply.

    The closing tags of `kinds` are the stop strings; where the provider ignores those, the call is closed
    as soon as a tag is, and its usage is counted here (UsageSource.ESTIMATED). `label` is that of the ChatRequest.

    Raises:
        ModelProtocolError: the model ended without saying how.
        ReasondError: as `model.stream`.
    """
    stop = tuple(kind.closing for kind in kinds)
    request = ChatRequest(
        messages=messages,
        max_tokens=max_tokens,
        temperature=temperature,
        stop=stop,
        is_stop_advice=True,
        tools=tools,
        tool_choice=tool_choice,
        label=label,
    )
    parser = TagParser(kinds=kinds)
    written: list[str] = []
    calls: list[ToolCall] = []
    finished: Finished | None = None
    async with aclosing(model.stream(request)) as events:
        async for event in events:
            if isinstance(event, Finished):
                finished = event
                continue
            if isinstance(event, ToolCall):
                calls.append(event)
                continue
            written.append(event.text)
            feed = parser.feed_reasoning if isinstance(event, ReasoningText) else parser.feed
            for fragment in feed(event.text):
                yield fragment
            if parser.is_done:
                break
    if finished is None:
        finished = _closed_by_us(model, request, parser, written)
    # Stop strings are not returned, so after STOP an open tag counts as closed, unless it was cut in quoted code.
    is_stop = finished.reason is ModelFinish.STOP
    for fragment in parser.close(is_stop=is_stop):
        yield fragment
    parsed = parser.result
    is_cut = is_stop and parsed.kind is not None and not parsed.is_closed
    yield Reply(
        parsed=parsed,
        finish=ModelFinish.LENGTH if is_cut else finished.reason,
        usage=finished.usage,
        calls=tuple(calls),
    )


def _closed_by_us(model: ChatModel, request: ChatRequest, parser: TagParser, written: Sequence[str]) -> Finished:
    """Return how a call ended that the model did not end."""
    if not parser.is_done:
        raise ModelProtocolError("the model's stream ended without a reason")
    usage = Usage(
        input_tokens=model.counter.count_prompt(request.messages),
        output_tokens=model.counter.count_text("".join(written)),
        model_calls=1,
        source=UsageSource.ESTIMATED,
    )
    reason = ModelFinish.LENGTH if parser.result.is_cut else ModelFinish.STOP
    return Finished(reason=reason, usage=usage)
