from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from reasond_server.errors.model import ContextExhaustedError, ModelFailedError, ModelUnavailableError
from reasond_server.llm.counting import ByteCounter, WordPieceCounter
from reasond_server.llm.model import (
    ChatModel,
    ChatRequest,
    Finished,
    Message,
    ModelEvent,
    ModelFinish,
    ReasoningText,
    Role,
    Text,
)
from reasond_server.testing import FunctionModel, Reply, ScriptedModel, ScriptError
from reasond_server.types import Usage


def _request(content: str = "Why?", *, max_tokens: int = 100, stop: tuple[str, ...] = ()) -> ChatRequest:
    return ChatRequest(messages=[Message(role=Role.USER, content=content)], max_tokens=max_tokens, stop=stop)


async def _events(model: ChatModel, request: ChatRequest) -> list[ModelEvent]:
    return [event async for event in model.stream(request)]


async def _call(model: ChatModel, request: ChatRequest) -> tuple[str, Finished]:
    events = await _events(model, request)
    assert isinstance(events[-1], Finished)
    return "".join(event.text for event in events if isinstance(event, Text)), events[-1]


async def _consume(model: ChatModel, seen: list[str], begun: asyncio.Event | None = None) -> None:
    async for event in model.stream(_request()):
        assert isinstance(event, Text)
        seen.append(event.text)
        if begun is not None:
            begun.set()


async def test_replies_come_in_their_order_and_requests_are_kept() -> None:
    model = ScriptedModel(["one", Reply(text="two")])
    assert (await _call(model, _request("a")))[0] == "one"
    assert (await _call(model, _request("b")))[0] == "two"
    assert [request.messages[0].content for request in model.requests] == ["a", "b"]
    assert (model.finished, model.closed, model.open_calls) == (2, 0, 0)
    model.assert_consumed()


async def test_a_reply_streams_in_small_pieces_and_reports_what_it_counts() -> None:
    events = await _events(ScriptedModel(["The sum is 42."]), _request("Why?"))
    assert [event.text for event in events if isinstance(event, Text)] == ["The", " sum", " is", " 42", "."]
    assert events[-1] == Finished(
        reason=ModelFinish.STOP, usage=Usage(input_tokens=4 + 2, output_tokens=5, model_calls=1)
    )


async def test_pieces_say_how_a_text_is_cut() -> None:
    model = ScriptedModel([Reply(pieces=["<ans", "wer>4", "2</answer>"]), Reply(text="ab", pieces=["a", "b"])])
    events = await _events(model, _request())
    assert [event.text for event in events if isinstance(event, Text)] == ["<ans", "wer>4", "2</answer>"]
    assert (await _call(model, _request()))[0] == "ab"


def test_pieces_that_contradict_the_text_are_refused() -> None:
    with pytest.raises(ValueError, match="pieces give 'ab' and text is 'abc'"):
        Reply(text="abc", pieces=["a", "b"])


async def test_max_tokens_and_stop_strings_cut_a_reply() -> None:
    model = ScriptedModel(["one two three", "<answer>42</answer> more", "one"], name="m")
    text, finished = await _call(model, _request(max_tokens=2))
    assert (text, finished.reason, finished.usage.output_tokens) == ("one two", ModelFinish.LENGTH, 2)
    text, finished = await _call(model, _request(stop=("</answer>",)))
    assert (text, finished.reason, finished.matched_stop) == ("<answer>42", ModelFinish.STOP, "</answer>")
    text, finished = await _call(model, _request(stop=("e!",)))
    assert (text, finished.matched_stop) == ("one", None)


async def test_a_counter_of_another_kind_bounds_and_counts_the_reply() -> None:
    model = ScriptedModel(["grün gelb"], counter=ByteCounter())
    text, finished = await _call(model, _request(max_tokens=6))
    assert (text, finished.usage.output_tokens) == ("grün ", 6)


async def test_reasoning_comes_first_and_counts() -> None:
    model = ScriptedModel([Reply(text="42", reasoning="let me see"), Reply(text="42", reasoning="let me see")])
    events = await _events(model, _request())
    assert events[0] == ReasoningText(text="let me see")
    assert isinstance(events[-1], Finished)
    assert (events[-1].usage.reasoning_tokens, events[-1].usage.output_tokens) == (3, 4)
    events = await _events(model, _request(max_tokens=2))
    assert events[0] == ReasoningText(text="let me")
    assert isinstance(events[1], Finished)
    assert (events[1].reason, events[1].usage.output_tokens) == (ModelFinish.LENGTH, 2)


async def test_finish_and_usage_can_be_written_down() -> None:
    usage = Usage(input_tokens=1, output_tokens=2, model_calls=1)
    model = ScriptedModel([Reply(text="no", finish=ModelFinish.CONTENT_FILTER, usage=usage)])
    assert await _call(model, _request()) == (
        "no",
        Finished(reason=ModelFinish.CONTENT_FILTER, usage=usage),
    )


