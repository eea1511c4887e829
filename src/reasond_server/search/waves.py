"""Waves: calls that run in parallel, whose results are taken in the order in which the calls were given.

Nothing that happens depends on which call ends first. The calls of a wave are chosen before it begins, their results
are used after its last one has ended: so the same replies give the same run, however long each takes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from reasond_server.errors import InternalError, ModelError, ReasondError, TokenBudgetExhaustedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

ResultT = TypeVar("ResultT")

_OF_ONE_CALL = (ModelError, TokenBudgetExhaustedError)


async def in_parallel(
    calls: Sequence[Callable[[], Awaitable[ResultT]]], *, at_once: int
) -> Sequence[ResultT | ReasondError]:
    """Make all `calls`, at most `at_once` at a time, and return their results in order.

    They begin in order. A call that fails as a model may (ModelError, TokenBudgetExhaustedError) leaves its error in
    place of a result and the others go on. Any other exception ends all of them and is raised, of several the first
    that came. When the caller is cancelled, so are the calls, and they have ended when this function has; what they
    raise then does not take the place of the cancellation.

    Raises:
        InternalError: a call was cancelled though nobody cancelled the caller, which must not look as if.
        Exception: whatever else a call raises.
    """
    places = asyncio.Semaphore(at_once)
    failures: list[Exception] = []

    async def made(call: Callable[[], Awaitable[ResultT]]) -> ResultT | ReasondError:
        async with places:
            try:
                return await call()
            except _OF_ONE_CALL as error:
                return error
            except Exception as error:
                failures.append(error)
                raise

    tasks = [asyncio.create_task(made(call)) for call in calls]
    await _all_ended(tasks)
    if failures:
        raise failures[0]
    if any(task.cancelled() for task in tasks):
        raise InternalError("a call of a wave was cancelled by itself")
    return [task.result() for task in tasks]


async def _all_ended(tasks: Sequence[asyncio.Task[ResultT]]) -> None:
    """Wait until all have ended, which are cancelled once one of them fails or the caller is cancelled.

    Not a TaskGroup: before Python 3.13 that leaves its caller marked as cancelled after a failure, and hides a real
    cancellation behind what a task raises meanwhile.

    Raises:
        CancelledError: the caller was cancelled.
    """
    pending, is_stopping, is_cancelled = set(tasks), False, False
    while pending:
        try:
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_EXCEPTION)
        except asyncio.CancelledError:
            is_cancelled = True
            pending = {task for task in pending if not task.done()}
        if not is_stopping:
            # Once: a second time would cut short how they clean up.
            is_stopping = True
            for task in pending:
                task.cancel()
    for task in tasks:
        if not task.cancelled():
            # Else it would be logged as one that nobody has seen.
            task.exception()
    if is_cancelled:
        raise asyncio.CancelledError
