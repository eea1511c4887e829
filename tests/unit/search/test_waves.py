"""Waves: results stay in order, kinds of failures are distinguished, and no call is left behind."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.errors.base import InternalError
from reasond_server.search.waves import run_wave

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence


FAILURES = (LookupError, ConnectionError)


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
    return list(await run_wave(calls, at_once=at_once, failures=FAILURES))


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

    await run_wave([partial(call, place) for place in range(7)], at_once=3, failures=FAILURES)
    assert began == list(range(7))
    assert state == {"open": 0, "most": 3}


async def test_a_failed_model_call_leaves_its_error_and_the_others_go_on() -> None:
    errors = [LookupError("gone"), ConnectionError("spent")]
    calls = [partial(after, 3, 1), *(partial(failing, error) for error in errors), partial(after, 1, 2)]
    assert list(await run_wave(calls, at_once=4, failures=FAILURES)) == [1, *errors, 2]


@pytest.mark.parametrize("error", [InternalError("the run is over"), ZeroDivisionError("a bug")])
async def test_any_other_error_ends_all_and_is_raised_as_itself(error: Exception) -> None:
    ended: list[int] = []
    with pytest.raises(type(error)) as raised:
        await run_wave([partial(after, 50, 1, ended), partial(failing, error)], at_once=2, failures=FAILURES)
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

    task = asyncio.create_task(run_wave([partial(call, 0), partial(call, 1)], at_once=2, failures=FAILURES))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed == [0, 1]
    assert asyncio.all_tasks() == {asyncio.current_task()}


@given(st.lists(st.integers(0, 3), min_size=2, max_size=12), st.integers(0, 11))
def test_calls_are_cancelled_in_their_order(turns: list[int], failing: int) -> None:
    """The order does not depend on what the calls wait for, or on which of them fails first."""
    cancelled: list[int] = []

    async def call(place: int) -> None:
        await after(turns[place], place)
        if place == failing % len(turns):
            raise ZeroDivisionError
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(place)
            raise

    async def wave() -> None:
        with pytest.raises(ZeroDivisionError):
            await run_wave([partial(call, place) for place in range(len(turns))], at_once=99, failures=FAILURES)

    asyncio.run(wave())
    assert cancelled == sorted(cancelled)


async def test_of_several_calls_that_fail_at_once_the_error_of_the_first_is_raised() -> None:
    errors = [ZeroDivisionError(str(place)) for place in range(5)]
    with pytest.raises(ZeroDivisionError) as raised:
        await run_wave([partial(failing, error) for error in errors], at_once=9, failures=FAILURES)
    assert raised.value is errors[0]


async def test_only_the_failures_that_are_named_leave_the_others_alone() -> None:
    error = LookupError("gone")
    assert list(await run_wave([partial(failing, error)], at_once=1, failures=(LookupError,))) == [error]
    with pytest.raises(LookupError):
        await run_wave([partial(failing, error)], at_once=1, failures=(ConnectionError,))


async def test_a_wave_without_calls_has_no_results() -> None:
    assert list(await run_wave([], at_once=1, failures=FAILURES)) == []


async def test_a_call_that_cancels_itself_does_not_look_like_a_cancelled_caller() -> None:
    async def call() -> int:
        raise asyncio.CancelledError

    calls: list[Callable[[], Awaitable[int]]] = [call, partial(after, 2, 1)]
    with pytest.raises(InternalError, match="cancelled by itself"):
        await run_wave(calls, at_once=2, failures=FAILURES)


async def test_what_a_call_raises_while_it_is_cancelled_does_not_hide_the_cancellation() -> None:
    began = asyncio.Event()

    async def call() -> int:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            raise ZeroDivisionError
        return 1

    task = asyncio.create_task(run_wave([call], at_once=1, failures=FAILURES))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
