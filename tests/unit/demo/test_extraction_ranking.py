from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.demo.extraction import find_content_words, rank

SENTENCES = [
    "The prism was made of glass.",
    "The Object-Metal was two Inches broad.",
    "Light passes through the prism and is refracted by the glass of the prism.",
    "Nothing of it is known.",
]


def test_the_words_that_carry_content_are_kept_once_and_in_order() -> None:
    assert find_content_words("What is the Prism, and of what GLASS is the prism?") == ["prism", "glass"]
    assert find_content_words("What is this about?") == []
    assert len(find_content_words(" ".join(f"word{number}" for number in range(100)))) == 48


def test_sentences_are_ranked_by_the_words_and_their_stems() -> None:
    best = rank(SENTENCES, find_content_words("How broad are the object metals in inches?"), limit=3)
    assert best[0].sentence == SENTENCES[1]
    assert best[0].position == 1
    assert best[0].score > 0


def test_the_limit_holds_and_sentences_that_do_not_match_are_left_out() -> None:
    found = rank(SENTENCES, ["prism"], limit=5)
    assert {one.sentence for one in found} == {SENTENCES[0], SENTENCES[2]}
    assert len(rank(SENTENCES, ["prism"], limit=1)) == 1
    assert rank(SENTENCES, ["hamlet"], limit=5) == []
    assert rank(SENTENCES, [], limit=5) == []
    assert rank([], ["prism"], limit=5) == []


def test_a_sentence_with_all_the_words_beats_a_short_one_with_the_rarest() -> None:
    candidates = [
        "The paper was broad.",
        "An object metal.",
        "Metal, the object.",
        "The object metal was two inches broad.",
    ]
    assert rank(candidates, ["broad", "object", "metal"], limit=1)[0].sentence == candidates[3]


def test_repetitions_and_parts_of_other_sentences_are_dropped() -> None:
    whole, part = "The grey prism lay here.", "prism lay here."
    assert [one.sentence for one in rank([part, whole, whole, "filler"], ["prism"], limit=5)] == [whole]


def test_of_equals_the_earlier_comes_first() -> None:
    found = rank(["a prism", "the prism", "no", "none"], ["prism"], limit=2)
    assert [one.position for one in found] == [0, 1]


@pytest.mark.parametrize(
    "question",
    ['glass" OR *', "glass NEAR(prism)", "body:glass", "-glass ^prism", "glass AND NOT", "gl'ass;--", "\x00glass"],
)
def test_query_syntax_in_a_question_is_only_words(question: str) -> None:
    assert isinstance(rank(SENTENCES, find_content_words(question), limit=3), list)


def test_a_lone_surrogate_in_a_text_is_returned_as_it_was() -> None:
    assert rank(["glass \ud800 here", "x"], ["glass"], limit=1)[0].sentence == "glass \ud800 here"


@given(st.text(max_size=80), st.lists(st.text(max_size=40), max_size=6))
def test_any_question_can_be_asked_of_any_text(question: str, candidates: list[str]) -> None:
    found = rank(candidates, find_content_words(question), limit=3)
    assert all(one.sentence in candidates for one in found)
