from __future__ import annotations

import pytest

from reasond_server.repair.edits.targets import Anchor, find_places

FILE = ["class A:", "    def f(self):", "        if x:", "            return 1", "        return 2", "", "    pass"]


def place(old: str, new: str, texts: list[str] = FILE, **known: int | str) -> list[str]:
    """Return the file with the one place replaced."""
    (found,) = find_places(texts, Anchor(old=old.split("\n"), new=new.split("\n"), **known))  # type: ignore[arg-type]
    return [*texts[: found.at], *found.lines, *texts[found.at + found.count :]]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("        if x:\n            return 1", "        if x:\n            y()\n            return 3"),
        ("if x:\n    return 1", "if x:\n    y()\n    return 3"),
        ("\tif x:\n\t\treturn 1", "\tif x:\n\t\ty()\n\t\treturn 3"),
        ("  if x:\n    return 1", "  if x:\n    y()\n    return 3"),
        ("if x:\n            return 1", "if x:\n            y()\n            return 3"),
        ("\n\n        if x:\n            return 1\n", "\n\n        if x:\n            y()\n            return 3\n"),
    ],
)
def test_lines_with_another_indentation_are_shifted_as_a_whole(old: str, new: str) -> None:
    assert place(old, new)[2:5] == ["        if x:", "            y()", "            return 3"]


def test_deeper_lines_follow_in_the_unit_of_the_file() -> None:
    texts = ["def f():", "\tif x:", "\t\treturn 1"]
    assert place("    if x:\n        return 1", "    if x:\n        for y in x:\n            return 1", texts)[2:] == [
        "\t\tfor y in x:",
        "\t\t\treturn 1",
    ]


@pytest.mark.parametrize("old", ["if x:\nreturn 1", "if y:\n    return 1", "            if x:\n        return 1"])
def test_what_is_no_shift_of_the_whole_is_not_found(old: str) -> None:
    assert not find_places(FILE, Anchor(old=old.split("\n"), new=[]))


def test_line_and_section_choose_among_equal_places() -> None:
    texts = ["def f():", "    x", "def g():", "    x"]
    assert len(find_places(texts, Anchor(old=["    x"], new=["    y"]))) == 2
    assert place("    x", "    y", texts, line=2) == ["def f():", "    y", "def g():", "    x"]
    assert place("    x", "    y", texts, section="def g():") == ["def f():", "    x", "def g():", "    y"]


def test_wrong_context_of_a_diff_is_left_out() -> None:
    assert (
        place("wrong\n        return 2\n    pass", "wrong\n        return 3\n    pass", lead=1, trail=1)[4]
        == "        return 3"
    )
