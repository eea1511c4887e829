"""The memory of events is counted: texts, and all that a strategy of a third party puts into its steps and metrics."""

from __future__ import annotations

import sys
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from reasond_server.eventlog.contents import estimate_size
from reasond_server.eventlog.store import Record
from reasond_server.types import (
    CustomMetrics,
    CustomStep,
    FinishReason,
    Iteration,
    LoggedEvent,
    Metrics,
    Result,
    StrategySource,
    Usage,
)
from tests.stores.logs import START, step

SCALARS = some.none() | some.booleans() | some.integers(-(2**200), 2**200) | some.floats() | some.text()
JSON = some.recursive(SCALARS, lambda each: some.lists(each) | some.dictionaries(some.text(), each), max_leaves=30)


def log_of(event: Any) -> LoggedEvent:
    return LoggedEvent(sequence=1, create_time=START, event=event)


def custom(data: Any) -> LoggedEvent:
    detail = CustomStep(data=data)
    return log_of(Iteration(index=0, detail=detail, answer_found=False, usage=Usage(), elapsed_s=0.0))


def measure(value: Any) -> int:
    """Return the bytes that `value` takes in memory; shared values count each time."""
    if isinstance(value, dict):
        return sys.getsizeof(value) + sum(measure(key) + measure(each) for key, each in value.items())
    return sys.getsizeof(value) + (sum(map(measure, value)) if isinstance(value, list) else 0)


@pytest.mark.slow
@given(data=some.dictionaries(some.text(), JSON))
def test_free_json_is_never_counted_for_much_less_than_it_takes(data: dict[str, Any]) -> None:
    assert estimate_size(custom(data)) > measure(data) / 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "data",
    [
        {"n": [*range(100_000)]},
        {str(number): None for number in range(100_000)},
        {"nested": [[number, 0.5] for number in range(50_000)]},
        MappingProxyType({"n": (1.5,) * 100_000}),
    ],
    ids=["numbers", "keys", "lists", "other mappings"],
)
def test_numbers_keys_and_nested_values_count_as_texts_do(data: Any) -> None:
    assert estimate_size(custom(data)) > 1_000_000


def test_what_a_strategy_says_of_its_whole_run_counts() -> None:
    metrics = Metrics(
        usage=Usage(), execution_time_s=0.5, strategy_specific=CustomMetrics(data={"n": [*range(100_000)]})
    )
    result = Result(
        execution_id="e",
        answer="yes",
        strategy_used="s",
        strategy_source=StrategySource.SYSTEM,
        finish_reason=FinishReason.ANSWERED,
        metrics=metrics,
        warnings=(),
        model="m",
    )
    assert estimate_size(log_of(result)) > 1_000_000


def test_a_text_counts_once_wherever_it_stands() -> None:
    small, large = (estimate_size(log_of(step("x" * size))) for size in (0, 1000))
    assert large - small == 4000
    assert estimate_size(Record(key="k" * 1000, body="")) - estimate_size(Record(key="", body="")) == 4000
