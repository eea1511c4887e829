"""The events of one execution as a blocking stream that cancels its call when it is left."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Protocol, TypeAlias

import grpc

from reasond.errors import error_from
from reasond.v1.reasoning_service_pb2 import ReasonIterationsRequest, ReasonIterationsResponse

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from reasond.progress import Progress
    from reasond.v1.execution_pb2 import Reasoning


class SyncCall(Protocol):
    """A call that blocks for its events."""

    def __iter__(self) -> Iterator[ReasonIterationsResponse]:
        """Wait for the events; raises grpc.RpcError."""

    def cancel(self) -> bool:
        """Cancel the call; return whether it still ran."""


OpenSyncCall: TypeAlias = Callable[[ReasonIterationsRequest, float | None], SyncCall]


class ReasoningStream(Iterator[ReasonIterationsResponse]):
    """Events of one execution; made by `Client.reason_iterations` and `Client.resume`.

    The call starts with the first event that is asked for. `for event in stream` cancels it as soon as the
    loop is left, in whatever way; inside `with stream:` the loop may be left and entered again, and the call is
    cancelled at the end of the block. Cancelling the call cancels the execution, unless it was started with
    `keep_running`.
    """

    def __init__(self, open_call: OpenSyncCall, progress: Progress) -> None:
        self._progress = progress
        # As in AsyncReasoningStream, the generator does not know this object, so that an abandoned stream is
        # finalized, and its call cancelled, at once.
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

    def __enter__(self) -> Self:
        self._is_entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[ReasonIterationsResponse]:  # noqa: PYI034 - a guard, see the class
        return self if self._is_entered else self._until_left()

    def __next__(self) -> ReasonIterationsResponse:
        return next(self._events)

    def _until_left(self) -> Generator[ReasonIterationsResponse, None, None]:
        try:
            yield from self._events
        finally:
            self.close()

    def close(self) -> None:
        """Cancel the call, if it still runs; another thread that waits for an event gets CallCancelledError."""
        self._progress.close()
        with contextlib.suppress(ValueError):  # another thread is inside; the cancelled call lets it go
            self._events.close()


def _events(open_call: OpenSyncCall, progress: Progress) -> Generator[ReasonIterationsResponse, None, None]:
    while True:
        call = progress.opened(open_call(progress.next_request(), progress.remaining_s()))
        try:
            for event in call:
                progress.note(event)
                yield event
        except grpc.RpcError as failure:
            error = error_from(failure)
        else:
            return
        finally:
            call.cancel()
        wait_s = progress.wait_before_retry(error)
        if wait_s is None:
            raise error
        time.sleep(wait_s)
