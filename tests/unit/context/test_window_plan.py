"""The plan of the windows: sizes add up, every text is in a window, and an error with a remedy if one cannot fit."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from reasond_server.context.window_plan import StretchedCounter, WindowLimits, WindowPlan, plan_windows
from reasond_server.errors import ContextExhaustedError, InvalidConfigError
from reasond_server.llm.counting import ByteCounter, EstimatingCounter, WordPieceCounter
from reasond_server.llm.metering import MeteredModel
from reasond_server.strategies.bounded_context import BoundedContext, BoundedContextConfig
from reasond_server.strategies.strategy import Outcome, RunContext, Step
from reasond_server.testing import FunctionModel, Reply
from reasond_server.types import (
    BoundedContextMetrics,
    BoundedContextStep,
    Budget,
    CarryoverMode,
    FinishReason,
    ReadingProgress,
    Task,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reasond_server.llm.model import ChatModel, ChatRequest, Message, TokenCounter


COUNTER = WordPieceCounter()
NONCE = "qzkvhwbnmcjtrxplaoysdgeufiqh"


def limits(
    chunk_size: int = 1024, carryover_size: int = 512, max_segments: int = 512, max_iterations: int = 3
) -> WindowLimits:
    return WindowLimits(
        chunk_size=chunk_size,
        carryover_size=carryover_size,
        max_segments=max_segments,
        max_iterations=max_iterations,
    )


def plan(query: str = "How long?", material: str = "", bounds: WindowLimits | None = None) -> WindowPlan:
    return plan_windows(query=query, material=material, limits=bounds or limits(), counter=COUNTER, nonce=NONCE)


def test_without_material_there_is_only_reasoning() -> None:
    windows = list(plan().list_windows())
    assert [window.reading for window in windows] == [None, None, None]
    assert [window.is_last for window in windows] == [False, False, True]
    assert all(window.may_answer for window in windows)


def test_material_that_leaves_a_quarter_of_the_window_is_shown_once_whole() -> None:
    made = plan(material="A wall.")
    first, second, _ = made.list_windows()
    assert not made.segments
    assert f"<material {NONCE}>\nA wall.\n</material {NONCE}>" in made.build_prompt(first, notes="")[1].content
    assert "<material" not in made.build_prompt(second, notes="n")[1].content


def test_the_border_between_whole_and_segments_is_a_quarter_left_to_write_in() -> None:
    words = 0
    while not plan(material="wall " * words).segments:
        words += 1
    whole = plan(material="wall " * (words - 1))
    prompt = whole.build_prompt(next(whole.list_windows()), notes="")
    # The plan counts the longest instructions, and the first window may have shorter ones.
    assert 768 - 20 <= COUNTER.count_prompt(prompt) <= 768


def test_long_material_is_read_in_segments_before_reasoning() -> None:
    made = plan(material="The wall has four gates. " * 200)
    windows = list(made.list_windows())
    count = len(made.segments)
    assert count > 2
    assert [window.reading for window in windows[:count]] == [
        ReadingProgress(segment=number, segment_count=count) for number in range(1, count + 1)
    ]
    assert [window.may_answer for window in windows] == [False] * (count - 1) + [True] * 4
    assert not any(window.is_last for window in windows[:count])
    assert f'<passage {NONCE} segment="2" of="{count}">' in made.build_prompt(windows[1], notes="")[1].content


def test_every_kind_of_window_has_its_instructions() -> None:
    made = plan(material="The wall has four gates. " * 200)
    windows = list(made.list_windows())
    systems = [made.build_prompt(window, notes="")[0].content for window in windows]
    assert len(set(systems)) == 4
    assert systems[0] == systems[1]
    assert "Do not answer yet: end with <continue>. Only tags marked" in systems[0]
    assert "This is the last window: end with <answer> now. Only tags marked" in systems[-1]
    assert all(system.count(NONCE) == 1 for system in systems)


def test_full_notes_and_a_full_segment_leave_an_eighth_to_write_in() -> None:
    made = plan(material="wall " * 3000)
    notes = "note " * 512
    for window in made.list_windows():
        messages = made.build_prompt(window, notes=notes)
        assert COUNTER.count_prompt(messages) <= 1024 - 128


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(
    chunk_size=st.sampled_from([1100, 2048, 4096]),
    mode=st.sampled_from(CarryoverMode),
    counter=st.sampled_from([COUNTER, EstimatingCounter(), ByteCounter()]),
    question=st.sampled_from(["How long?", "How long is the wall? " * 40]),
    paragraphs=st.lists(
        st.sampled_from(["The wall has four gates. " * 12, "ab " * 30, "#!" * 150, "Стена. " * 20]),
        min_size=8,
        max_size=12,
    ),
    joint=st.sampled_from(["\n\n", " ", ""]),
)
def test_there_are_no_more_segments_than_the_cost_formula_says(
    chunk_size: int,
    mode: CarryoverMode,
    counter: TokenCounter,
    question: str,
    paragraphs: Sequence[str],
    joint: str,
) -> None:
    bounds = replace(limits(chunk_size, max_segments=4096), carryover_mode=mode)
    text = joint.join([*paragraphs] * 4)
    try:
        made = plan_windows(query=question, material=text, limits=bounds, counter=counter, nonce=NONCE)
    except InvalidConfigError:
        reject()
    tokens = counter.count_text("".join(made.segments))
    room = chunk_size * 7 / 8 - bounds.carryover_size - made.prompt_tokens - made.reserve_tokens
    assert made.capacity_tokens - made.effective_capacity_tokens == bounds.max_iterations * made.prompt_tokens
    assert len(made.segments) <= 1 + 2 * tokens / room


def test_a_long_query_is_pinned_at_both_ends_and_its_middle_is_read() -> None:
    query = "What follows?\n\n" + "The wall has four gates. " * 400 + "\n\nHow many gates?"
    made = plan(query=query, material="An appendix.")
    assert made.is_question_clipped
    assert made.question == "What follows?\n[...]\nHow many gates?"
    middle = query.removeprefix("What follows?").removesuffix("How many gates?")
    assert "".join(made.segments) == f"{middle}\n\nAn appendix."
    assert COUNTER.count_text(made.question) <= 256


def test_a_query_of_one_long_paragraph_is_clipped_and_no_character_is_lost() -> None:
    query = "\n".join(f"line {number}" for number in range(2000))
    made = plan(query=query)
    head, tail = made.question.split("\n[...]\n")
    assert head + "".join(made.segments) + tail == query
    assert COUNTER.count_text(made.question) <= 256


def test_blank_ends_of_a_long_query_are_not_taken_for_its_paragraphs() -> None:
    made = plan(query="\n\nFirst.\n\n" + "wall " * 2000 + "\n\nLast.\n\n")
    assert made.question == "\n\nFirst.\n[...]\nLast.\n\n"


def test_the_question_never_takes_more_than_a_quarter_of_the_window() -> None:
    wide = limits(chunk_size=8192, carryover_size=512)
    assert not plan(query="word " * 2040, bounds=wide).is_question_clipped
    assert plan(query="word " * 2060, bounds=wide).is_question_clipped


def test_capacities_are_those_of_the_business_rule() -> None:
    made = plan(bounds=limits(chunk_size=8192, carryover_size=4096, max_iterations=5))
    assert made.capacity_tokens == 24576
    assert made.effective_capacity_tokens == 24576 - 5 * made.prompt_tokens


def test_the_smallest_chunk_size_that_works_is_named_and_works() -> None:
    with pytest.raises(InvalidConfigError, match="the smallest that does is") as caught:
        plan(bounds=limits(chunk_size=4096, carryover_size=4096))
    (violation,) = caught.value.violations
    assert violation.field == "chunk_size"
    smallest, largest = map(int, re.findall(r"at (?:least|most) (\d+)", violation.description))
    plan(bounds=limits(chunk_size=smallest, carryover_size=4096))
    plan(bounds=limits(chunk_size=4096, carryover_size=largest))
    with pytest.raises(InvalidConfigError):
        plan(bounds=limits(chunk_size=smallest - 1, carryover_size=4096))
    with pytest.raises(InvalidConfigError):
        plan(bounds=limits(chunk_size=4096, carryover_size=largest + 1))


def test_no_remedy_is_named_that_is_out_of_range() -> None:
    tiny = limits(chunk_size=1024, carryover_size=600)
    with pytest.raises(InvalidConfigError) as caught:
        plan_windows(query="q", material="", limits=tiny, counter=ByteCounter(), nonce=NONCE)
    assert "raise it to at least" in caught.value.message
    assert "lower carryover_size" not in caught.value.message
    huge = limits(chunk_size=32768, carryover_size=32700)
    with pytest.raises(InvalidConfigError) as caught:
        plan(bounds=huge)
    assert "raise it" not in caught.value.message
    assert "lower carryover_size to at most" in caught.value.message


def test_too_many_segments_are_refused_with_the_number_needed() -> None:
    material = "The wall has four gates. " * 400
    with pytest.raises(InvalidConfigError, match="max_segments is 3") as caught:
        plan(material=material, bounds=limits(max_segments=3))
    (needed,) = map(int, re.findall(r"at least (\d+)", caught.value.message))
    assert len(plan(material=material, bounds=limits(max_segments=needed)).segments) == needed


@pytest.mark.slow
def test_more_segments_than_any_limit_allows_are_refused_with_other_remedies() -> None:
    with pytest.raises(InvalidConfigError) as caught:
        plan(material="x " * 900_000, bounds=limits(max_segments=4096))
    assert "raise it to" not in caught.value.message
    assert "raise chunk_size" in caught.value.message


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


async def test_a_counter_blind_to_most_of_a_text_ends_the_run_before_a_window_is_too_large() -> None:
    model = Served(note_window, Flattering(is_blind=True))
    with pytest.raises(ContextExhaustedError, match="shorter passages do not help") as caught:
        await run(model, material="((([[[]]])))" * 306, chunk_size=4096)
    assert "Raise chunk_size" in caught.value.remedy
    assert all(REAL.count_prompt(request.messages) + request.max_tokens <= 4096 for request in model.requests)


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
