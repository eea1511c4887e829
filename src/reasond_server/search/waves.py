"""Waves: calls that run in parallel, whose results are taken in the order in which the calls were given.

Nothing that happens depends on which call ends first. The calls of a wave are chosen before it begins, and their
results are used after its last call has ended: the same replies give the same run, however long each takes. Calls are
begun, cancelled and read in their order; no set is iterated.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from reasond_server.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

ResultT = TypeVar("ResultT")
FailureT = TypeVar("FailureT", bound=Exception)


async def run_wave(
    calls: Sequence[Callable[[], Awaitable[ResultT]]], *, at_once: int, failures: tuple[type[FailureT], ...]
) -> Sequence[ResultT | FailureT]:
    """Make all `calls`, at most `at_once` at a time, and return their results in order.

    A call that raises one of `failures` leaves that error in the place of its result, and the others go on. Any other
    exception cancels the calls that are open and is raised; of several at once, that of the first call. When the caller
    is cancelled, so are the calls. In each case all calls have ended when this function has, and what they raise while
    they clean up is dropped.

    Raises:
        InternalError: a call was cancelled though nobody cancelled the caller, which must not look as if.
        Exception: whatever else a call raises.
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


async def _wait_for_all(tasks: Sequence[asyncio.Task[ResultT]]) -> BaseException | None:
    """Wait until all have ended; cancel them, in order, once one of them fails or the caller is cancelled.

    Return the first failure in the order of the tasks, of those that came before anything was cancelled. Not a
    TaskGroup: before Python 3.13 that leaves its caller marked as cancelled after a failure, and hides a real
    cancellation behind what a task raises meanwhile. Not asyncio.wait: it keeps tasks in sets.

    Raises:
        CancelledError: the caller was cancelled.
    """
    left, is_stopping, is_cancelled = len(tasks), False, False
    cause: BaseException | None = None
    is_due = asyncio.Event()

    def note_end(task: asyncio.Task[ResultT]) -> None:
        nonlocal left
        left -= 1
        # Asking for the exception also keeps it from being logged as one that nobody has seen.
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
            # Once: a second cancellation would cut short how they clean up.
            is_stopping = True
            errors = [task.exception() for task in tasks if task.done() and not task.cancelled()]
            cause = next((error for error in errors if error is not None), None)
            for task in tasks:
                task.cancel()
    if is_cancelled:
        raise asyncio.CancelledError
    return cause
