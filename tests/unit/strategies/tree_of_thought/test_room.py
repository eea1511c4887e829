"""The arithmetic of the room; that real prompts keep to it stands in test_prompts.py."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reasond_server.errors import ContextExhaustedError, InvalidConfigError
from reasond_server.strategies.tree_of_thought.room import LEAST_THOUGHT_TOKENS, ThoughtShape


@given(
    branching=st.integers(1, 10),
    thought=st.integers(LEAST_THOUGHT_TOKENS, 4096),
    is_comparing=st.booleans(),
    bare=st.integers(0, 40_000),
    window=st.integers(0, 80_000),
)
def test_there_is_room_for_the_last_thought_or_a_refusal(
    branching: int,
    thought: int,
    is_comparing: bool,  # noqa: FBT001 - what hypothesis draws
    bare: int,
    window: int,
) -> None:
    shape = ThoughtShape(branching=branching, thought_tokens=thought, is_comparing=is_comparing)
    try:
        room = shape.notes_room(bare, window=window)
    except (ContextExhaustedError, InvalidConfigError):
        assert bare + shape.needed_tokens > window
    else:
        assert room >= thought
        assert bare + room + shape.needed_tokens - thought <= window
