"""One line of a longer text, as lists of executions show it."""

from __future__ import annotations

import pytest

from reasond_server.types.executions import write_headline


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        (" \n\t\n", ""),
        ("What is this?", "What is this?"),
        ("\n\n  What \t is  this?  \nAnd that?", "What is this?"),
        ("one\x00two\x1b[31m\u202ethree", "onetwo[31mthree"),
        ("\x00\nsecond", "second"),
        ("lone \ud800 surrogate", "lone  surrogate"),
        ("Übermaß, 日本語 🙂", "Übermaß, 日本語 🙂"),
        ("a\u2028b", "a"),
    ],
)
def test_the_first_line_that_says_something_is_told_without_what_no_list_can_show(text: str, line: str) -> None:
    assert write_headline(text) == line


@pytest.mark.parametrize("text", ["x" * 201, "x" * 2_000_000, "x " * 1_000_000])
def test_a_long_line_ends_with_an_ellipsis_at_200_characters(text: str) -> None:
    line = write_headline(text)
    assert len(line) <= 200
    assert line.endswith("…")


def test_a_line_of_200_characters_is_whole() -> None:
    assert write_headline("x" * 200) == "x" * 200
