from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.llm.counting import ByteCounter, WordPieceCounter, tokenizers
from reasond_server.llm.model import PIECE_CHARACTERS, Message, Role, TokenCounter
from tests.watched_patterns import watch_patterns

TEXTS = st.text(alphabet=st.one_of(st.sampled_from("abcXYZ  \n\t.,<>/0123456789é你😀_"), st.characters()), max_size=120)
LIMITS = st.integers(min_value=-1, max_value=60)
COUNTERS = st.sampled_from([WordPieceCounter(), ByteCounter()])
WORDS = WordPieceCounter()


@given(TEXTS)
def test_the_pieces_of_a_text_joined_are_the_text(text: str) -> None:
    pieces = WORDS.split(text)
    assert "".join(pieces) == text
    assert all(pieces)
    assert len(pieces) == WORDS.count_text(text)


@given(COUNTERS, TEXTS, LIMITS)
def test_a_head_is_the_longest_beginning_within_the_limit(counter: TokenCounter, text: str, limit: int) -> None:
    head = counter.head(text, limit)
    assert text.startswith(head)
    assert counter.count_text(head) <= max(0, limit)
    assert head == text or counter.count_text(text[: len(head) + 1]) > limit


@given(COUNTERS, TEXTS, LIMITS)
def test_a_tail_is_the_longest_end_within_the_limit(counter: TokenCounter, text: str, limit: int) -> None:
    tail = counter.tail(text, limit)
    assert text.endswith(tail)
    assert counter.count_text(tail) <= max(0, limit)
    assert tail == text or counter.count_text(text[len(text) - len(tail) - 1 :]) > limit


@given(COUNTERS, TEXTS, TEXTS)
def test_a_joined_text_has_no_more_tokens_than_its_parts_and_no_fewer_than_either(
    counter: TokenCounter, one: str, other: str
) -> None:
    joined = counter.count_text(one + other)
    assert joined <= counter.count_text(one) + counter.count_text(other)
    assert joined >= max(counter.count_text(one), counter.count_text(other))


@given(TEXTS)
def test_no_text_has_more_pieces_than_bytes(text: str) -> None:
    assert WORDS.count_text(text) <= ByteCounter().count_text(text)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_runs_longer_than_a_piece_have_as_many_tokens_from_either_side(blanks: int, letters: int, limit: int) -> None:
    text = "x" + " " * blanks + "a" * letters
    tail = WORDS.tail(text, limit)
    assert WORDS.count_text(tail) <= limit
    assert tail == text or WORDS.count_text(text[len(text) - len(tail) - 1 :]) > limit


def test_a_word_takes_the_space_before_it() -> None:
    assert WORDS.split("The angle, 45 degrees.\n\nExtraordinary") == [
        "The",
        " angle",
        ",",
        " 45",
        " degrees",
        ".",
        "\n\n",
        "Extraord",
        "inary",
    ]


def test_characters_of_several_bytes_are_never_cut() -> None:
    counter = ByteCounter()
    assert counter.count_text("é你😀") == 9
    assert counter.head("é你😀", 4) == "é"
    assert counter.head("é你😀", 5) == "é你"
    assert counter.tail("é你😀", 6) == "😀"
    assert counter.tail("é你😀", 7) == "你😀"


def test_a_lone_surrogate_is_counted_and_kept() -> None:
    for counter in (ByteCounter(), WordPieceCounter()):
        assert counter.count_text("a\ud800b") >= 3
        assert counter.head("a\ud800b", 4) in {"a\ud800", "a\ud800b"}
        assert counter.tail("a\ud800b", 4) in {"\ud800b", "a\ud800b"}


def test_a_prompt_costs_its_contents_and_a_constant_for_each_message() -> None:
    messages = [Message(role=Role.SYSTEM, content="Be brief."), Message(role=Role.USER, content="Why?")]
    assert WordPieceCounter(message_overhead=7).count_prompt(messages) == 7 + 3 + 7 + 2
    assert ByteCounter(message_overhead=5, prompt_overhead=11).count_prompt(messages) == 11 + 5 + 9 + 5 + 4
    assert WORDS.is_exact
    assert not ByteCounter().is_exact


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["a", " ", ".", "你", " word", "\n \t", "1"])
@pytest.mark.parametrize("counter", [WordPieceCounter(), ByteCounter()])
def test_two_megabytes_of_anything_are_counted_and_cut_in_linear_time(counter: TokenCounter, unit: str) -> None:
    text = unit * (2_000_000 // len(unit))
    tokens = counter.count_text(text)
    assert counter.tail(text, tokens) == text
    assert len(counter.head(text, 4096)) >= 1365
    assert len(counter.tail(text, 4096)) >= 1365


@pytest.mark.slow
@given(st.text(alphabet="ab1 \n漢<", min_size=1, max_size=50), st.integers(min_value=32_760, max_value=32_776))
def test_a_text_that_is_looked_at_in_parts_has_the_same_pieces(end: str, size: int) -> None:
    """A text counted in parts has the same pieces as the whole text, also if a repetition crosses a boundary."""
    text = (end * size)[:size] + end
    one_look = re.findall(r" ?(?:[^\W\d_]{1,8}|\d{1,3})|\s{1,16}|[\s\S]", text)
    assert WORDS.split(text) == one_look
    assert WORDS.count_text(text) == len(one_look)
    assert WORDS.head(text, len(one_look) - 1) == "".join(one_look[:-1])
    assert WORDS.count_text(WORDS.tail(text, len(one_look) - 1)) == len(one_look) - 1


@pytest.mark.parametrize("unit", ["<", "a", "word ", " ", "\u0301"])
def test_no_expression_reads_more_than_a_piece_of_a_long_text(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = watch_patterns(monkeypatch, tokenizers)
    text = unit * (4 * PIECE_CHARACTERS)
    assert WORDS.count_text(text)
    assert WORDS.head(text, PIECE_CHARACTERS)
    assert WORDS.tail(text, PIECE_CHARACTERS)
    assert max(reading.calls) <= PIECE_CHARACTERS
