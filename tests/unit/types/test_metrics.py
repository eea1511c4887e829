"""The lines of windows: a sequence of values like any other, which takes only the memory of its numbers."""

import sys
from collections.abc import Sequence
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.types import WindowLines, WindowMetrics

LINES = st.lists(
    st.builds(
        WindowMetrics,
        iteration=st.just(0),
        tokens=st.integers(min_value=0, max_value=2**53 - 1),
        has_answer=st.booleans(),
        carryover_generated=st.booleans(),
        execution_time_s=st.floats(min_value=0, max_value=10**9),
        is_reading=st.booleans(),
        is_only_hidden_reasoning=st.booleans(),
    ),
    max_size=20,
)


def pack(lines: Sequence[WindowMetrics], before: WindowLines | None = None) -> WindowLines:
    made = WindowLines() if before is None else before
    for line in lines:
        values = asdict(line)
        del values["iteration"]
        made = made.plus(**values)
    return made


def number_lines(lines: Sequence[WindowMetrics]) -> tuple[WindowMetrics, ...]:
    return tuple(
        WindowMetrics(
            iteration=number,
            tokens=line.tokens,
            has_answer=line.has_answer,
            carryover_generated=line.carryover_generated,
            execution_time_s=line.execution_time_s,
            is_reading=line.is_reading,
            is_only_hidden_reasoning=line.is_only_hidden_reasoning,
        )
        for number, line in enumerate(lines)
    )


@given(LINES)
def test_what_was_added_is_what_is_there(lines: list[WindowMetrics]) -> None:
    made, expected = pack(lines), number_lines(lines)
    assert tuple(made) == expected
    assert made == expected
    assert expected == made
    assert made == list(expected)
    assert made == pack(lines)
    assert hash(made) == hash(expected)
    assert len(made) == len(expected)
    assert made[::-1] == expected[::-1]
    assert not lines or made[-1] == expected[-1]


@pytest.mark.slow
@given(LINES, LINES, LINES)
def test_lines_that_others_were_made_of_never_change(
    shared: list[WindowMetrics], one: list[WindowMetrics], other: list[WindowMetrics]
) -> None:
    base = pack(shared)
    first, second = pack(one, base), pack(other, base)
    assert base == number_lines(shared)
    assert first == number_lines([*shared, *one])
    assert second == number_lines([*shared, *other])


def test_lines_are_no_other_lines_and_no_other_kind_of_thing() -> None:
    made = WindowLines().plus(
        tokens=5, has_answer=True, carryover_generated=False, execution_time_s=0.5, is_reading=False
    )
    assert made != WindowLines()
    assert made != WindowLines().plus(
        tokens=5, has_answer=False, carryover_generated=False, execution_time_s=0.5, is_reading=False
    )
    assert made != "x"
    assert "tokens=5" in repr(made)
    with pytest.raises(IndexError):
        made[1]


@pytest.mark.parametrize(
    ("tokens", "execution_time_s"),
    [(-1, 0.0), (2**53, 0.0), (0, -0.1), (0, float("nan")), (0, float("inf"))],
)
def test_a_number_that_no_transport_can_carry_is_refused(tokens: int, execution_time_s: float) -> None:
    with pytest.raises(ValueError, match="no window has"):
        WindowLines().plus(
            tokens=tokens,
            has_answer=False,
            carryover_generated=False,
            execution_time_s=execution_time_s,
            is_reading=False,
        )


def test_a_line_takes_seventeen_bytes_and_the_room_that_arrays_keep() -> None:
    made = WindowLines()
    for _ in range(4096):
        made = made.plus(tokens=8192, has_answer=False, carryover_generated=True, execution_time_s=1.5, is_reading=True)
    kept = [made._tokens, made._seconds, made._flags]
    assert sum(map(sys.getsizeof, kept)) < 4096 * 17 * 1.25
