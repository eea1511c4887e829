"""Windows by the count of a server: none is too large, no text is lost silently, and what was paid for is kept."""

from __future__ import annotations

import asyncio
import re
from itertools import count
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reasond_server.context.window_fitting import StretchedCounter
from reasond_server.errors.model import ContextExhaustedError
from reasond_server.llm.counting import EstimatingCounter, WordPieceCounter
from reasond_server.llm.metered_model import MeteredModel
from reasond_server.strategies.bounded_context import BoundedContext, BoundedContextConfig
from reasond_server.strategies.strategy import Outcome, RunContext, Step
from reasond_server.testing import FunctionModel, Reply
from reasond_server.types import (
    BoundedContextMetrics,
    BoundedContextStep,
    Budget,
    FinishReason,
    Task,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reasond_server.llm.model import ChatModel, ChatRequest, Message, TokenCounter

REAL = WordPieceCounter()
SIGNS = re.compile(r"\W")
NUMBERS = count()


class Flattering:
    """Counts too few tokens: divides by `divisor`, and ignores signs if it is blind."""

    def __init__(self, *, divisor: int = 1, is_blind: bool = False) -> None:
        self._divisor = divisor
        self._is_blind = is_blind

    is_exact = False

    def count_text(self, text: str) -> int:
        return -(-REAL.count_text(SIGNS.sub("", text) if self._is_blind else text) // self._divisor)

    def count_prompt(self, messages: Sequence[Message]) -> int:
        return sum(4 + self.count_text(message.content) for message in messages)

    def head(self, text: str, tokens: int) -> str:
        low, high = 0, len(text)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.count_text(text[:middle]) <= tokens else (low, middle - 1)
        return text[:low]

    def tail(self, text: str, tokens: int) -> str:
        return self.head(text[::-1], tokens)[::-1]


class Served(FunctionModel):
    """A model whose server counts exactly, unless `tell` returns None; its own counter is not exact."""

    def __init__(
        self,
        reply: Callable[[ChatRequest], str | Reply],
        counter: TokenCounter,
        tell: Callable[[int], int | None] = lambda tokens: tokens,
    ) -> None:
        super().__init__(reply, counter=counter)
        self._tell = tell

    @property
    def has_native_tools(self) -> bool:
        return False

    async def count_exactly(self, messages: Sequence[Message]) -> int | None:
        return self._tell(REAL.count_prompt(messages))


async def run(
    model: ChatModel, *, material: str = "", query: str = "How many gates?", **config: object
) -> tuple[list[BoundedContextStep], Outcome]:
    checked = BoundedContextConfig.model_validate(
        {
            "chunk_size": 2048,
            "carryover_size": 512,
            "carryover_mode": "tail",
            **config,
        }
    )
    events = [
        event
        async for event in BoundedContext().run(
            Task(query=query, material=material), RunContext(config=checked, model=model)
        )
    ]
    steps = [event.detail for event in events if isinstance(event, Step)]
    outcome = events[-1]
    assert isinstance(outcome, Outcome)
    return [step for step in steps if isinstance(step, BoundedContextStep)], outcome


def passages(model: Served) -> str:
    contents = [request.messages[-1].content for request in model.requests]
    found = (re.search(r"<(passage|material)[^>\n]*>\n(.*)\n</\1[^>\n]*>", content, re.DOTALL) for content in contents)
    return "".join(one[2] for one in found if one)


def note_window(request: ChatRequest) -> str:
    """Return notes that differ in every window, so that no run repeats itself."""
    return f"<continue>seen {len(request.messages[-1].content)} {next(NUMBERS)}</continue>"


TEXTS = st.lists(
    st.tuples(
        st.sampled_from(["The wall has four gates. ", "((([[[]]])))", "....", "word ", "\n\n"]), st.integers(1, 200)
    ),
    max_size=6,
).map(lambda rows: "".join(unit * times for unit, times in rows)[:15_000])
COUNTERS = st.sampled_from([Flattering(divisor=2), Flattering(divisor=3), Flattering(divisor=5)])


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(TEXTS, COUNTERS)
def test_with_a_counter_several_times_too_low_no_window_is_too_large_and_nothing_is_lost(
    text: str, counter: Flattering
) -> None:
    model = Served(note_window, counter)
    steps, outcome = asyncio.run(run(model, material=text, chunk_size=4096))
    for request in model.requests:
        assert REAL.count_prompt(request.messages) + request.max_tokens <= 4096
        assert request.max_tokens >= 4096 // 16
    assert passages(model) == text
    segments = [step.reading.segment for step in steps if step.reading is not None]
    assert segments == list(range(1, len(segments) + 1))
    assert all(step.is_window_exact for step in steps)
    assert len(steps) - len(segments) == 5
    assert outcome.finish_reason is FinishReason.MAX_ITERATIONS
    assert isinstance(outcome.metrics, BoundedContextMetrics)
    assert outcome.metrics.is_window_exact


async def test_a_prompt_that_fits_is_sent_as_planned_and_writes_what_the_server_leaves() -> None:
    model = Served(lambda _: "<answer>4</answer>", EstimatingCounter())
    steps, _ = await run(model, material="The wall has four gates.")
    (request,) = model.requests
    assert request.max_tokens == 2048 - REAL.count_prompt(request.messages)
    assert steps[0].is_window_exact


async def test_a_server_that_does_not_tell_leaves_the_estimate_and_says_so() -> None:
    model = Served(lambda _: "<answer>4</answer>", EstimatingCounter(), tell=lambda _: None)
    steps, outcome = await run(model)
    (request,) = model.requests
    assert request.max_tokens == 2048 - EstimatingCounter().count_prompt(request.messages)
    assert not steps[0].is_window_exact
    assert isinstance(outcome.metrics, BoundedContextMetrics)
    assert not outcome.metrics.is_window_exact


async def test_one_window_that_was_not_counted_makes_the_whole_run_inexact() -> None:
    told = iter([True, False, True, True, True])
    model = Served(note_window, EstimatingCounter(), tell=lambda tokens: tokens if next(told) else None)
    steps, outcome = await run(model)
    assert [step.is_window_exact for step in steps] == [True, False, True, True, True]
    assert isinstance(outcome.metrics, BoundedContextMetrics)
    assert not outcome.metrics.is_window_exact


async def test_notes_are_cut_to_what_the_server_takes_for_their_size() -> None:
    model = Served(lambda request: "<continue>" + f"note{next(NUMBERS)} " * request.max_tokens, Flattering(divisor=8))
    await run(model, chunk_size=2048, carryover_size=512)
    for request in model.requests:
        assert REAL.count_prompt(request.messages) + request.max_tokens <= 2048
        assert request.max_tokens >= 2048 // 16
    assert len(model.requests) == 5


async def test_a_question_that_is_too_long_by_the_server_is_clipped_and_its_middle_is_read() -> None:
    query = "How many gates?\n\n" + "The wall has four gates. " * 400 + "\n\nCount them."
    model = Served(note_window, Flattering(divisor=6))
    _, outcome = await run(model, query=query)
    assert all(REAL.count_prompt(request.messages) + request.max_tokens <= 2048 for request in model.requests)
    assert ("The wall has four gates. " * 400).strip() in passages(model)
    assert any("longer than its share" in warning for warning in outcome.warnings)


@pytest.mark.parametrize(("units", "fits"), [(318, True), (400, False)], ids=["no room to write", "no room to read"])
async def test_a_counter_blind_to_most_of_a_text_ends_the_run_before_a_window_is_too_large(
    units: int, *, fits: bool
) -> None:
    model = Served(note_window, Flattering(is_blind=True))
    with pytest.raises(ContextExhaustedError, match="shorter passages do not help") as caught:
        await run(model, material="((([[[]]])))" * units, chunk_size=4096)
    assert "Raise chunk_size" in caught.value.remedy
    assert (int(caught.value.metadata["prompt_tokens"]) < 4096) is fits
    assert not model.requests


async def test_where_nothing_helps_the_run_says_what_to_change() -> None:
    model = Served(note_window, Flattering(), tell=lambda _: 5000)
    with pytest.raises(ContextExhaustedError, match="a prompt of 5000 tokens leaves 0 of chunk_size 2048") as caught:
        await run(model)
    assert "Raise chunk_size" in caught.value.remedy
    assert "the smallest that does is" in caught.value.remedy
    assert not model.requests


async def test_a_server_that_always_counts_one_too_many_is_given_up() -> None:
    model = Served(note_window, Flattering(), tell=lambda _: 2047)
    with pytest.raises(ContextExhaustedError, match="leaves 1 of chunk_size 2048"):
        await run(model, material="The wall has four gates. " * 40)


async def test_a_prompt_that_stays_too_large_however_little_it_shows_is_given_up() -> None:
    class Stubborn(Flattering):
        def count_prompt(self, messages: Sequence[Message]) -> int:
            return 2000 if "gates. " in messages[-1].content else super().count_prompt(messages)

    model = Served(note_window, Stubborn(), tell=lambda _: None)
    with pytest.raises(ContextExhaustedError, match="leaves 48 of chunk_size 2048") as caught:
        await run(model, material="The wall has four gates. " * 600, max_segments=4096)
    assert caught.value.remedy == "Raise chunk_size or lower carryover_size."


class Lettered(Served):
    """Its server takes a token for each letter, which it tells, and 150 for its template."""

    async def count_exactly(self, messages: Sequence[Message]) -> int | None:
        return self._tell(150 + sum(len(message.content) for message in messages))


async def test_text_that_takes_more_than_what_came_before_does_not_end_a_run_that_has_begun() -> None:
    text = "The wall has four gates. " * 150 + " \n" * 1500 + "The wall has four gates. " * 150
    model = Lettered(note_window, Flattering())
    _, outcome = await run(model, material=text, carryover_mode="hybrid", max_segments=4096)
    assert passages(model) == text
    assert len(model.requests) > 37
    for request in model.requests:
        assert 150 + sum(len(message.content) for message in request.messages) + request.max_tokens <= 2048
        assert request.max_tokens >= 2048 // 16
    assert outcome.finish_reason is FinishReason.MAX_ITERATIONS


@pytest.mark.parametrize("material", ["", "The wall has four gates. " * 400])
async def test_a_window_too_small_by_the_servers_count_is_refused_before_the_first_call(material: str) -> None:
    model = Lettered(note_window, Flattering())
    with pytest.raises(ContextExhaustedError, match=r"a prompt of \d+ tokens leaves \d+ of chunk_size 1536") as caught:
        await run(model, material=material, chunk_size=1536)
    assert not model.requests
    found = re.search(r"the smallest that does is (\d+), got 1536", caught.value.remedy)
    assert found is not None
    await run(model, material=material, chunk_size=int(found[1]), max_segments=4096)


async def test_long_material_is_planned_anew_in_a_thread() -> None:
    model = Served(note_window, Flattering(divisor=2))
    text = "The wall has four gates. " * 2400
    await run(model, material=text, chunk_size=16384, max_segments=4096)
    assert passages(model) == text


async def test_an_estimate_that_learns_better_in_the_run_replans_what_is_left() -> None:
    def reply(request: ChatRequest) -> Reply:
        tokens = 2 * REAL.count_prompt(request.messages)
        return Reply(text="<continue>seen</continue>", usage=Usage(input_tokens=tokens, output_tokens=9, model_calls=1))

    counter = EstimatingCounter()
    model = Served(reply, counter, tell=lambda _: None)
    text = "The wall has four gates. " * 2000
    await run(MeteredModel(model=model, budget=Budget()), material=text, chunk_size=8192)
    assert passages(model) == text
    assert counter.calibration.reports > 5
    last = model.requests[-6].messages
    assert 2 * REAL.count_prompt(last) + model.requests[-6].max_tokens <= 8192


def test_a_stretched_counter_keeps_the_order_of_counts_and_cuts() -> None:
    counter = StretchedCounter(REAL, thousandths=1500)
    text = "wall " * 100
    assert counter.count_text(text) == -(-REAL.count_text(text) * 3 // 2)
    assert counter.count_text(counter.head(text, 50)) <= 50 < counter.count_text(counter.head(text, 52))
    assert counter.count_text(counter.tail(text, 50)) <= 50
    assert not counter.is_exact


class Untold(FunctionModel):
    """Its server takes a token for each letter, and tells only afterwards, as the usage of a call."""

    def _count_usage(self, request: ChatRequest, output_tokens: int, reasoning_tokens: int) -> Usage:
        prompt = sum(len(message.content) for message in request.messages)
        return Usage(input_tokens=prompt, output_tokens=output_tokens, reasoning_tokens=reasoning_tokens, model_calls=1)


def answer_at_last(request: ChatRequest) -> str:
    return "<answer>4</answer>" if "This is the last window" in request.messages[-1].content else note_window(request)


@pytest.mark.parametrize("mode", ["hybrid", "tail"])
async def test_an_estimate_that_outgrows_its_windows_ends_the_run_with_an_answer_from_the_notes(mode: str) -> None:
    model = Untold(answer_at_last, counter=EstimatingCounter())
    metered = MeteredModel(model=model, budget=Budget())
    steps, outcome = await run(
        metered, material="The wall has four gates. " * 900, chunk_size=1664, carryover_size=640, carryover_mode=mode
    )
    assert len(steps) == len(model.requests) > 1
    assert steps[-1].reading is None
    assert "<passage" not in model.requests[-1].messages[-1].content
    assert steps[-2].carryover in model.requests[-1].messages[-1].content
    assert (outcome.answer, outcome.finish_reason) == ("4", FinishReason.TRUNCATED)
    (warning,) = (each for each in outcome.warnings if "was not read to its end" in each)
    assert "the smallest that does is" in warning


async def test_max_segments_passed_during_the_run_ends_it_with_what_was_read() -> None:
    model = Lettered(answer_at_last, Flattering())
    text = "The wall has four gates. " * 300 + " \n" * 9000
    steps, outcome = await run(model, material=text, max_segments=50)
    assert [step.reading.segment for step in steps if step.reading is not None] == list(range(1, 51))
    assert steps[-1].reading is None
    assert text.startswith(passages(model))
    assert (outcome.answer, outcome.finish_reason) == ("4", FinishReason.TRUNCATED)
    (warning,) = outcome.warnings
    assert re.search(r"was not read to its end: max_segments is 50, but the material needs \d+ segments", warning)


async def test_a_server_that_refuses_a_later_window_as_too_long_leaves_the_best_answer_so_far() -> None:
    replies = iter(
        [
            Reply(text="<answer>4</answer>"),
            Reply(text="<continue>more</continue>"),
            Reply(error=ContextExhaustedError("the prompt is too long", remedy="Shorten it."), error_after=0),
        ]
    )
    model = Served(lambda _: next(replies), REAL)
    steps, outcome = await run(model, material="The wall has four gates. " * 600)
    assert len(steps) == 2
    assert (outcome.answer, outcome.finish_reason) == ("4", FinishReason.TRUNCATED)
    assert any("the prompt is too long" in warning for warning in outcome.warnings)
