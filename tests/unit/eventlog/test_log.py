"""The state of an execution that its log reports while the log grows."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import fields, replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from reasond_server.eventlog.contents import estimate_size
from reasond_server.eventlog.log import RunLog
from reasond_server.types import (
    Execution,
    ExecutionState,
    FinishReason,
    Iteration,
    StrategySource,
    Thought,
    Usage,
)
from tests.stores.logs import START

BEGUN = Execution(
    execution_id="x",
    tenant="acme",
    state=ExecutionState.RUNNING,
    strategy="s",
    strategy_source=StrategySource.REQUEST,
    model="m",
    create_time=START,
)


def test_an_event_changes_nothing_of_the_execution_but_its_sequence_and_usage() -> None:
    known = replace(
        BEGUN,
        request_id="r",
        finish_reason=FinishReason.ANSWERED,
        end_time=START + timedelta(seconds=1),
        expire_time=START + timedelta(seconds=2),
        last_sequence=3,
        usage=Usage(input_tokens=1),
        kind="turn",
        wake_time=START + timedelta(seconds=3),
        session_id="s",
        question="How many?",
        outcome="12",
        client="ann",
        wire="grpc",
    )
    for field in fields(Execution):
        assert getattr(known, field.name) != field.default, f"{field.name} shows nothing here"
    log = RunLog(execution=known, submit=lambda _: None)
    step = Iteration(
        index=0, answer_found=False, usage=Usage(), elapsed_s=0.0, detail=Thought(text="why", answer="because")
    )

    log.append(step, now=START, usage=Usage(input_tokens=5))

    assert log.execution == replace(known, last_sequence=4, usage=Usage(input_tokens=5))


async def test_who_waits_no_longer_for_a_commit_leaves_nothing_behind() -> None:
    log = RunLog(
        execution=Execution(
            execution_id="x",
            tenant="acme",
            state=ExecutionState.RUNNING,
            strategy="s",
            strategy_source=StrategySource.REQUEST,
            model="m",
            create_time=START,
        ),
        submit=lambda _: None,
    )
    detail = Thought(text="why", answer="because")
    log.append(
        Iteration(index=0, answer_found=False, usage=Usage(), elapsed_s=0.0, detail=detail), now=START, usage=Usage()
    )
    before = futures()
    for _ in range(20):
        waiting = asyncio.create_task(log.wait_for_commit())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    del waiting
    await asyncio.sleep(0)
    assert futures() == before
    waiting = asyncio.create_task(log.wait_for_commit())
    await asyncio.sleep(0)
    assert log.take() is not None
    log.confirm()
    await waiting


def futures() -> int:
    """Return the number of futures in memory."""
    gc.collect()
    return sum(type(one) is asyncio.Future for one in gc.get_objects())


@given(st.lists(st.lists(st.sampled_from([0, 20_000, 90_000, 300_000]), max_size=150), max_size=5))
def test_a_log_remembers_the_last_committed_events_up_to_256_and_a_mebibyte(commits: list[list[int]]) -> None:
    log = RunLog(execution=BEGUN, submit=lambda _: None)
    lengths: list[int] = []
    for added in commits:
        for length in added:
            thought = Thought(text="x" * length)
            step = Iteration(index=len(lengths), answer_found=False, usage=Usage(), elapsed_s=0.0, detail=thought)
            log.append(step, now=START, usage=Usage())
            lengths.append(length)
        log.take()
        log.confirm()

        remembered = log.events.read_recent()

        assert [event.sequence for event in remembered] == list(range(1, len(lengths) + 1))[
            len(lengths) - len(remembered) :
        ]
        assert bool(remembered) is bool(lengths)
        sizes = list(map(estimate_size, remembered))
        assert len(sizes) <= 256
        assert sum(sizes) <= 1024 * 1024 or len(sizes) == 1
        if 0 < len(remembered) < min(len(lengths), 256):
            forgotten = lengths[-len(remembered) - 1]
            assert sum(sizes) + 4 * forgotten + 512 > 1024 * 1024