@pytest.mark.parametrize(("error_after", "text"), [(None, "some text"), (0, ""), (6, "some t"), (99, "some text")])
async def test_an_error_comes_where_the_script_says(error_after: int | None, text: str) -> None:
    model = ScriptedModel([Reply(text="some text", error=ModelFailedError("broke"), error_after=error_after)])
    seen: list[str] = []
    with pytest.raises(ModelFailedError, match="broke"):
        await _consume(model, seen)
    assert "".join(seen) == text
    assert (model.finished, model.closed) == (1, 0)


async def test_an_error_behind_the_limit_is_not_reached() -> None:
    model = ScriptedModel([Reply(text="one two three", error=ModelFailedError("broke"))])
    assert (await _call(model, _request(max_tokens=1)))[1].reason is ModelFinish.LENGTH


async def test_closing_a_call_before_its_end_is_counted() -> None:
    model = ScriptedModel(["one two three"])
    async with aclosing(model.stream(_request())) as events:
        assert await anext(events) == Text(text="one")
        assert model.open_calls == 1
    assert (model.closed, model.finished, model.open_calls) == (1, 0, 0)


async def test_closing_a_call_after_its_end_is_not_counted() -> None:
    model = ScriptedModel(["one"])
    async with aclosing(model.stream(_request())) as events:
        assert await anext(events) == Text(text="one")
        assert isinstance(await anext(events), Finished)
    assert (model.closed, model.finished) == (0, 1)


@pytest.mark.parametrize(("hold_after", "seen_before"), [(0, []), (1, ["one"]), (2, ["one", " two"])])
async def test_a_held_reply_waits_and_goes_on_when_it_is_let_go(hold_after: int, seen_before: list[str]) -> None:
    hold = asyncio.Event()
    model = ScriptedModel([Reply(text="one two", hold=hold, hold_after=hold_after)])
    stream = model.stream(_request())
    seen = [await anext(stream) for _ in seen_before]
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    assert not waiting.done()
    hold.set()
    rest = [await asyncio.wait_for(waiting, 120)] + [event async for event in stream]
    assert [event.text for event in [*seen, *rest] if isinstance(event, Text)] == ["one", " two"]
    assert [event.text for event in seen if isinstance(event, Text)] == seen_before


async def test_cancelling_a_held_reply_counts_as_closed() -> None:
    model = ScriptedModel([Reply(text="one two", hold=asyncio.Event(), hold_after=1)])
    begun = asyncio.Event()
    task = asyncio.create_task(_consume(model, [], begun))
    await asyncio.wait_for(begun.wait(), 120)
    assert model.open_calls == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 120)
    assert (model.closed, model.open_calls) == (1, 0)


async def test_a_call_beyond_the_script_fails_and_shows_the_prompt() -> None:
    model = ScriptedModel(["one"], name="m")
    await _call(model, _request())
    with pytest.raises(ScriptError, match=r"call 2 of model 'm' has no reply in the script; .* begins 'And now"):
        await _call(model, _request("And now?"))
    with pytest.raises(ScriptError, match="begins ''"):
        await _call(model, ChatRequest(messages=[], max_tokens=1))
    assert issubclass(ScriptError, AssertionError)


async def test_replies_that_nobody_asked_for_fail_the_block() -> None:
    with (
        pytest.raises(ScriptError, match="2 replies of model 'scripted' were not asked for; the first begins 'one'"),
        ScriptedModel(["one", "two"]),
    ):
        pass
    with pytest.raises(ScriptError, match="1 replies"):
        async with ScriptedModel(["one"]):
            pass
    async with ScriptedModel(["one"]) as model:
        await _call(model, _request())


def test_a_block_that_failed_keeps_its_own_error() -> None:
    with pytest.raises(KeyError), ScriptedModel(["one"]):
        raise KeyError("mine")


async def test_a_prompt_over_the_window_is_refused() -> None:
    model = ScriptedModel(["one"], context_window=10, warnings=["scripted"])
    assert (model.context_window, model.warnings, model.name) == (10, ("scripted",), "scripted")
    assert isinstance(model.counter, WordPieceCounter)
    with pytest.raises(ContextExhaustedError, match="the prompt has 15 tokens, and the window 10"):
        await _call(model, _request("ten words " * 5))


async def test_a_function_model_replies_to_what_it_is_asked() -> None:
    def reply(request: ChatRequest) -> str | Reply:
        content = request.messages[-1].content
        if content == "down":
            raise ModelUnavailableError("out for lunch")
        return Reply(text="filtered", finish=ModelFinish.CONTENT_FILTER) if content == "bad" else content.upper()

    model = FunctionModel(reply)
    assert (await _call(model, _request("why?")))[0] == "WHY?"
    assert (await _call(model, _request("bad")))[1].reason is ModelFinish.CONTENT_FILTER
    with pytest.raises(ModelUnavailableError):
        await _call(model, _request("down"))
    assert model.name == "function"
    assert (len(model.requests), model.finished) == (3, 3)
