from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from reasond import Iteration, Usage
from reasond.v1.strategies_pb2 import BoundedContextStep, ReactStep, ReadingProgress, StageStep, TreeStep
from reasond_server.base.plugins import list_built_in
from reasond_server.cli.show.live import ShownProgress, describe_span, draw_bar
from reasond_server.cli.show.run import RunProgress, count_most_steps
from reasond_server.reasoning.registry import STRATEGIES

WITHOUT = {"chain_of_thought", "direct", "tree_of_thought"}
"""One call, of which nothing is known before its end; calls in place of steps."""


def read(segment: int, count: int, *, span_s: int = 3) -> Iteration:
    detail = BoundedContextStep(reading=ReadingProgress(segment=segment, segment_count=count))
    return Iteration(index=segment - 1, elapsed=Duration(seconds=span_s), bounded_context=detail)


def test_the_time_of_a_reading_is_told_after_two_segments_and_follows_the_last_eight() -> None:
    progress = RunProgress(strategy="bounded_context", config={"max_iterations": 5})
    first = progress.take(read(1, 20))
    assert first == ShownProgress(done=1, total=21, text="read 1 of 20")
    second = progress.take(read(2, 20))
    assert second is not None
    assert second.left_s == 19 * 3
    for segment in range(3, 11):
        last = progress.take(read(segment, 20, span_s=10))
    assert last is not None
    assert last.left_s == 11 * 10


def test_after_the_text_there_is_a_most_and_no_time() -> None:
    progress = RunProgress(strategy="bounded_context", config={"max_iterations": 5})
    for segment in (1, 2):
        progress.take(read(segment, 2))
    assert progress.take(Iteration(index=2, bounded_context=BoundedContextStep())) == ShownProgress(
        done=2, total=3, text="all is read; step 1 of at most 5"
    )


@pytest.mark.parametrize(
    ("strategy", "config", "text"),
    [
        ("react", {"max_iterations": 10}, "step 3 of at most 10"),
        ("bounded_context", {"max_iterations": 5}, "step 3 of at most 5"),
        ("best_of_n", {"samples": 5, "verifier": "judge"}, "step 3 of at most 10"),
        ("best_of_n", {"samples": 5, "verifier": "schema"}, "step 3 of at most 5"),
        ("self_refine", {"max_rounds": 3}, "step 3 of at most 7"),
        ("tree_of_thought", {"max_model_calls": 60}, "model call 6 of at most 60"),
    ],
)
def test_where_a_most_is_known_it_is_called_one(strategy: str, config: dict[str, Any], text: str) -> None:
    progress = RunProgress(strategy=strategy, config=config)
    for index in range(3):
        found = progress.take(Iteration(index=index, usage=Usage(model_calls=2), tree=TreeStep()))
    assert found is not None
    assert (found.text, found.left_s) == (text, None)


@pytest.mark.parametrize(
    ("strategy", "config"),
    [("chain_of_thought", {}), ("of_others", {"max_iterations": 5}), ("react", {}), ("react", {"max_iterations": "x"})],
)
def test_where_nothing_is_known_there_is_no_bar(strategy: str, config: dict[str, Any]) -> None:
    assert RunProgress(strategy=strategy, config=config).take(Iteration(react=ReactStep())) is None


def test_every_built_in_strategy_has_said_how_many_steps_it_may_take() -> None:
    configs = {name: STRATEGIES.find_installed()[name].load().config_type() for name in list_built_in(STRATEGIES.group)}
    said = {name: count_most_steps(name, json.loads(config.model_dump_json())) for name, config in configs.items()}
    assert {name for name, most in said.items() if most is None} == WITHOUT
    assert all(most > 1 for most in said.values() if most is not None)
    assert "max_model_calls" in type(configs["tree_of_thought"]).model_fields


def test_more_steps_than_the_most_do_not_overflow_the_bar() -> None:
    progress = RunProgress(strategy="plan_and_solve", config={"max_tokens": 400})
    found = progress.take(Iteration(index=7, stage=StageStep()))
    assert found is not None
    assert draw_bar(found, width=10, is_ascii=True) == "#### step 8 of at most 2"
    assert draw_bar(found, width=80, is_ascii=True) == f"{'#' * 30} step 8 of at most 2"


@pytest.mark.parametrize(
    ("span_s", "text"), [(0.2, "1 s"), (12.4, "12 s"), (75, "1 min"), (3_599, "60 min"), (7_800, "2 h 10 min")]
)
def test_a_span_is_told_as_a_person_says_it(span_s: float, text: str) -> None:
    assert describe_span(span_s) == text
