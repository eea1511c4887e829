"""Ends of calls: reasons, usage, stop strings, the order of events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.errors.model import ModelProtocolError
from reasond_server.llm.model import ModelFinish, ReasoningText, Text
from reasond_server.types import ToolCall, Usage, UsageSource
from tests.faults.backend import ask, request
from tests.faults.upstream import DONE, GOOD, chunk, event, streaming, upstream, usage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.faults.upstream import Conversation

    Script = Callable[[Conversation], Awaitable[None]]
from tests.faults.scripts import OPEN_HEAD


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("stop", ModelFinish.STOP),
        ("eos", ModelFinish.STOP),
        ("length", ModelFinish.LENGTH),
        ("max_tokens", ModelFinish.LENGTH),
        ("content_filter", ModelFinish.CONTENT_FILTER),
    ],
)
async def test_the_reason_of_the_end_is_passed_on(finish: str, reason: ModelFinish) -> None:
    async with upstream(streaming(chunk("Hello"), chunk(finish=finish), DONE)) as server:
        assert (await ask(server)).finished.reason is reason


async def test_a_refusal_of_the_model_is_text_that_ends_as_filtered() -> None:
    said = event({"choices": [{"index": 0, "delta": {"refusal": "I will not."}}]})
    async with upstream(streaming(said, chunk(finish="stop"), DONE)) as server:
        outcome = await ask(server)
        assert outcome.text == "I will not."
        assert outcome.finished.reason is ModelFinish.CONTENT_FILTER


async def test_no_choices_with_a_finish_and_no_text_is_an_empty_answer() -> None:
    async with upstream(streaming(chunk(finish="stop"), DONE)) as server:
        outcome = await ask(server)
        assert outcome.text == ""
        assert outcome.finished.reason is ModelFinish.STOP


USAGES: dict[str, tuple[object, Usage]] = {
    "whole": (
        {
            "prompt_tokens": 40,
            "completion_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 8},
            "completion_tokens_details": {"reasoning_tokens": 3},
        },
        Usage(input_tokens=40, output_tokens=9, cached_input_tokens=8, reasoning_tokens=3, model_calls=1),
    ),
    "deepseek": (
        {"prompt_tokens": 40, "completion_tokens": 9, "prompt_cache_hit_tokens": 50},
        Usage(input_tokens=40, output_tokens=9, cached_input_tokens=40, model_calls=1),
    ),
    "no output": (
        {"prompt_tokens": 40, "completion_tokens": 0},
        Usage(input_tokens=40, output_tokens=5, model_calls=1, source=UsageSource.PARTIAL),
    ),
    "text": (
        {"prompt_tokens": "40", "completion_tokens": "9"},
        Usage(input_tokens=40, output_tokens=9, model_calls=1),
    ),
    "no prompt": (
        {"completion_tokens": 9},
        Usage(input_tokens=90, output_tokens=9, model_calls=1, source=UsageSource.PARTIAL),
    ),
}
NO_USAGES: tuple[object, ...] = (
    None,
    {},
    [],
    "x",
    {"prompt_tokens": -1},
    {"prompt_tokens": 1e9, "completion_tokens": True},
)
USAGES |= {
    f"wrong {wrong}": (wrong, Usage(input_tokens=90, output_tokens=5, model_calls=1, source=UsageSource.ESTIMATED))
    for wrong in NO_USAGES
}


@pytest.mark.parametrize(("reported", "expected"), USAGES.values(), ids=USAGES)
async def test_plausible_usage_is_kept_as_reported_and_other_usage_is_counted_here(
    reported: object, expected: Usage
) -> None:
    events = (chunk("Hello"), chunk(finish="stop"), event({"choices": [], "usage": reported}), DONE)
    async with upstream(streaming(*events)) as server:
        assert (await ask(server)).finished.usage == expected


async def test_usage_is_read_from_every_known_place() -> None:
    spent = {"prompt_tokens": 40, "completion_tokens": 9}
    first = event(
        {
            "choices": [{"index": 0, "delta": {"content": "Hello"}}],
            "usage": {"prompt_tokens": 40, "completion_tokens": 1},
        }
    )
    last = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": spent}]})
    async with upstream(streaming(first, last, DONE)) as server:
        assert (await ask(server)).finished.usage == Usage(input_tokens=40, output_tokens=9, model_calls=1)


async def test_a_prompt_that_the_server_cut_is_warned_of() -> None:
    long = "word " * 2000
    events = (chunk("Hello"), chunk(finish="stop"), usage(1000, 1), DONE)
    async with upstream(streaming(*events)) as server:
        (warning,) = (await ask(server, request(long))).finished.warnings
    assert warning.startswith("The prompt was truncated upstream: the model server reports 1000 tokens")


async def test_a_report_that_cannot_be_true_is_replaced_and_warned_of() -> None:
    events = (chunk("Hello"), chunk(finish="stop"), usage(999_999_999, 999_999_999), DONE)
    async with upstream(streaming(*events)) as server:
        finished = (await ask(server)).finished
    assert finished.usage.total_tokens < 200
    assert finished.usage.source is UsageSource.ESTIMATED
    assert ["reports 999999999 tokens of the" in warning for warning in finished.warnings] == [True, True]


async def test_parameters_that_were_left_out_are_named_in_the_result() -> None:
    from reasond_server.llm.profiles import ModelProfile  # noqa: PLC0415 - only this test names a profile

    async with upstream(streaming(*GOOD)) as server:
        outcome = await ask(server, request(seed=3), profile=ModelProfile(sampling=False))
    assert [warning.partition(" ")[0] for warning in outcome.finished.warnings] == ["temperature", "seed"]


async def test_a_stop_string_ends_the_call_here_if_the_server_ignores_it() -> None:
    async def ignore_stop(conversation: Conversation) -> None:
        await conversation.send(OPEN_HEAD + chunk("answer</a") + chunk("nswer> and on and"))
        await conversation.until_gone()

    async with upstream(ignore_stop) as server:
        outcome = await ask(server, request(stop=["</answer>"]))
        assert outcome.text == "answer"
        assert outcome.finished.reason is ModelFinish.STOP
        assert outcome.finished.matched_stop == "</answer>"
        assert outcome.finished.usage.source is UsageSource.ESTIMATED
        await server.conversations[0].until_gone()


async def test_advisory_stop_strings_end_nothing_here_and_cause_no_warning() -> None:
    from reasond_server.llm.profiles import ModelProfile  # noqa: PLC0415 - as above

    asked = request(stop=["</answer>"], is_stop_advice=True)
    async with upstream(streaming(chunk("a</answer>b"), chunk(finish="stop"), DONE)) as server:
        outcome = await ask(server, asked, profile=ModelProfile(max_stops=0))
        assert outcome.text == "a</answer>b"
        assert not outcome.finished.warnings
        await ask(server, asked)
        assert ["stop" in one.json for one in server.conversations] == [False, True]


async def test_text_held_back_for_a_stop_string_is_not_lost_at_a_fault() -> None:
    async with upstream(streaming(chunk("answer</a"))) as server:
        outcome = await ask(server, request(stop=["</answer>"]))
        assert outcome.text == "answer</a"
        assert isinstance(outcome.error, ModelProtocolError)


async def test_all_text_of_one_read_is_one_event() -> None:
    async with upstream(streaming(*[chunk("ab") for _ in range(50)], chunk(finish="stop"), DONE)) as server:
        outcome = await ask(server)
        assert outcome.text == "ab" * 50
        assert sum(isinstance(one, Text) for one in outcome.events) <= 3


async def test_reasoning_and_calls_of_tools_come_in_their_order() -> None:
    def delta(**fields: Any) -> bytes:
        return event({"choices": [{"index": 0, "delta": fields}]})

    events = (
        delta(reasoning_content="hm"),
        delta(content="<thi"),
        delta(content="nk>so</think>\n\nHello"),
        delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x"'}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": ":1}"}}]),
        chunk(finish="tool_calls"),
        DONE,
    )
    async with upstream(streaming(*events)) as server:
        outcome = await ask(server)
    assert outcome.reasoning == "hmso"
    assert outcome.text == "Hello"
    assert outcome.events[-2] == ToolCall(call_id="a", name="f", arguments_json='{"x":1}')
    assert outcome.finished.reason is ModelFinish.TOOL_CALLS
    assert isinstance(outcome.events[0], ReasoningText)
