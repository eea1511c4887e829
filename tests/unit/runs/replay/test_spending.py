import pytest

from reasond_server.llm.metering import MeteredModel
from reasond_server.runs.replay.spending import Spending
from reasond_server.testing import ScriptedModel
from reasond_server.types import Budget, Usage


def usage(calls: int, tokens: int) -> Usage:
    return Usage(input_tokens=tokens, output_tokens=tokens, model_calls=calls)


@pytest.fixture
def model() -> MeteredModel:
    return MeteredModel(model=ScriptedModel([]), budget=Budget())


def test_without_an_earlier_life_it_is_what_the_model_spent(model: MeteredModel) -> None:
    spending = Spending(model=model)
    model.recall(usage(1, 10), ())
    assert spending.total == model.usage


def test_what_is_recalled_is_not_counted_twice_and_what_was_broken_off_is_kept(model: MeteredModel) -> None:
    spending = Spending(model=model, before=usage(3, 30), recorded=usage(2, 20))
    totals = [spending.total]
    for _ in range(3):
        model.recall(usage(1, 10), ())
        totals.append(spending.total)
    assert totals == [usage(3, 30), usage(3, 30), usage(3, 30), usage(4, 40)]


def test_more_on_record_than_was_told_before_is_no_negative_cost(model: MeteredModel) -> None:
    spending = Spending(model=model, before=usage(1, 10), recorded=usage(2, 20))
    model.recall(usage(2, 20), ())
    assert spending.total == usage(2, 20)
