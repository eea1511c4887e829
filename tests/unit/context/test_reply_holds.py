"""When a reply that comes in parts is seen to be a loop."""

from __future__ import annotations

import pytest

from reasond_server.context.reply_holds import LoopWatch


def is_loop(text: str, *, size: int = 7) -> bool:
    watch = LoopWatch()
    for at in range(0, len(text), size):
        watch.take(text[at : at + size])
    return watch.is_found


@pytest.mark.parametrize("size", [1, 7, 5_000])
@pytest.mark.parametrize("piece", ["0", "so so ", "a line\n", "y" * 300 + " " + "z" * 211])
def test_one_piece_over_and_over_is_a_loop_whatever_came_before(piece: str, size: int) -> None:
    text = "The beginning is another text. " * 3 + (piece * 6_000)[:6_000]
    assert is_loop(text, size=size)


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"Step {number}: the sum is {number * 7}.\n" for number in range(2_000)),
        "-" * 80 + "\n" + "| 1 | 2 |\n" * 100 + "The table has one hundred rows. " * 5,
        "0" * 4_000,
        "".join(chr(97 + at * at % 26) + str(at) for at in range(9_000)),
    ],
    ids=["numbered steps", "a table", "a short run", "no repetition"],
)
def test_other_texts_are_none(text: str) -> None:
    assert not is_loop(text)
