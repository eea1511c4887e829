"""Waves: results in order, failures told apart, nothing left behind."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.errors import InternalError, ModelFailedError, TokenBudgetExhaustedError
from reasond_server.search.waves import in_parallel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence


async def after(turns: int, value: int, ended: list[int] | None = None) -> int:
    for _ in range(turns):
        await asyncio.sleep(0)
    if ended is not None:
        ended.append(value)
    return value


async def failing(error: Exception) -> int:
    await asyncio.sleep(0)
    raise error


@given(turns=st.lists(st.integers(0, 8), max_size=8), at_once=st.integers(1, 9))
def test_results_are_in_the_order_of_the_calls_whichever_ends_first(turns: list[int], at_once: int) -> None:
    calls = [partial(after, count, place) for place, count in enumerate(turns)]
    assert asyncio.run(_run(calls, at_once)) == list(range(len(turns)))


async def _run(calls: Sequence[Callable[[], Awaitable[int]]], at_once: int) -> list[object]:
    return list(await in_parallel(calls, at_once=at_once))


async def test_no_more_calls_are_open_than_may_and_they_begin_in_order() -> None:
    began: list[int] = []
    state = {"open": 0, "most": 0}

    async def call(place: int) -> None:
        began.append(place)
        state["open"] += 1
        state["most"] = max(state["most"], state["open"])
        for _ in range(5 - place % 3):
            await asyncio.sleep(0)
        state["open"] -= 1

    await in_parallel([partial(call, place) for place in range(7)], at_once=3)
    assert began == list(range(7))
    assert state == {"open": 0, "most": 3}


async def test_a_failed_model_call_leaves_its_error_and_the_others_go_on() -> None:
    errors = [ModelFailedError("gone"), TokenBudgetExhaustedError("spent")]
    calls = [partial(after, 3, 1), *(partial(failing, error) for error in errors), partial(after, 1, 2)]
    assert list(await in_parallel(calls, at_once=4)) == [1, *errors, 2]


@pytest.mark.parametrize("error", [InternalError("the run is over"), ZeroDivisionError("a bug")])
async def test_any_other_error_ends_all_and_is_raised_as_itself(error: Exception) -> None:
    ended: list[int] = []
    with pytest.raises(type(error)) as raised:
        await in_parallel([partial(after, 50, 1, ended), partial(failing, error)], at_once=2)
    assert raised.value is error
    assert not ended


async def test_cancelling_the_caller_ends_every_call_before_it_returns() -> None:
    closed: list[int] = []
    began = asyncio.Event()

    async def call(place: int) -> None:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            closed.append(place)

    task = asyncio.create_task(in_parallel([partial(call, 0), partial(call, 1)], at_once=2))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(closed) == [0, 1]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_call_that_cancels_itself_does_not_look_like_a_cancelled_caller() -> None:
    async def call() -> int:
        raise asyncio.CancelledError

    calls: list[Callable[[], Awaitable[int]]] = [call, partial(after, 2, 1)]
    with pytest.raises(InternalError, match="cancelled by itself"):
        await in_parallel(calls, at_once=2)


async def test_what_a_call_raises_while_it_is_cancelled_does_not_hide_the_cancellation() -> None:
    began = asyncio.Event()

    async def call() -> int:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            raise ZeroDivisionError
        return 1

    task = asyncio.create_task(in_parallel([call], at_once=1))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
