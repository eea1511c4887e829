"""The guard fires on circles and leaves progress alone, however alike its steps look."""

from __future__ import annotations

import random

import pytest

from reasond_server.context.repetition import RepetitionGuard

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
    return [guard.repeats(text=text, notes=notes) for text, notes in windows]


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
