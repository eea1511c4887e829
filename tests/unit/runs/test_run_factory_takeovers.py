"""Takeovers of a log: which count as fruitless."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from reasond_server.eventlog.store import Record, Recovery
from reasond_server.runs.run_factory import count_fruitless_takeovers, write_takeover
from reasond_server.types import Execution, ExecutionStarted, ExecutionState, LoggedEvent, StrategySource

BEGUN = datetime(2026, 1, 1, tzinfo=UTC)
STARTED = LoggedEvent(
    sequence=1,
    create_time=BEGUN,
    event=ExecutionStarted(strategy="s", strategy_source=StrategySource.REQUEST, model="m", config={}),
)
CALL = Record(key="model::1", body="{}")


def log_of(*records: Record) -> Recovery:
    execution = Execution(
        execution_id="e",
        tenant="acme",
        state=ExecutionState.RUNNING,
        strategy="s",
        strategy_source=StrategySource.REQUEST,
        model="m",
        create_time=BEGUN,
        last_sequence=1,
    )
    return Recovery(
        execution=execution,
        plan="",
        events=[STARTED],
        records=records,
        version=1 + len(records),
        fence=1 + len(records),
    )


def taken_over(log: Recovery, *, after_s: float = 60) -> Recovery:
    record = write_takeover(log, time=BEGUN + timedelta(seconds=after_s), idle_s=0)
    return log_of(*log.records, record)


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_takeovers_at_the_end_of_a_log_are_fruitless(count: int) -> None:
    log = log_of(CALL)
    for _ in range(count):
        log = taken_over(log)
    assert count_fruitless_takeovers(log) == count


def test_whatever_is_written_after_a_takeover_makes_it_count_no_more() -> None:
    log = taken_over(taken_over(log_of(CALL)))
    further = log_of(*log.records, CALL)
    assert count_fruitless_takeovers(further) == 0
    assert count_fruitless_takeovers(taken_over(further)) == 1


def test_takeovers_of_an_execution_that_this_one_replaces_do_not_count() -> None:
    assert count_fruitless_takeovers(taken_over(log_of(CALL), after_s=-60)) == 0
