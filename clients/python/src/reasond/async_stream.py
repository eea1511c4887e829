"""The events of one execution as an asynchronous stream that cancels its call when it is left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

import grpc

from reasond.errors import ReasondError, call_cancelled, error_of
from reasond.v1.reasoning_service_pb2 import ReasonIterationsRequest, ReasonIterationsResponse

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from reasond.progress import Progress
    from reasond.v1.execution_pb2 import Reasoning

AsyncCall: TypeAlias = grpc.aio.UnaryStreamCall[ReasonIterationsRequest, ReasonIterationsResponse]
OpenAsyncCall: TypeAlias = Callable[[ReasonIterationsRequest, float | None], Awaitable[AsyncCall]]


class AsyncReasoningStream(AsyncIterator[ReasonIterationsResponse]):
    """Events of one execution; made by `AsyncClient.reason_iterations` and `AsyncClient.resume`.

    The call starts with the first event that is asked for. Use it in one of two ways::

        async for event in client.reason_iterations("..."):
            ...

        async with client.reason_iterations("...") as events:
            async for event in events:
                ...

    The first cancels the call as soon as the loop is left, in whatever way. The second does so at the end of
    the block; until then the loop may be left and entered again. Cancelling the call cancels the execution,
    unless it was started with `keep_running`.
    """

    def __init__(self, open_call: OpenAsyncCall, progress: Progress) -> None:
        self._progress = progress
        # The generator knows the progress, never this object: without a cycle between them an abandoned
        # stream is finalized at once, and its call cancelled, instead of when the collector comes by.
        self._events = _events(open_call, progress)
        self._is_entered = False

    @property
    def execution_id(self) -> str:
        """The execution; empty until its first event came."""
        return self._progress.execution_id

    @property
    def last_sequence(self) -> int:
        """The last sequence number that was seen, for `resume`."""
        return self._progress.last_sequence

    @property
    def result(self) -> Reasoning | None:
        """The result, once the execution ended; partial where it failed or was cancelled."""
        return self._progress.result

    async def __aenter__(self) -> Self:
        self._is_entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[ReasonIterationsResponse]:  # noqa: PYI034 - a guard, see the class
        return self if self._is_entered else self._until_left()

    async def __anext__(self) -> ReasonIterationsResponse:
        return await anext(self._events)

    async def _until_left(self) -> AsyncGenerator[ReasonIterationsResponse, None]:
        try:
            async for event in self._events:
                yield event
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Cancel the call, if it still runs; another task that waits for an event gets CallCancelledError."""
        self._progress.close()
        with contextlib.suppress(RuntimeError):  # another task is inside; the cancelled call lets it go
            await self._events.aclose()


async def _events(open_call: OpenAsyncCall, progress: Progress) -> AsyncGenerator[ReasonIterationsResponse, None]:
    while True:
        call = progress.opened(await open_call(progress.next_request(), progress.remaining_s()))
        try:
            async for event in call:
                progress.note(event)
                yield event
        except grpc.aio.AioRpcError as failure:
            error = await _settled(call, failure)
        except asyncio.CancelledError:
            raise_if_only_the_call_was_cancelled()
            raise
        else:
            return
        finally:
            call.cancel()
        wait_s = progress.wait_before_retry(error)
        if wait_s is None:
            raise error
        await asyncio.sleep(wait_s)


async def _settled(call: AsyncCall, failure: grpc.aio.AioRpcError) -> ReasondError:
    """Return the error by the call's own status: that of `failure` may be a placeholder without details."""
    error = error_of(await call.code(), await call.details(), await call.trailing_metadata())
    error.__cause__ = failure
    return error


def raise_if_only_the_call_was_cancelled() -> None:
    """Raise CallCancelledError where the running task was not cancelled, but the call that it waits for."""
    task = asyncio.current_task()
    if task is not None and not task.cancelling():
        raise call_cancelled() from None
