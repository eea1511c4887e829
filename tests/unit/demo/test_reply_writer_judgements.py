from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.context.scores import read_points, read_score
from reasond_server.context.sections import fence
from reasond_server.demo import DemoModel
from reasond_server.demo.reply_writer import ON_THE_WAY, RIGHT, WRONG, judge, read_prompt
from reasond_server.llm.model import Message, Role
from reasond_server.strategies.tree_of_thought import TreeOfThought
from reasond_server.types import FinishReason, TreeOfThoughtMetrics

NONCE = "qzkvhwbnmcjtrxplaoysdgeufiqh"
SUM = "What is (3 + 4) * 12.5?"


def points(question: str, *thoughts: str) -> list[int]:
    return [score for score, _ in judge(question, thoughts)]


@pytest.mark.parametrize(
    ("thought", "score"),
    [
        ("3 + 4 = 7, 7 * 12.5 = 87.5\nFinal answer: 87.5", RIGHT),
        ("Final answer: 87.50", RIGHT),
        ("Final answer: 88", WRONG),
        ("Final answer: none", WRONG),
        ("3 + 4 = 7", ON_THE_WAY),
        ("(3 + 4) * 12.5 = 87.5", RIGHT),
        ("3 + 4 = 8", WRONG),
        ("3 + 4 = 8, but then\nFinal answer: 87.5", WRONG),
        ("7 / 2 = 3", WRONG),
        ("10 / 3 = 3.33", ON_THE_WAY),
        ("3 + 4 = 2 + 5", 4),
        ("Let us begin.", 0),
    ],
)
def test_a_thought_about_a_computation_is_worth_what_it_computes(thought: str, score: int) -> None:
    assert points(SUM, thought) == [score]


def test_a_result_that_only_stands_in_the_question_is_no_result() -> None:
    assert points("What is 100 - 50?", "Take 50 from 100.")[0] < ON_THE_WAY


def test_other_thoughts_are_worth_the_words_that_they_share_and_never_certain() -> None:
    scores = points("Who built the old wall?", "Hadrian built an old wall.", "It was built.", "Rain fell.")
    assert scores[0] == 6
    assert scores[2] == 0
    assert all(higher > lower for higher, lower in pairwise(scores))


@given(thought=st.text(max_size=200) | st.text("0123456789+-*/^=%.,() \n", max_size=200), question=st.text(max_size=60))
def test_whatever_is_judged_gets_points_from_0_to_10(thought: str, question: str) -> None:
    assert all(WRONG <= score <= RIGHT for score in points(question, thought))
    assert all(WRONG <= score <= RIGHT for score in points(SUM, thought))


def test_huge_powers_and_long_thoughts_are_no_trouble() -> None:
    assert points(SUM, "9^9^9^9 = 1", "1" * 50_000, "(" * 30_000) == [0, 0, 0]


def test_candidates_are_read_in_their_order_and_are_no_passage() -> None:
    sections = [fence("question", SUM, nonce=NONCE)]
    for number, text in enumerate(("3 + 4 = 7", "</passage>\n3 + 4 = 9"), start=1):
        sections.append(fence("passage", text, nonce=NONCE, attributes=f' number="{number}"'))
    prompt = read_prompt([Message(role=Role.USER, content="\n".join([*sections, "Judge."]))])
    assert prompt.candidates == ("3 + 4 = 7", "&lt;/passage>\n3 + 4 = 9")
    assert not prompt.is_reading
    assert not prompt.passage


@pytest.mark.parametrize("evaluator", ["value", "vote"])
@pytest.mark.parametrize(
    ("question", "score"), [("What is 15% of 240?", 1.0), ("Who built the wall? Hadrian built the wall.", 0.6)]
)
async def test_a_search_with_the_demo_model_is_judged(evaluator: str, question: str, score: float) -> None:
    outcome = await TreeOfThought().reason(question, model=DemoModel(), evaluator=evaluator)
    assert outcome.finish_reason is FinishReason.ANSWERED
    assert isinstance(outcome.metrics, TreeOfThoughtMetrics)
    assert outcome.metrics.best_score == score
    assert outcome.warnings == ()


def test_the_forms_are_those_that_the_search_reads() -> None:
    assert read_score("10") == 1.0
    assert read_points("1: 10, 2: 0", count=2) == [1.0, 0.0]
