from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from reasond_server.llm.stop_filter import StopFilter

if TYPE_CHECKING:
    from collections.abc import Sequence


def _pass_through(pieces: Sequence[str], stop: Sequence[str]) -> tuple[str, str | None]:
    stopping = StopFilter(stop)
    shown = "".join(stopping.feed(piece) for piece in pieces)
    return shown + stopping.flush(), stopping.matched


def test_text_before_the_first_stop_string_is_shown_and_nothing_after_it() -> None:
    assert _pass_through(["<answer>42</answer> and more"], ["</answer>"]) == ("<answer>42", "</answer>")


def test_a_stop_string_that_is_split_over_pieces_is_found() -> None:
    assert _pass_through(["42<", "/ans", "wer", ">", "tail"], ["</answer>"]) == ("42", "</answer>")


def test_what_only_looked_like_a_stop_string_is_shown_in_the_end() -> None:
    assert _pass_through(["42</ans", "wered"], ["</answer>"]) == ("42</answered", None)
    assert _pass_through(["42</ans"], ["</answer>"]) == ("42</ans", None)


def test_what_may_become_a_stop_string_is_held_back() -> None:
    stopping = StopFilter(["</answer>"])
    assert stopping.feed("42</answer") == "42"
    assert stopping.feed(">") == ""
    assert stopping.matched == "</answer>"


def test_the_stop_string_that_is_complete_first_wins_and_of_two_the_longer() -> None:
    assert _pass_through(["xabc"], ["abc", "b"]) == ("xa", "b")
    assert _pass_through(["xab"], ["b", "ab"]) == ("x", "ab")


def test_empty_stop_strings_are_ignored() -> None:
    assert _pass_through(["a", "b"], ["", ""]) == ("ab", None)
    assert _pass_through(["ab"], []) == ("ab", None)


@given(
    st.lists(st.text(alphabet="ab<", max_size=4), max_size=12),
    st.lists(st.text(alphabet="ab<", max_size=3), max_size=3),
)
def test_how_a_text_is_cut_into_pieces_does_not_matter(pieces: list[str], stop: list[str]) -> None:
    text = "".join(pieces)
    shown, matched = _pass_through(pieces, stop)
    assert (shown, matched) == _pass_through(list(text), stop)
    assert text.startswith(shown)
    assert matched is not None or shown == text
    assert matched is None or text[len(shown) :].startswith(matched)
