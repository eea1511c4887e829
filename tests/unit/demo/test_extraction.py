from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.demo.extraction import MAX_SENTENCE_CHARACTERS, split_question, split_sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("Split over\ntwo lines. Next.", ["Split over two lines.", "Next."]),
        ("A heading\n\nA paragraph.", ["A heading", "A paragraph."]),
        ("Let ADE [in _Fig._ 27.] be it. Then", ["Let ADE [in _Fig._ 27.] be it.", "Then"]),
        ("Mr. Newton met Dr. I. Barrow. They spoke.", ["Mr. Newton met Dr. I. Barrow.", "They spoke."]),
        ("See _Sect._ II. Prop. IV. here", ["See _Sect._ II. Prop. IV. here"]),
        ("He said (aloud.) Then he left.", ["He said (aloud.)", "Then he left."]),
        ('He said "No more." Then left.', ['He said "No more."', "Then left."]),
        ("It is 3.5 inches. ok", ["It is 3.5 inches. ok"]),
        ("光の書。色の書。", ["光の書。", "色の書。"]),
        ("Code:\n```python\nx = 1\n```\nDone.", ["Code:", "x = 1", "Done."]),
        ("Run ```x``` now.", ["Run x now."]),
        ("  \n\n ", []),
    ],
)
def test_a_text_is_cut_into_its_sentences(text: str, expected: list[str]) -> None:
    assert split_sentences(text) == expected


def test_a_sentence_without_end_is_cut_between_words() -> None:
    found = split_sentences("word " * 1000)
    assert all(len(one) <= MAX_SENTENCE_CHARACTERS for one in found)
    assert " ".join(found) == ("word " * 1000).strip()
    assert [len(one) for one in split_sentences("x" * 2000)] == [800, 800, 400]


@given(st.text(alphabet="ab. \n?!\"'_[]MrFig1`~", max_size=200))
def test_no_character_is_lost_but_blanks_and_fences(text: str) -> None:
    def strip_marks(value: str) -> str:
        return "".join(char for char in value if not char.isspace() and char not in "`~")

    found = split_sentences(text)
    assert all(one == " ".join(one.split()) and one for one in found)
    if "`" not in text and "~" not in text:
        assert strip_marks("".join(found)) == strip_marks(text)


@pytest.mark.parametrize(
    "text", ["." + " " * 500_000 + "a", "A. " * 150_000, "\n " * 200_000, "a" * 500_000, "```\n" * 100_000]
)
def test_hostile_texts_are_cut_in_linear_time(text: str) -> None:
    assert all(len(one) <= MAX_SENTENCE_CHARACTERS for one in split_sentences(text))


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Why?", ("Why?", "")),
        ("What is 2 + 2?", ("What is 2 + 2?", "")),
        ("A first fact. A second one. What was second?", ("What was second?", "A first fact. A second one.")),
        ("What was second? A first fact. A second one.", ("What was second?", "A first fact. A second one.")),
        ("First para.\n\nSecond para.\n\nWhat was first?", ("What was first?", "First para.\n\nSecond para.")),
        ("What was first?\n\nFirst para.\n\nSecond.", ("What was first?", "First para.\n\nSecond.")),
        ("One.\n\nTwo. So what is two?", ("So what is two?", "One.\n\nTwo.")),
        ("What is two? Say it.\n\nOne.\n\nTwo.", ("What is two?", "Say it.\n\nOne.\n\nTwo.")),
        ("One. Two\n[...]\nlast words. What is one?", ("What is one?", "One. Two\n\nlast words.")),
        ("What is one?\n[...]\nlast words.", ("What is one?", "last words.")),
        ("No question. None at all.", ("No question. None at all.", "")),
        ("One.\n\nTwo.", ("One.\n\nTwo.", "")),
    ],
)
def test_a_question_is_told_from_the_text_it_brings_along(question: str, expected: tuple[str, str]) -> None:
    assert split_question(question) == expected
