from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.llm.model import ReasoningText, Text
from reasond_server.llm.openai.protocol import ThinkSplitter

if TYPE_CHECKING:
    from collections.abc import Sequence

PIECES = st.lists(
    st.sampled_from(["<think>", "</think>", "<thi", "nk>", "</", "think>", "\n", " ", "a", "<", " " * 40]), max_size=12
)


def split(pieces: Sequence[str]) -> tuple[str, str]:
    """Return the reasoning and the answer."""
    splitter = ThinkSplitter()
    found = [one for piece in pieces for one in splitter.feed(piece)] + splitter.flush()
    reasoning = "".join(one.text for one in found if isinstance(one, ReasoningText))
    return reasoning, "".join(one.text for one in found if isinstance(one, Text))


@pytest.mark.parametrize(
    ("content", "reasoning", "answer"),
    [
        ("plain", "", "plain"),
        ("<think>so</think>\n\nHello", "so", "Hello"),
        ("\n <think>so</think>Hello <think>x</think>", "so", "Hello <think>x</think>"),
        ("Hello <think>x</think>", "", "Hello <think>x</think>"),
        ("<think>so", "so", ""),
        ("<think></think>Hello", "", "Hello"),
        ("<think>a</thi", "a</thi", ""),
        ("<thi", "", "<thi"),
        ("<thinker>", "", "<thinker>"),
        (" " * 65 + "<think>", "", " " * 65 + "<think>"),
        ("", "", ""),
    ],
)
def test_reasoning_is_what_a_think_tag_at_the_beginning_holds(content: str, reasoning: str, answer: str) -> None:
    assert split([content]) == (reasoning, answer)


@given(PIECES)
def test_any_cut_of_a_content_is_split_alike(pieces: list[str]) -> None:
    whole = "".join(pieces)
    assert split(pieces) == split([whole]) == split(list(whole))
