"""The rows, the picture and the page of an evaluation, and the table for `auto`."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

from reasond_server.evaluation.items import Grader, Item
from reasond_server.evaluation.report import build_report, choose, draw_picture, write_choices, write_markdown
from reasond_server.evaluation.trials import Trial, read_way
from reasond_server.types.tasks import TaskForm

if TYPE_CHECKING:
    from collections.abc import Sequence

WAYS = [read_way("direct"), read_way("self_consistency:samples=3"), read_way("chain_of_thought")]
ITEMS = [
    Item(
        item_id=str(n),
        question=f"Question {n}?",
        grader=Grader.TEXT,
        right="yes",
        kind="odd" if n % 2 else "even",
        material="text" if n >= 40 else "",
    )
    for n in range(50)
]


def make_trials(rights: Sequence[int], tokens: Sequence[int], n: int = 50) -> list[Trial]:
    return [
        Trial(
            key=f"{way.name}{i}",
            item_id=str(i),
            way=way.name,
            answer="yes" if i < right else "no",
            is_right=i < right,
            input_tokens=cost // 2,
            output_tokens=cost - cost // 2,
            cached_tokens=cost // 4,
            calls=2,
            seconds=1.5,
            execution_id=f"e{i}",
        )
        for way, right, cost in zip(WAYS, rights, tokens, strict=True)
        for i in range(n)
    ]


def test_ways_are_compared_with_the_first_and_the_efficient_ones_are_marked() -> None:
    report = build_report(ITEMS, WAYS, make_trials([20, 35, 20], [100, 400, 150]), wanted=150)
    direct, votes, chain = report.rows
    assert [row.right for row in report.rows] == [20, 35, 20]
    assert [row.is_efficient for row in report.rows] == [True, True, False]
    assert direct.comparison is None
    assert votes.comparison is not None
    assert (votes.comparison.won, votes.comparison.lost, round(votes.comparison.difference, 2)) == (15, 0, 0.3)
    assert votes.comparison.p < 0.001
    assert chain.comparison is not None
    assert chain.comparison.p == 1
    assert (direct.tokens, direct.calls, direct.seconds, direct.cached_share) == (100, 2, 1.5, 0.5)


def test_the_picture_has_each_way_at_its_place() -> None:
    report = build_report(ITEMS, WAYS, make_trials([20, 35, 20], [100, 400, 150]), wanted=150)
    lines = draw_picture(report.rows)
    top, bottom = next(line for line in lines if "[B]" in line), next(line for line in lines if "[A]" in line)
    assert lines.index(top) < lines.index(bottom)
    assert bottom.index("[A]") < bottom.index(" C")
    assert max(map(len, lines)) < 80
    assert draw_picture([]) == []


def test_the_page_names_wrong_answers_with_their_executions_and_divides_by_kind() -> None:
    report = build_report(ITEMS, WAYS, make_trials([20, 35, 20], [100, 400, 150]), wanted=150)
    page = write_markdown(report, title="set.jsonl", circumstances=["a fact"])
    assert page.startswith("# set.jsonl\n\n- a fact\n\n| way |")
    assert "| **direct** | 20 | 50 | 40.0% (28% to 54%) | 100 | 2.0 | 1.5 | 50% |" in page
    assert "+30.0% (" in page
    assert "## Kind even" in page
    assert "  - e20: Question 20?: no; right is yes" in page
    assert "  - and 10 more in the record" in page


def test_the_cheapest_way_within_the_loss_is_chosen_for_each_form_that_has_questions_enough() -> None:
    trials = make_trials([20, 35, 20], [100, 400, 150])
    chosen, told = choose(ITEMS, WAYS, trials, loss=0.02)
    assert list(chosen) == [TaskForm.QUESTION]
    assert chosen[TaskForm.QUESTION].strategy == "self_consistency"
    assert chosen[TaskForm.QUESTION].config == {"samples": 3}
    assert told == ["material: 10 questions that every way answered; at least 20 are needed"]
    cheaper, _ = choose(ITEMS, WAYS, trials, loss=0.5)
    assert cheaper[TaskForm.QUESTION].strategy == "direct"
    assert "50% of 40 right with 100 tokens each; the best, self_consistency:samples=3, 88%" in (
        cheaper[TaskForm.QUESTION].why
    )


def test_the_table_is_a_part_of_the_configuration() -> None:
    chosen, _ = choose(ITEMS, WAYS, make_trials([20, 35, 20], [100, 400, 150]), loss=0.02)
    found = tomllib.loads(write_choices(chosen))
    assert found["reasoning"]["auto"] is True
    assert found["reasoning"]["choices"]["question"]["config"] == {"samples": 3}
