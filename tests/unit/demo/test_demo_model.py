from __future__ import annotations

import asyncio
import re
from importlib import resources

import pytest

from reasond_server.demo import DemoModel
from reasond_server.errors.model import ContextExhaustedError
from reasond_server.llm.model import ChatModel, ChatRequest, Finished, Message, ModelFinish, Role, Text
from reasond_server.types import Usage, UsageSource

SUM = "What is (3 + 4) * 12.5?"
SUM_REPLY = "Step 1: 3 + 4 = 7\nStep 2: 7 * 12.5 = 87.5\n<answer>87.5</answer>"


def _request(content: str, *, max_tokens: int = 1000, stop: tuple[str, ...] = ()) -> ChatRequest:
    return ChatRequest(messages=[Message(role=Role.USER, content=content)], max_tokens=max_tokens, stop=stop)


async def _call(model: ChatModel, request: ChatRequest) -> tuple[list[str], Finished]:
    events = [event async for event in model.stream(request)]
    assert isinstance(events[-1], Finished)
    texts = [event.text for event in events if isinstance(event, Text)]
    assert len(texts) == len(events) - 1
    return texts, events[-1]


async def test_a_reply_is_streamed_token_by_token_with_exact_usage() -> None:
    model = DemoModel()
    texts, finished = await _call(model, _request(SUM))
    assert texts == model.counter.split(SUM_REPLY)
    assert finished == Finished(
        reason=ModelFinish.STOP,
        usage=Usage(
            input_tokens=model.counter.count_prompt(_request(SUM).messages),
            output_tokens=len(texts),
            model_calls=1,
            source=UsageSource.REPORTED,
        ),
    )


async def test_the_same_request_gives_the_same_events() -> None:
    request = _request("<question>\nWhy?\n</question>\n<material>\nOnly because. Why not.\n</material>")
    assert await _call(DemoModel(), request) == await _call(DemoModel(), request)


async def test_max_tokens_cuts_the_reply() -> None:
    texts, finished = await _call(DemoModel(), _request(SUM, max_tokens=5))
    assert len(texts) == 5
    assert SUM_REPLY.startswith("".join(texts)) or "".join(texts).startswith("<answer>")
    assert finished.reason is ModelFinish.LENGTH
    assert finished.usage.output_tokens == 5


@pytest.mark.parametrize("max_tokens", range(1, 40))
async def test_an_answer_is_whole_or_it_is_cut_off(max_tokens: int) -> None:
    texts, finished = await _call(DemoModel(), _request(SUM, max_tokens=max_tokens))
    is_whole = "".join(texts).endswith(SUM_REPLY[SUM_REPLY.index("<") :])
    assert is_whole is (finished.reason is ModelFinish.STOP)


async def test_a_stop_string_that_spans_tokens_ends_the_reply_before_it() -> None:
    texts, finished = await _call(DemoModel(), _request(SUM, stop=("</answer>", "nowhere")))
    assert "".join(texts) == SUM_REPLY.removesuffix("</answer>")
    assert (finished.reason, finished.matched_stop) == (ModelFinish.STOP, "</answer>")


async def test_a_beginning_of_a_stop_string_is_not_lost() -> None:
    texts, finished = await _call(DemoModel(), _request(SUM, stop=("</answer>!",)))
    assert "".join(texts) == SUM_REPLY
    assert finished.matched_stop is None


async def test_a_prompt_over_the_window_is_refused_and_says_by_how_much() -> None:
    with pytest.raises(ContextExhaustedError, match="window of the demo model 32,768") as caught:
        await _call(DemoModel(), _request("word " * 40_000))
    assert caught.value.metadata["context_window"] == "32768"
    assert "bounded_context" in caught.value.full_message


async def test_the_window_bounds_prompt_and_reply_together() -> None:
    prompt_tokens = DemoModel().counter.count_prompt(_request(SUM).messages)
    model = DemoModel(context_window=prompt_tokens + 3)
    texts, finished = await _call(model, _request(SUM))
    assert len(texts) == 3
    assert finished.reason is ModelFinish.LENGTH
    texts, finished = await _call(DemoModel(context_window=prompt_tokens), _request(SUM))
    assert (texts, finished.reason) == ([], ModelFinish.LENGTH)


async def test_other_tasks_get_their_turn_while_it_writes() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(count_turns())
    seen = [turns async for event in DemoModel().stream(_request(SUM)) if isinstance(event, Text)]
    task.cancel()
    assert seen[-1] > seen[0]


async def test_closing_ends_the_stream() -> None:
    stream = DemoModel().stream(_request(SUM))
    assert isinstance(await anext(stream), Text)
    await stream.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_cancelling_ends_a_reply() -> None:
    model = DemoModel()
    begun = asyncio.Event()

    async def consume() -> None:
        async for _ in model.stream(_request(SUM)):
            begun.set()

    task = asyncio.create_task(consume())
    await asyncio.wait_for(begun.wait(), 120)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 120)


def test_the_model_says_what_it_is() -> None:
    model = DemoModel()
    assert model.name == "demo"
    assert model.context_window == 32_768
    assert model.counter.is_exact
    assert len(model.warnings) == 1
    assert "fixed rules" in model.warnings[0]
    assert "[llm]" in model.warnings[0]


REMEDY = (
    "The only Remedy is a most serene and quiet Air, such as may perhaps be found on the tops of the highest "
    "Mountains above the grosser Clouds."
)

METAL = "The Object-Metal was two Inches broad, and about one third part of an Inch thick, to keep it from bending."


@pytest.mark.parametrize("window_tokens", [1000, 2000])
@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ("Where may a most serene and quiet air be found?", REMEDY),
        (
            "How broad and how thick was the object-metal?",
            METAL,
        ),
        (
            "Which of the prismatic colours are the most luminous?",
            "But it's farther to be noted, that the most luminous of the Prismatick Colours are the yellow and orange.",
        ),
        ("Who wrote Hamlet?", "The text does not say."),
    ],
)
async def test_a_book_that_is_read_window_by_window_answers_a_question(
    question: str, sentence: str, window_tokens: int
) -> None:
    model = DemoModel()
    notes, rest = "", resources.files("reasond_server").joinpath("demo/data/opticks.txt").read_text(encoding="utf-8")
    assert model.counter.count_text(rest) > 30_000
    segments: list[str] = []
    while rest:
        segments.append(model.counter.head(rest, window_tokens))
        rest = rest[len(segments[-1]) :]
    for number, segment in enumerate(segments, start=1):
        content = (
            f"<question>\n{question}\n</question>\n<notes>\n{notes}\n</notes>\n"
            f'<passage segment="{number}" of="{len(segments)}">\n{segment}\n</passage>'
        )
        texts, _ = await _call(model, _request(content))
        found = re.search("<continue>(.*)</continue>", "".join(texts), re.DOTALL)
        assert found is not None
        notes = model.counter.tail(found[1], 512)
    texts, _ = await _call(model, _request(f"<question>\n{question}\n</question>\n<notes>\n{notes}\n</notes>"))
    assert "".join(texts).endswith(f"<answer>{sentence}</answer>")
