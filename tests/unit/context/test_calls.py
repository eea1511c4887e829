"""One call: stop strings, early closing, usage, and replies that end too early."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from reasond_server.context.calls import ModelReply, ReplyListener, stream_reply
from reasond_server.context.sections import build_prompt
from reasond_server.context.tags import TagKind
from reasond_server.errors.model import ModelProtocolError
from reasond_server.llm.counting import WordPieceCounter
from reasond_server.llm.model import ChatRequest, Finished, Message, ModelEvent, ModelFinish, ReasoningText, Text
from reasond_server.testing import Reply as Scripted
from reasond_server.testing import ScriptedModel
from reasond_server.types import ToolCall, Usage, UsageSource

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reasond_server.llm.model import ChatModel, TokenCounter

MESSAGES = build_prompt(instructions="Work.", question="What?", nonce="n" * 28)


class Deaf:
    """A model that ignores stop strings and may end without `Finished`; `closed` counts how often it was closed."""

    name = "deaf"
    warnings: Sequence[str] = ()
    context_window: int | None = None
    counter: TokenCounter = WordPieceCounter()

    def __init__(self, texts: Sequence[str], *, finish: ModelFinish | None = None) -> None:
        self.texts = texts
        self.finish = finish
        self.written = 0
        self.closed = 0

    @property
    def has_native_tools(self) -> bool:
        return False

    async def count_exactly(self, messages: Sequence[Message]) -> int | None:
        return self.counter.count_prompt(messages)

    async def aclose(self) -> None:
        return

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        assert request.max_tokens == 100
        try:
            for text in self.texts:
                self.written += 1
                yield Text(text=text)
            if self.finish is not None:
                yield Finished(reason=self.finish, usage=Usage(input_tokens=7, output_tokens=5, model_calls=1))
        finally:
            self.closed += 1


async def hear_reply(model: ChatModel) -> tuple[str, ModelReply]:
    texts: list[str] = []
    async with aclosing(stream_reply(model=model, messages=MESSAGES, max_tokens=100, temperature=0.5)) as events:
        async for event in events:
            if isinstance(event, ModelReply):
                return "".join(texts), event
            texts.append(event.text)
    pytest.fail("no reply")


async def test_the_stop_string_closes_the_tag() -> None:
    with ScriptedModel(["Six times seven.<answer>42</answer> and more"]) as model:
        text, reply = await hear_reply(model)
    assert text == "Six times seven.42"
    assert reply.parsed.is_closed
    assert (reply.parsed.kind, reply.parsed.content) == (TagKind.ANSWER, "42")
    assert reply.finish is ModelFinish.STOP
    assert reply.usage.source is UsageSource.REPORTED
    (request,) = model.requests
    assert (request.stop, request.max_tokens, request.temperature) == (("</answer>", "</continue>"), 100, 0.5)


async def test_opening_tags_are_never_stop_strings_because_the_answer_would_be_cut_off() -> None:
    for kinds in (tuple(TagKind), (TagKind.ANSWER,), (TagKind.CONTINUE,)):
        with ScriptedModel(["<answer>42</answer>"]) as model:
            call = stream_reply(model=model, messages=MESSAGES, max_tokens=100, temperature=0.5, kinds=kinds)
            async with aclosing(call) as events:
                assert [event async for event in events]
        assert model.requests[0].stop == tuple(f"</{kind}>" for kind in kinds)


@pytest.mark.parametrize(
    ("written", "finish", "kind", "is_closed", "content"),
    [
        ("<answer>42</answer>", ModelFinish.STOP, TagKind.ANSWER, True, "42"),
        ("<answer>42</answer>", ModelFinish.LENGTH, TagKind.ANSWER, True, "42"),
        ("<answer>42", ModelFinish.STOP, TagKind.ANSWER, True, "42"),
        ("<answer>42", ModelFinish.LENGTH, TagKind.ANSWER, False, "42"),
        ("<continue>six", ModelFinish.STOP, TagKind.CONTINUE, True, "six"),
        ("<continue>six", ModelFinish.LENGTH, TagKind.CONTINUE, False, "six"),
        ("42", ModelFinish.STOP, None, False, ""),
        ("42", ModelFinish.LENGTH, None, False, ""),
        ("<answer>4", ModelFinish.CONTENT_FILTER, TagKind.ANSWER, False, "4"),
    ],
)
async def test_tag_and_finish_together_tell_complete_from_truncated(
    *, written: str, finish: ModelFinish, kind: TagKind | None, is_closed: bool, content: str
) -> None:
    for texts in ([written], list(written)):
        _, reply = await hear_reply(Deaf(texts, finish=finish))
        assert (reply.parsed.kind, reply.parsed.is_closed, reply.parsed.content) == (kind, is_closed, content)
        assert reply.parsed.text == ("42" if kind is None else "")
        assert reply.finish is (ModelFinish.STOP if written.endswith("</answer>") else finish)


async def test_a_model_deaf_to_stop_strings_is_heard_to_its_end_for_its_usage() -> None:
    model = Deaf(["<answer>42</ans", "wer> and", " on", " and on"], finish=ModelFinish.LENGTH)
    text, reply = await hear_reply(model)
    assert (text, model.written, model.closed) == ("42", 4, 1)
    assert (reply.finish, reply.parsed.content) == (ModelFinish.STOP, "42")
    assert reply.usage == Usage(input_tokens=7, output_tokens=5, model_calls=1)


async def test_a_model_that_goes_on_and_on_after_the_tag_is_closed() -> None:
    past = ["x" * 256, "x", "never", "never"]
    model = Deaf(["<answer>42</ans", "wer>", *past], finish=ModelFinish.LENGTH)
    text, reply = await hear_reply(model)
    assert (text, model.written, model.closed) == ("42", 4, 1)
    assert reply.finish is ModelFinish.STOP
    counter = WordPieceCounter()
    assert reply.usage == Usage(
        input_tokens=counter.count_prompt(MESSAGES),
        output_tokens=counter.count_text("<answer>42</answer>" + "x" * 257),
        model_calls=1,
        source=UsageSource.ESTIMATED,
    )


def test_what_comes_after_the_tag_is_no_part_of_the_reply_and_counts_all_the_same() -> None:
    listener = ReplyListener(messages=MESSAGES, max_tokens=100, temperature=0.5)
    assert not listener.request.has_enough()
    listener.take(Text(text="<answer>42</answer>"))
    assert listener.request.has_enough()
    late = (ToolCall(call_id="c", name="n", arguments_json="x" * 200), ReasoningText(text="hm" * 28), Text(text="y"))
    is_done = []
    for event in late:
        assert listener.take(event) == ()
        is_done.append(listener.is_done)
    assert is_done == [False, False, True]
    rest, reply = listener.close(WordPieceCounter())
    assert (rest, reply.calls, reply.parsed.thinking, reply.finish) == ((), (), "", ModelFinish.STOP)


async def test_an_answer_that_a_stop_string_cut_inside_quoted_code_is_told_as_cut() -> None:
    with ScriptedModel(["<answer>Write:\n```\n<answer>42</answer>\n```\nand so on</answer>"]) as model:
        text, reply = await hear_reply(model)
    assert text == "Write:\n```\n<answer>42"
    assert (reply.parsed.is_closed, reply.finish) == (False, ModelFinish.LENGTH)


async def test_a_provider_that_takes_no_stop_strings_writes_quoted_code_to_its_end() -> None:
    whole = "<answer>Write:\n```\n<answer>42</answer>\n```\nand so on"
    _, reply = await hear_reply(Deaf([whole, "</answer>"]))
    assert reply.parsed.content == whole.removeprefix("<answer>")
    assert (reply.parsed.is_closed, reply.finish) == (True, ModelFinish.STOP)


async def test_a_reply_beyond_all_bounds_is_closed_as_cut() -> None:
    model = Deaf(["x" * 1_500_000, "x" * 1_500_000, "x" * 257, "never"])
    _, reply = await hear_reply(model)
    assert (model.written, model.closed, reply.finish) == (3, 1, ModelFinish.LENGTH)
    assert reply.parsed.is_cut


async def test_a_model_that_ends_without_a_reason_broke_the_protocol() -> None:
    with pytest.raises(ModelProtocolError, match="ended without a reason"):
        await hear_reply(Deaf(["<answer>4"]))


async def test_what_was_held_back_comes_at_the_end() -> None:
    text, reply = await hear_reply(Deaf(["a <ans"], finish=ModelFinish.LENGTH))
    assert text == reply.parsed.text == "a <ans"
    assert reply.usage.total_tokens == 12


async def test_hidden_reasoning_is_heard_as_thinking() -> None:
    with ScriptedModel([Scripted(text="<answer>1", reasoning="<answer>2</answer>")]) as model:
        text, reply = await hear_reply(model)
    assert text == "<answer>2</answer>1"
    assert (reply.parsed.thinking, reply.parsed.content) == ("<answer>2</answer>", "1")


async def test_closing_the_call_closes_the_model() -> None:
    model = Deaf(["a", "b", "c"], finish=ModelFinish.STOP)
    call = stream_reply(model=model, messages=MESSAGES, max_tokens=100, temperature=0.5)
    assert not isinstance(await anext(call), ModelReply)
    await call.aclose()
    assert (model.written, model.closed) == (1, 1)
