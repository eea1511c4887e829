"""Waves: calls that run in parallel, whose results are taken in the order in which the calls were given.

The outcome never depends on which call ends first. The calls of a wave are chosen before it begins, and their results
are used in the order of the calls, so the same replies give the same run, however long each takes. Calls are started,
cancelled and read in their order; no set is iterated.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from reasond_server.base.asyncio_tasks import end_task
from reasond_server.errors.base import InternalError

ResultT = TypeVar("ResultT")
FailureT = TypeVar("FailureT", bound=Exception)


async def run_wave(
    calls: Sequence[Callable[[], Awaitable[ResultT]]], *, at_once: int, failures: tuple[type[FailureT], ...]
) -> Sequence[ResultT | FailureT]:
    """Make all `calls`, at most `at_once` at a time, and return their results in order.

    If a call raises one of `failures`, that error takes the place of its result, and the other calls continue. Any
    other exception cancels the open calls and is raised; if there are several, the one of the first call in order. When
    the caller is cancelled, the calls are cancelled too. In each case all calls have ended when this function returns
    or raises, and errors that they raise while they clean up are dropped.

    Raises:
        InternalError: a call was cancelled although the caller was not; the caller must not seem to be cancelled.
        Exception: any other exception of a call.
    """
    places = asyncio.Semaphore(at_once)

    async def attempt(call: Callable[[], Awaitable[ResultT]]) -> ResultT | FailureT:
        async with places:
            try:
                return await call()
            except failures as error:
                return error

    tasks = [asyncio.create_task(attempt(call)) for call in calls]
    cause = await _wait_for_all(tasks)
    if cause is not None:
        raise cause
    if any(task.cancelled() for task in tasks):
        raise InternalError("a call of a wave was cancelled by itself")
    return [task.result() for task in tasks]


async def follow_wave(
    calls: Sequence[Callable[[], Awaitable[ResultT]]],
    *,
    at_once: int,
    failures: tuple[type[FailureT], ...],
    monotonic: Callable[[], float] = time.monotonic,
) -> AsyncGenerator[tuple[ResultT | FailureT, float], None]:
    """Make all `calls` as `run_wave` does, and yield each result with the seconds since the wave began.

    The results come in the order of the calls, each as soon as its call and those before it have ended. When the
    generator is closed, the open calls are cancelled and have ended when `aclose` returns.

    Raises:
        Exception: as `run_wave`.
    """
    began_s, ended = monotonic(), asyncio.Event()
    results: dict[int, tuple[ResultT | FailureT, float]] = {}

    async def attempt(place: int) -> None:
        result: ResultT | FailureT
        try:
            result = await calls[place]()
        except failures as error:
            result = error
        results[place] = (result, monotonic() - began_s)
        ended.set()

    attempts = [partial(attempt, place) for place in range(len(calls))]
    wave = asyncio.create_task(run_wave(attempts, at_once=at_once, failures=failures))
    wave.add_done_callback(lambda _: ended.set())
    try:
        for place in range(len(calls)):
            while place not in results and not wave.done():
                await ended.wait()
                ended.clear()
            if place not in results:
                break
            yield results[place]
        await wave
    finally:
        await end_task(wave)


async def _wait_for_all(tasks: Sequence[asyncio.Task[ResultT]]) -> BaseException | None:
    """Wait until all tasks have ended; cancel them in order when one of them fails or the caller is cancelled.

    Return the first failure, in the order of the tasks, among those that came before the cancellation. A TaskGroup
    does not fit: before Python 3.13 it leaves its caller marked as cancelled after a failure, and a task's error hides
    a real cancellation. asyncio.wait does not fit either, because it keeps tasks in sets.

    Raises:
        CancelledError: the caller was cancelled.
    """
    left, is_stopping, is_cancelled = len(tasks), False, False
    cause: BaseException | None = None
    is_due = asyncio.Event()

    def note_end(task: asyncio.Task[ResultT]) -> None:
        nonlocal left
        left -= 1
        # Reading the exception also prevents asyncio from logging it as never retrieved.
        if (not task.cancelled() and task.exception() is not None) or not left:
            is_due.set()

    for task in tasks:
        task.add_done_callback(note_end)
    while left:
        try:
            await is_due.wait()
        except asyncio.CancelledError:
            is_cancelled = True
        is_due.clear()
        if not is_stopping:
            # Cancel only once: a second cancellation would interrupt the clean-up of the tasks.
            is_stopping = True
            errors = [task.exception() for task in tasks if task.done() and not task.cancelled()]
            cause = next((error for error in errors if error is not None), None)
            for task in tasks:
                task.cancel()
    if is_cancelled:
        raise asyncio.CancelledError
    return cause
