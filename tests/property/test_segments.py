"""The joined segments equal the text, and none is too large, for any text and counter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.context.window_plan import split_text
from reasond_server.llm.counting import ByteCounter, WordPieceCounter

if TYPE_CHECKING:
    from reasond_server.llm.model import TokenCounter

PARTS = st.sampled_from([
    "The wall. ", "four\n", "\n\n", " ", "x" * 50, "e\u0301", "\U0001f468\u200d\U0001f469", "\U0001f1e9\U0001f1ea",
    "\u4f60\u597d\u3002", "\r\n", "\u0301" * 40, "<answer>",
])  # fmt: skip
TEXTS = st.lists(PARTS | st.text(max_size=8), max_size=80).map("".join)


@pytest.mark.slow
@pytest.mark.parametrize("counter", [WordPieceCounter(), ByteCounter()])
@given(text=TEXTS, limit=st.integers(4, 120))
def test_every_character_is_in_exactly_one_segment_within_the_limit(
    counter: TokenCounter, text: str, limit: int
) -> None:
    segments = split_text(text, limit=limit, counter=counter)
    assert "".join(segments) == text
    assert all(segments)
    assert all(counter.count_text(segment) <= limit for segment in segments)


@given(text=TEXTS, limit=st.integers(64, 120))
def test_the_number_of_segments_is_linear_in_the_tokens(text: str, limit: int) -> None:
    counter = WordPieceCounter()
    segments = split_text(text, limit=limit, counter=counter)
    # A token has at most 16 characters, so a segment half full in characters has at least 1/32 of the limit in tokens.
    assert len(segments) <= 1 + 32 * counter.count_text(text) / limit
