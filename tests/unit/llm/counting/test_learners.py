"""Forks of learning counters: they are independent, their parent learns from them, and a snapshot restores them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.errors.base import InternalError
from reasond_server.llm.counting import ByteCounter, EstimatingCounter, Forkable, WordPieceCounter, make_fork
from reasond_server.llm.counting.tokenizers import EncodedCounter
from reasond_server.llm.model import Message, Role

if TYPE_CHECKING:
    from collections.abc import Callable

PROMPT = [Message(role=Role.SYSTEM, content="Be brief."), Message(role=Role.USER, content="wall " * 100)]


class OneEach(EncodedCounter):
    """A tokenizer that makes one token of each character."""

    def _count(self, text: str) -> int:
        return len(text)

    def _measure_head(self, text: str, tokens: int) -> int:
        return min(tokens, len(text))

    def _measure_tail(self, text: str, tokens: int) -> int:
        return min(tokens, len(text))


LEARNERS: dict[str, Callable[[], Forkable]] = {"estimate": EstimatingCounter, "encoded": OneEach}
KINDS = pytest.mark.parametrize("kind", LEARNERS)
REPORTS = st.lists(st.integers(0, 5000), max_size=6)


def count(counter: Any) -> int:
    return int(counter.count_prompt(PROMPT))


def teach(counter: Any, *reports: int) -> Any:
    for reported in reports:
        counter.learn(PROMPT, reported)
    return counter


@KINDS
@given(before=REPORTS, own=REPORTS, others=REPORTS)
def test_a_fork_knows_what_was_known_then_and_hears_nobody_else(
    kind: str, before: list[int], own: list[int], others: list[int]
) -> None:
    parent = teach(LEARNERS[kind](), *before)
    fork, sibling = make_fork(parent), make_fork(parent)
    assert count(fork) == count(parent)
    teach(parent, *others)
    teach(sibling, *others)
    teach(fork, *own)
    assert count(fork) == count(teach(LEARNERS[kind](), *before, *own))


@KINDS
@given(before=REPORTS, own=REPORTS)
def test_a_parent_learns_what_its_forks_and_their_forks_learn(kind: str, before: list[int], own: list[int]) -> None:
    parent = teach(LEARNERS[kind](), *before)
    teach(make_fork(make_fork(parent)), *own)
    assert count(parent) == count(teach(LEARNERS[kind](), *before, *own))


@KINDS
@given(before=REPORTS, own=REPORTS, strange=REPORTS)
def test_a_snapshot_makes_the_same_counter_in_another_process(
    kind: str, before: list[int], own: list[int], strange: list[int]
) -> None:
    told = json.loads(json.dumps(teach(LEARNERS[kind](), *before).snapshot()))
    elsewhere = teach(LEARNERS[kind](), *strange)
    again, kept = make_fork(elsewhere), count(elsewhere)
    assert isinstance(again, Forkable)
    again.restore(told)
    assert count(elsewhere) == kept
    assert count(teach(again, *own)) == count(teach(LEARNERS[kind](), *before, *own))
    assert count(elsewhere) == count(teach(LEARNERS[kind](), *strange, *own))


WRONG: tuple[Any, ...] = (
    {},
    [],
    None,
    {"seen": -1},
    {"seen": "3"},
    {"seen": True},
    {"ratio": float("nan"), "deviation": 0.1, "reports": 1},
    {"ratio": 1.0, "deviation": 0.1, "reports": None},
    {"ratio": 1e9, "deviation": 0.1, "reports": 1},
)


@KINDS
@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_what_is_no_snapshot_is_refused_and_changes_nothing(kind: str, wrong: Any) -> None:
    counter = teach(LEARNERS[kind](), 700)
    before = counter.snapshot()
    with pytest.raises(InternalError, match="cannot be restored"):
        counter.restore(wrong)
    assert counter.snapshot() == before


@pytest.mark.parametrize("kind", LEARNERS)
def test_a_snapshot_of_another_kind_of_counter_is_refused(kind: str) -> None:
    (other,) = set(LEARNERS) - {kind}
    with pytest.raises(InternalError):
        LEARNERS[kind]().restore(teach(LEARNERS[other](), 700).snapshot())


@pytest.mark.parametrize("counter", [ByteCounter(), WordPieceCounter()])
def test_a_counter_that_learns_nothing_is_its_own_fork(counter: Any) -> None:
    assert make_fork(counter) is counter
