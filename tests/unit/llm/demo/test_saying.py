from __future__ import annotations

import pytest

from reasond_server.llm.demo.saying import numbers_of, says


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("$1,576.25 in interest", 1576.25, True),
        ("15%", 15, True),
        ("about 0.67", 2 / 3, True),
        ("about 0.67", 0.6, False),
        ("no number", 1, False),
        ("2-1", 1, True),
        ("-3", -3, True),
    ],
)
def test_a_text_says_a_number_as_far_as_it_shows_it(text: str, value: float, expected: bool) -> None:  # noqa: FBT001 - a parameter of the test
    assert says(text, value) is expected


def test_numbers_lose_their_separators() -> None:
    assert numbers_of("1,000.5 and 2, or 3.") == ["1000.5", "2", "3"]
