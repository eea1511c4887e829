"""The plan of the windows: sizes add up, every text is in a window, and an error with a remedy if one cannot fit."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from reasond_server.context.window_plan import WindowLimits, WindowPlan, plan_windows, suggest_carryover
from reasond_server.errors.request import InvalidConfigError
from reasond_server.llm.counting import ByteCounter, EstimatingCounter, WordPieceCounter
from reasond_server.types import (
    CarryoverMode,
    ReadingProgress,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import TokenCounter


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
    prompts = [[message.content for message in made.build_prompt(window, notes="")] for window in windows]
    assert len({system for system, _ in prompts}) == 1
    assert NONCE not in prompts[0][0]
    last = [user.rpartition(">\n")[2] for _, user in prompts]
    assert len({text for text in last if "passage>" not in text}) == 4
    assert last[0] == last[1]
    assert "Do not answer yet: end with <continue>" in prompts[0][1]
    assert prompts[-1][1].endswith("This is the last window: end with <answer> now.")


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


@pytest.mark.parametrize("mode", list(CarryoverMode))
@pytest.mark.parametrize("counter", [EstimatingCounter(), COUNTER])
def test_the_smallest_window_of_the_seed_works_though_its_tokens_are_estimated(
    mode: CarryoverMode, counter: TokenCounter
) -> None:
    smallest = replace(limits(chunk_size=1024, carryover_size=512), carryover_mode=mode)
    query = "Which of the four gates of the wall is the oldest, and who had it built?"
    material = "The wall has four gates. " * 200
    made = plan_windows(query=query, material=material, limits=smallest, counter=counter, nonce=NONCE)
    assert material in "".join(made.segments)


def test_the_smallest_chunk_size_named_for_a_small_window_is_the_smallest() -> None:
    counter = EstimatingCounter()

    def make(size: int) -> WindowPlan:
        bounds = limits(chunk_size=size, carryover_size=600)
        return plan_windows(query="q", material="", limits=bounds, counter=counter, nonce=NONCE)

    with pytest.raises(InvalidConfigError, match="the smallest that does is") as caught:
        make(1024)
    (smallest,) = map(int, re.findall(r"at least (\d+)", caught.value.violations[0].description))
    make(smallest)
    with pytest.raises(InvalidConfigError):
        make(smallest - 1)


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


@pytest.mark.parametrize(
    ("chunk_size", "carryover_size", "mode"),
    [
        (8192, 4096, "hybrid"),
        (4096, 2048, "hybrid"),
        (4096, 2048, "tail"),
        (16384, 8192, "summary"),
    ],
)
def test_a_smaller_carryover_that_is_suggested_halves_the_segments(
    chunk_size: int, carryover_size: int, mode: str
) -> None:
    """The expected number is within one of that of a real plan, of a text that is not looked at."""
    bounds = replace(limits(chunk_size, carryover_size), carryover_mode=CarryoverMode(mode))
    text = "\n\n".join(f"Paragraph {number} says that light comes from the Sun." for number in range(6000))
    segments = len(plan("When?", text, bounds).segments)
    found = suggest_carryover(query="When?", limits=bounds, counter=COUNTER, nonce=NONCE, segments=segments)
    assert found is not None
    size, expected = found
    real = len(plan("When?", text, replace(bounds, carryover_size=size)).segments)
    assert abs(real - expected) <= 1
    assert 2 * expected <= segments


@pytest.mark.parametrize(("chunk_size", "carryover_size"), [(16384, 512), (16384, 4096), (1024, 512), (4096, 1024)])
def test_no_carryover_is_suggested_where_none_saves_half(chunk_size: int, carryover_size: int) -> None:
    bounds = limits(chunk_size=chunk_size, carryover_size=carryover_size)
    assert suggest_carryover(query="When?", limits=bounds, counter=COUNTER, nonce=NONCE, segments=50) is None
