"""How a window ends a run."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from reasond_server.context.calls import ModelReply
from reasond_server.context.replies import ParsedReply
from reasond_server.context.tags import TagKind
from reasond_server.context.window_endings import EndingJudge, RepetitionGuard
from reasond_server.context.window_plan import Window
from reasond_server.llm.model import ModelFinish
from reasond_server.types import FinishReason, ReadingProgress, Usage

REASONING = Window(reading=None, is_last=False)
LAST = replace(REASONING, is_last=True)
READING = Window(reading=ReadingProgress(segment=1, segment_count=2), is_last=False)
READ_TO_THE_END = Window(reading=ReadingProgress(segment=2, segment_count=2), is_last=False)
NOTHING = ParsedReply(text="", thinking="", kind=None, content="", is_closed=False, is_cut=False)
ANSWER = replace(NOTHING, text="So ", kind=TagKind.ANSWER, content=" 42 ", is_closed=True)


def reply(parsed: ParsedReply, finish: ModelFinish = ModelFinish.STOP, reasoning_tokens: int = 0) -> ModelReply:
    usage = Usage(input_tokens=10, output_tokens=7, reasoning_tokens=reasoning_tokens, model_calls=1)
    return ModelReply(parsed=parsed, finish=finish, usage=usage)


@pytest.mark.parametrize("window", [REASONING, LAST, READ_TO_THE_END])
def test_a_whole_answer_ends_the_run_wherever_everything_was_read(window: Window) -> None:
    ending = EndingJudge().decide(window, reply(ANSWER))
    assert ending is not None
    assert (ending.answer, ending.finish_reason, ending.is_answered) == ("42", FinishReason.ANSWERED, True)


def test_an_answer_before_the_last_segment_is_kept_and_ends_nothing() -> None:
    judge = EndingJudge()
    assert judge.decide(READING, reply(ANSWER)) is None
    assert judge.best == "42"


def test_an_answer_that_was_cut_is_kept_and_ends_nothing_but_the_last_window() -> None:
    cut = reply(replace(ANSWER, is_closed=False), ModelFinish.LENGTH)
    assert EndingJudge().decide(REASONING, cut) is None
    ending = EndingJudge().decide(LAST, cut)
    assert ending is not None
    assert (ending.answer, ending.finish_reason) == ("42", FinishReason.MAX_ITERATIONS)
    assert "cut off after 7 tokens" in ending.warning
    assert not ending.is_answered


def test_text_without_a_tag_answers_where_the_model_stopped_by_itself_but_not_while_reading() -> None:
    said = reply(replace(NOTHING, text=" It is 42. "))
    ending = EndingJudge().decide(REASONING, said)
    assert ending is not None
    assert (ending.answer, ending.finish_reason) == ("It is 42.", FinishReason.ANSWERED_UNTAGGED)
    assert ending.is_answered
    assert EndingJudge().decide(READ_TO_THE_END, said) is None
    assert EndingJudge().decide(REASONING, reply(said.parsed, ModelFinish.LENGTH)) is None


def test_two_empty_replies_in_a_row_end_the_run_with_the_best_answer_and_one_between_forgives() -> None:
    judge, empty = EndingJudge(), reply(NOTHING)
    judge.decide(READING, reply(ANSWER))
    assert judge.decide(REASONING, empty) is None
    assert judge.decide(REASONING, reply(replace(NOTHING, text="hm"), ModelFinish.LENGTH)) is None
    assert judge.decide(REASONING, empty) is None
    ending = judge.decide(REASONING, empty)
    assert ending is not None
    assert (ending.answer, ending.finish_reason) == ("42", FinishReason.TRUNCATED)
    assert ending.warning == "The model wrote nothing in two windows in a row."


@pytest.mark.parametrize(("reported", "named"), [(5, "took 5 of the 7 tokens"), (0, "took 7 of the 7 tokens")])
def test_hidden_reasoning_that_ate_the_last_window_is_truncated_and_its_tokens_are_named(
    reported: int, named: str
) -> None:
    eaten = reply(replace(NOTHING, thinking="hm"), ModelFinish.LENGTH, reasoning_tokens=reported)
    assert EndingJudge().decide(REASONING, eaten) is None
    ending = EndingJudge().decide(LAST, eaten)
    assert ending is not None
    assert ending.finish_reason is FinishReason.TRUNCATED
    assert named in ending.warning


def test_a_content_filter_ends_the_run_before_anything_else() -> None:
    ending = EndingJudge().decide(READING, reply(ANSWER, ModelFinish.CONTENT_FILTER))
    assert ending is not None
    assert (ending.answer, ending.finish_reason) == ("42", FinishReason.CONTENT_FILTERED)


def test_notes_in_the_last_window_are_the_answer_that_is_left() -> None:
    notes = replace(NOTHING, kind=TagKind.CONTINUE, content="so far 41", is_closed=True)
    assert EndingJudge().decide(REASONING, reply(notes)) is None
    ending = EndingJudge().decide(LAST, reply(notes))
    assert ending is not None
    assert (ending.answer, ending.finish_reason) == ("so far 41", FinishReason.MAX_ITERATIONS)


def test_an_answer_within_the_notes_of_the_last_window_is_the_answer_without_its_tags() -> None:
    notes = replace(NOTHING, kind=TagKind.CONTINUE, content="so far 41 <answer> 42", is_closed=True)
    judge = EndingJudge()
    assert judge.decide(REASONING, reply(notes)) is None
    ending = judge.decide(LAST, reply(notes))
    assert ending is not None
    assert (ending.answer, ending.finish_reason, ending.is_answered) == ("42", FinishReason.ANSWERED, True)


WORDS = [
    "gate",
    "wall",
    "north",
    "south",
    "tower",
    "stone",
    "river",
    "bridge",
    "road",
    "field",
    "house",
    "east",
    "west",
    "door",
    "key",
]


def essay(seed: int, words: int = 300) -> str:
    draw = random.Random(seed)  # noqa: S311 - a text to judge, no secret
    return " ".join(draw.choices(WORDS, k=words))


def fires(*windows: tuple[str, str]) -> list[bool]:
    guard = RepetitionGuard()
    return [guard.note_repetition(text=text, notes=notes) for text, notes in windows]


def test_the_same_text_twice_in_a_row_is_a_circle() -> None:
    assert fires(("I count.", "a"), ("i  COUNT.", "b")) == [False, True]


def test_the_same_notes_twice_in_a_row_are_a_circle() -> None:
    assert fires((essay(1), "Progress: half"), (essay(2), "Progress: half")) == [False, True]


def test_nine_in_ten_runs_of_words_shared_are_a_circle() -> None:
    one = essay(1)
    assert fires((one, "a"), (f"{one[:-40]} quite another end", "b")) == [False, True]
    assert fires((one, "a"), (f"{one[: len(one) // 2]} {essay(2)}", "b")) == [False, False]


@pytest.mark.parametrize("text", ["", " \n"])
def test_nothing_written_is_not_repeated(text: str) -> None:
    assert fires((text, ""), (text, "")) == [False, False]


def test_steps_of_one_form_with_other_numbers_are_progress() -> None:
    windows = [
        (" ".join(f"Step {step}: add {step * 7} to {step * 13}, makes {step * 20}." for step in range(at, at + 30)),
         f"Progress: step {at + 30}")
        for at in range(0, 300, 30)
    ]  # fmt: skip
    assert not any(fires(*windows))


def test_coming_back_to_something_later_is_not_a_circle() -> None:
    assert fires((essay(1), "a"), (essay(2), "b"), (essay(1), "c")) == [False, False, False]


def test_scripts_without_spaces_are_judged_by_their_letters() -> None:
    draw = random.Random(3)  # noqa: S311 - a text to judge, no secret
    one, other = ("".join(chr(draw.randrange(0x4E00, 0x5E00)) for _ in range(200)) for _ in range(2))
    assert fires((one, "a"), (one + "\u4e00", "b")) == [False, True]
    assert fires((one, "a"), (other, "b")) == [False, False]


def test_very_long_texts_are_judged_by_a_sample() -> None:
    one = essay(1, 9000)
    assert fires((one, "a"), (f"{one} more", "b"), (essay(2, 9000), "c")) == [False, True, False]
