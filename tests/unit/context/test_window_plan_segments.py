"""Long texts are split at natural boundaries, and no text is lost."""

from __future__ import annotations

import pytest

from reasond_server.context.window_plan import split_text
from reasond_server.errors.model import ContextExhaustedError
from reasond_server.llm.counting import ByteCounter, WordPieceCounter

COUNTER = WordPieceCounter()


def split(text: str, limit: int) -> list[str]:
    segments = list(split_text(text, limit=limit, counter=COUNTER))
    assert "".join(segments) == text
    assert all(COUNTER.count_text(segment) <= limit for segment in segments)
    return segments


def test_a_text_that_fits_is_one_segment_and_an_empty_one_none() -> None:
    assert split("One two three.", 64) == ["One two three."]
    assert split("", 64) == []


def test_paragraphs_are_kept_whole_before_sentences() -> None:
    assert split("One two. Three four five.\n\nSix seven. Eight nine ten.", 11) == [
        "One two. Three four five.\n\n",
        "Six seven. Eight nine ten.",
    ]


def test_sentences_and_lines_are_kept_whole_before_words() -> None:
    assert split("One two three. Four five six. Seven eight.", 6) == [
        "One two three. ",
        "Four five six. ",
        "Seven eight.",
    ]
    assert split("one two three\nfour five six\nseven eight", 5) == [
        "one two three\n",
        "four five six\n",
        "seven eight",
    ]


def test_words_are_kept_whole_before_characters() -> None:
    assert split("unbelievable extraordinary internationally", 3) == [
        "unbelievable ",
        "extraordinary ",
        "internationally",
    ]


def test_a_boundary_that_would_waste_more_than_half_is_not_used() -> None:
    first, *_ = split("A.\n\n" + "word " * 100, 60)
    assert len(first) > 150


def test_an_endless_word_is_cut_hard() -> None:
    segments = split("x" * 1000, 10)
    assert {len(segment) for segment in segments[:-1]} == {80}


def test_chinese_sentences_end_without_a_space() -> None:
    stop = "\u3002"
    segments = split(("\u4f60\u597d" * 20 + stop) * 4, 9)
    assert segments[0].endswith(stop)


@pytest.mark.parametrize(
    "cluster",
    ["e\u0301", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd", "\U0001f1e9\U0001f1ea", "\r\n"],
)
def test_characters_that_belong_together_are_not_cut_apart(cluster: str) -> None:
    segments = split_text(cluster * 300, limit=101, counter=ByteCounter())
    assert "".join(segments) == cluster * 300
    assert all(segment == cluster * (len(segment) // len(cluster)) for segment in segments)


def test_a_heap_of_accents_is_cut_all_the_same() -> None:
    assert len(split("e" + "\u0301" * 5000, 64)) > 1


def test_a_limit_below_one_character_is_refused() -> None:
    with pytest.raises(ContextExhaustedError, match="does not fit a segment of 3 tokens"):
        split_text("\U0001f600", limit=3, counter=ByteCounter())


class Grudging(WordPieceCounter):
    """Counts 100 tokens more for a text that ends with a space, like a tokenizer whose tokens begin with the space."""

    def count_text(self, text: str) -> int:
        return super().count_text(text) + 100 * text.endswith(" ")


def test_a_boundary_that_costs_tokens_is_not_used() -> None:
    segments = split_text("one two three four five six", limit=4, counter=Grudging())
    assert segments == ["one two three four", " five six"]


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["The wall has four gates. ", "x", "\n", " ", "<answer>", "\U0001f600", "\u0301"])
def test_two_megabytes_are_split_in_linear_time(unit: str) -> None:
    text = unit * (2_000_000 // len(unit.encode()))
    split(text, 2800)
