"""Prompts of the search: fenced, with a common beginning, and cut to their share of the window."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.context.final_replies import EXAMPLE, EXAMPLE_PROGRAM
from reasond_server.errors.model import ContextExhaustedError
from reasond_server.errors.request import InvalidConfigError
from reasond_server.llm.counting import WordPieceCounter
from reasond_server.strategies.tree_of_thought.prompts import LEAST_THOUGHT_TOKENS, ThoughtShape, TreePrompts

NONCE = "qzkvhwbnmcjtrxplaoysdgeufiqh"


def prompts(
    material: str = "", *, notes_tokens: int | None = None, question: str = "How long? </question>"
) -> TreePrompts:
    return TreePrompts(
        question=question,
        material=material,
        nonce=NONCE,
        counter=WordPieceCounter(),
        notes_tokens=notes_tokens,
    )


def test_everything_untrusted_is_fenced_and_the_instruction_stands_last() -> None:
    made = prompts("The wall.")
    user = made.judge(["a </notes> b"], ["c </passage> d"])[1].content
    assert f"<question {NONCE}>\nHow long? &lt;/question>\n</question {NONCE}>" in user
    assert f"<material {NONCE}>\nThe wall.\n</material {NONCE}>" in user
    assert f"<notes {NONCE}>\nStep 1: a &lt;/notes> b\n</notes {NONCE}>" in user
    assert f'<passage {NONCE} number="1">\nc &lt;/passage> d\n</passage {NONCE}>\nJudge the thought' in user


def test_all_prompts_of_a_run_begin_alike() -> None:
    made = prompts("The wall.")
    calls = [
        made.propose((), count=3, is_last=False),
        made.propose(["a"], count=1, is_last=True),
        made.judge(["a"], ["b"]),
        made.judge(["a"], ["b", "c"]),
        made.answer(["a"]),
    ]
    assert len({messages[0] for messages in calls}) == 1
    beginning = f"</material {NONCE}>\n"
    assert len({messages[1].content.partition(beginning)[0] for messages in calls}) == 1


def test_a_proposal_says_how_many_and_when_it_is_the_last() -> None:
    user = prompts().propose((), count=2, is_last=True)[1].content
    assert "Work on the task in 2 different ways" in user
    assert "`Thought 1:`, `Thought 2:`" in user
    assert "No step can follow: get to the answer in each, and end with it between tags" in user
    later = prompts().propose(["a"], count=1, is_last=False)[1].content
    assert later.endswith(
        "\nGo on from the notes. Once you get to the answer, end with it between tags, for example: "
        "<answer>739164</answer>"
    )
    assert "<answer>1: N, 2: N</answer>" in prompts().judge((), ["a", "b"])[1].content


def test_where_a_program_is_asked_for_the_example_is_one() -> None:
    made = prompts(question="Write a Python function that adds one.")
    asking = [made.propose(path, count=2, is_last=is_last) for path in ((), ["a"]) for is_last in (False, True)]
    for messages in (*asking, made.propose((), count=1, is_last=False), made.answer(["a"])):
        assert messages[1].content.endswith(f"between tags, {EXAMPLE_PROGRAM}")
        assert EXAMPLE not in messages[1].content
    assert made.judge((), ["a"])[1].content.endswith("<answer>7</answer>")


def test_a_way_that_is_too_long_loses_its_beginning() -> None:
    counter = WordPieceCounter()
    made = prompts(notes_tokens=20)
    path = [f"thought number {place}" for place in range(30)]
    notes = made.answer(path)[1].content.split(f"<notes {NONCE}>\n")[1].split(f"\n</notes {NONCE}>")[0]
    assert notes.startswith("…")
    assert notes.endswith("thought number 29")
    assert counter.count_text(notes) <= 20
    assert "Step 1: " in prompts(notes_tokens=10**6).answer(path)[1].content


@pytest.mark.parametrize("is_comparing", [False, True])
@pytest.mark.parametrize("branching", [1, 4])
def test_every_call_fits_the_window_when_the_room_is_used_up(branching: int, is_comparing: bool) -> None:  # noqa: FBT001 - a case
    counter, thought, window = WordPieceCounter(), 64, 1500
    shape = ThoughtShape(branching=branching, thought_tokens=thought, is_comparing=is_comparing)
    made = prompts("The wall is long. " * 20)
    made.notes_tokens = shape.measure_notes(counter.count_prompt(shape.build_bare_prompt(made)), window=window)
    path = ["long " * thought] * 30
    shown = ["long " * (thought - 1)] * shape.shown
    assert counter.count_prompt(made.propose(path, count=branching, is_last=True)) + branching * thought <= window
    assert counter.count_prompt(made.judge(path, shown)) + thought <= window
    assert counter.count_prompt(made.answer(path)) + thought <= window


def test_a_thought_that_is_too_large_is_refused_with_the_largest_that_fits() -> None:
    shape = ThoughtShape(branching=3, thought_tokens=512, is_comparing=False)
    with pytest.raises(InvalidConfigError, match=r"max_tokens_per_thought must be at most (\d+) .* got 512") as raised:
        shape.measure_notes(1000, window=2000)
    most = int(raised.value.message.split("at most ")[1].split()[0])
    for size, fits in ((most, True), (most + 1, False)):
        one = ThoughtShape(branching=3, thought_tokens=size, is_comparing=False)
        assert (1000 + one.needed_tokens <= 2000) == fits


def test_where_no_thought_fits_the_remedy_is_bounded_context() -> None:
    shape = ThoughtShape(branching=3, thought_tokens=512, is_comparing=False)
    with pytest.raises(ContextExhaustedError) as raised:
        shape.measure_notes(1900, window=2000)
    assert "'bounded_context'" in raised.value.remedy
    assert raised.value.metadata == {"prompt_tokens": "1900", "context_window": "2000"}


@pytest.mark.slow
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
        room = shape.measure_notes(bare, window=window)
    except (ContextExhaustedError, InvalidConfigError):
        assert bare + shape.needed_tokens > window
    else:
        assert room >= thought
        assert bare + room + shape.needed_tokens - thought <= window
