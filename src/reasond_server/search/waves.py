"""Waves: calls that run in parallel, whose results are taken in the order in which the calls were given.

Nothing that happens depends on which call ends first. The calls of a wave are chosen before it begins, their results
are used after its last one has ended: so the same replies give the same run, however long each takes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from reasond_server.errors import ModelError, ReasondError, TokenBudgetExhaustedError

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
    that came. When the caller is cancelled, so are the calls, and they have ended when this function has.

    Raises:
        Exception: whatever else a call raises.
    """
    places = asyncio.Semaphore(at_once)

    async def made(call: Callable[[], Awaitable[ResultT]]) -> ResultT | ReasondError:
        async with places:
            try:
                return await call()
            except _OF_ONE_CALL as error:
                return error

    tasks: list[asyncio.Task[ResultT | ReasondError]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks.extend(group.create_task(made(call)) for call in calls)
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]
