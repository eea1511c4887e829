"""The calls of the blocking client: its channel, the token and response of each call, and event streams."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, cast

import grpc

from reasond.connection import authorization
from reasond.errors import error_from, is_token_expired
from reasond.v1.agent_service_pb2_grpc import AgentServiceStub
from reasond.v1.execution_service_pb2 import FollowExecutionResponse
from reasond.v1.execution_service_pb2_grpc import ExecutionServiceStub
from reasond.v1.reasoning_service_pb2 import ReasonIterationsResponse
from reasond.v1.reasoning_service_pb2_grpc import ReasoningServiceStub
from reasond.v1.repair_service_pb2 import RepairStepsResponse
from reasond.v1.repair_service_pb2_grpc import RepairServiceStub
from reasond.v1.turn_service_pb2_grpc import TurnServiceStub

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

    from reasond.client_tools import ClientFunction
    from reasond.connection import Connection
    from reasond.progress import Progress
    from reasond.v1.execution_pb2 import Reasoning
    from reasond.v1.execution_service_pb2 import FollowExecutionRequest
    from reasond.v1.reasoning_service_pb2 import ReasonIterationsRequest
    from reasond.v1.repair_service_pb2 import RepairStepsRequest
    from reasond.v1.repairs_pb2 import Repair
    from reasond.v1.turn_service_pb2 import ExecuteTurnRequest, ExecuteTurnResponse
    from reasond.v1.turns_pb2 import PendingCall, TurnResult

Token: TypeAlias = str | Callable[[], str]
RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
ArgumentT = TypeVar("ArgumentT")
ResultT = TypeVar("ResultT")
MessageT = TypeVar("MessageT")
EventT = TypeVar("EventT", ReasonIterationsResponse, RepairStepsResponse, FollowExecutionResponse)
EventT_co = TypeVar("EventT_co", covariant=True)


class SyncCall(Protocol[EventT_co]):
    """A call that blocks until its next event."""

    def __iter__(self) -> Iterator[EventT_co]:
        """Wait for the events; raises grpc.RpcError."""

    def cancel(self) -> bool:
        """Cancel the call; return whether it still ran."""


OpenSyncCall: TypeAlias = Callable[[Any, float | None], SyncCall[EventT]]


class SyncLink:
    """Makes the calls of one `Client`, from any thread."""

    def __init__(self, connection: Connection, token: Token | None) -> None:
        self.connection = connection
        self._token = token
        self._is_closed = False
        self._channel = _channel(connection)
        self._reasoning = ReasoningServiceStub(self._channel)
        self._executions = ExecutionServiceStub(self._channel)
        self._agents = AgentServiceStub(self._channel)
        self._turns = TurnServiceStub(self._channel)
        self._repairs = RepairServiceStub(self._channel)

    @property
    def has_token_provider(self) -> bool:
        """Whether the token comes from a function, which is asked once more where a token has expired."""
        return callable(self._token)

    @property
    def reasoning(self) -> ReasoningServiceStub:
        """The stub of the reasoning service; raises RuntimeError after closing."""
        self._raise_if_closed()
        return self._reasoning

    @property
    def executions(self) -> ExecutionServiceStub:
        """The stub of the execution service; raises RuntimeError after closing."""
        self._raise_if_closed()
        return self._executions

    @property
    def agents(self) -> AgentServiceStub:
        """The stub of the agent service; raises RuntimeError after closing."""
        self._raise_if_closed()
        return self._agents

    @property
    def turns(self) -> TurnServiceStub:
        """The stub of the turn service; raises RuntimeError after closing."""
        self._raise_if_closed()
        return self._turns

    @property
    def repairs(self) -> RepairServiceStub:
        """The stub of the repair service; raises RuntimeError after closing."""
        self._raise_if_closed()
        return self._repairs

    def close(self) -> None:
        """Cancel the calls that still run and close the channel."""
        self._is_closed = True
        self._channel.close()

    def answer(
        self, method: grpc.UnaryUnaryMultiCallable[RequestT, ResponseT], request: RequestT, timeout_s: float | None
    ) -> ResponseT:
        """Call `method` and return its response; raises ReasondError if the call fails."""
        may_renew = self.has_token_provider
        while True:
            # a future, because a plain call would continue on the server after Ctrl-C
            call = method.future(request, timeout=self.connection.deadline_s(timeout_s), metadata=self._metadata())
            try:
                _await_end(call)
                return call.result()
            except grpc.RpcError as failure:
                error = error_from(failure)
            finally:
                call.cancel()
            if not (may_renew and is_token_expired(error)):
                raise error
            may_renew = False

    def run(self, function: Callable[[ArgumentT], ResultT], argument: ArgumentT) -> ResultT:
        """Return what a function returns that reads files; the asynchronous client runs it in a thread."""
        return function(argument)

    def open_events(
        self, request: ReasonIterationsRequest, seconds: float | None
    ) -> SyncCall[ReasonIterationsResponse]:
        """Start a call of ReasonIterations with a deadline in `seconds`."""
        return self.reasoning.ReasonIterations(request, timeout=seconds, metadata=self._metadata())

    def open_repair(self, request: RepairStepsRequest, seconds: float | None) -> SyncCall[RepairStepsResponse]:
        """Start a call of RepairSteps with a deadline in `seconds`."""
        return self.repairs.RepairSteps(request, timeout=seconds, metadata=self._metadata())

    def open_observation(
        self, request: FollowExecutionRequest, seconds: float | None
    ) -> SyncCall[FollowExecutionResponse]:
        """Start a call of FollowExecution with a deadline in `seconds`."""
        return self.executions.FollowExecution(request, timeout=seconds, metadata=self._metadata())

    def open_turn(
        self, request: ExecuteTurnRequest, timeout_s: float | None
    ) -> Generator[ExecuteTurnResponse, None, None]:
        """Call ExecuteTurn and yield its events; raises ReasondError if the call fails."""
        seconds = self.connection.deadline_s(timeout_s)
        may_renew = self.has_token_provider
        while True:
            call = self.turns.ExecuteTurn(request, timeout=seconds, metadata=self._metadata())
            try:
                yield from _read(call)
            except grpc.RpcError as failure:
                error = error_from(failure)
            else:
                return
            finally:
                call.cancel()
            if not (may_renew and is_token_expired(error)):
                raise error
            may_renew = False

    def run_tool(self, tool: ClientFunction[..., Any], arguments: Mapping[str, Any]) -> object:
        """Run a client tool, an asynchronous function in an event loop of its own."""
        return _finish(tool.function(**arguments))

    def ask(self, callback: Callable[[PendingCall], Any] | None, pending: PendingCall) -> Any:  # noqa: ANN401 - what the callback returns
        """Return what a plain or asynchronous callback says of a pending call; False if there is none."""
        return _finish(callback(pending)) if callback is not None else False

    def pause(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def _raise_if_closed(self) -> None:
        if self._is_closed:
            raise RuntimeError("the client is closed")

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return authorization((self._token() if callable(self._token) else self._token) or "")


def _finish(returned: object) -> object:
    """Return what a function returned; that of a coroutine after it has run."""
    return asyncio.run(returned) if inspect.iscoroutine(returned) else returned


# Python raises KeyboardInterrupt wherever the main thread is. Within grpc that may leave a lock taken, after which no
# other call of the channel ends. So the main thread never waits within grpc.
_INTERRUPTIBLE_EVERY_S = 0.1


def _is_interruptible() -> bool:
    return threading.current_thread() is threading.main_thread()


def _await_end(call: grpc.Future[ResponseT]) -> None:
    """Wait until `call` has ended, if this is the main thread."""
    if _is_interruptible():
        ended: SimpleQueue[object] = SimpleQueue()
        call.add_done_callback(ended.put)
        _take(ended)


def _take(queue: SimpleQueue[ResultT]) -> ResultT:
    """Wait for the next entry; an endless wait would not be interrupted on Windows."""
    while True:
        with contextlib.suppress(Empty):
            return queue.get(timeout=_INTERRUPTIBLE_EVERY_S)


def _read(call: Iterable[MessageT]) -> Generator[MessageT, None, None]:
    """Yield the events of `call`; for the main thread another thread waits for them, one at a time."""
    if not _is_interruptible():
        yield from call
        return
    wishes: SimpleQueue[bool] = SimpleQueue()
    events: SimpleQueue[MessageT | BaseException] = SimpleQueue()
    threading.Thread(target=_fetch, args=(iter(call), wishes, events), daemon=True).start()
    try:
        while True:
            wishes.put(True)
            event = _take(events)
            if isinstance(event, StopIteration):
                return
            if isinstance(event, BaseException):
                raise event
            yield event
    finally:
        wishes.put(False)


def _fetch(call: Iterator[MessageT], wishes: SimpleQueue[bool], events: SimpleQueue[MessageT | BaseException]) -> None:
    """Put an event of `call` into `events` for each wish, until it ends or a wish is False."""
    while wishes.get():
        try:
            events.put(next(call))
        except BaseException as end:  # noqa: BLE001 - whoever waits for the event raises it
            events.put(end)
            return


def _channel(connection: Connection) -> grpc.Channel:
    credentials = connection.credentials()
    if credentials is None:
        return grpc.insecure_channel(connection.target, options=connection.channel_arguments())
    return grpc.secure_channel(connection.target, credentials, options=connection.channel_arguments())


class EventStream(Iterator[EventT], Generic[EventT]):
    """Events of one execution.

    The call starts when the first event is requested. `for event in stream` cancels it when the loop ends, for
    any reason; inside `with stream:` the loop may be left and entered again, and the call is cancelled at the end
    of the block. Cancelling the call cancels the execution, unless it was started with
    `keep_running`, or the stream only observes it.
    """

    def __init__(self, open_call: OpenSyncCall[EventT], progress: Progress) -> None:
        self._progress = progress
        # As in AsyncEventStream, the generator does not refer to this object, so that an abandoned stream is
        # finalized and its call cancelled at once.
        self._events: Generator[EventT, None, None] = _events(open_call, progress)
        self._is_entered = False

    @property
    def execution_id(self) -> str:
        """The id of the execution; empty until the first event."""
        return self._progress.execution_id

    @property
    def last_sequence(self) -> int:
        """The last sequence number that was received, for `resume`."""
        return self._progress.last_sequence

    def __enter__(self) -> Self:
        self._is_entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[EventT]:  # noqa: PYI034 - a guard, see the class
        return self if self._is_entered else self._until_left()

    def __next__(self) -> EventT:
        return next(self._events)

    def _until_left(self) -> Generator[EventT, None, None]:
        try:
            yield from self._events
        finally:
            self.close()

    def close(self) -> None:
        """Cancel the call, if it still runs; another thread that waits for an event gets CallCancelledError."""
        self._progress.close()
        with contextlib.suppress(ValueError):  # another thread waits inside; the cancelled call ends its wait
            self._events.close()


class ReasoningStream(EventStream[ReasonIterationsResponse]):
    """Events of a task; made by `Client.reason_iterations` and `Client.resume`."""

    @property
    def result(self) -> Reasoning | None:
        """The result after the end of the execution; partial if it failed or was cancelled."""
        return cast("Reasoning | None", self._progress.result)


class ExecutionStream(EventStream[FollowExecutionResponse]):
    """Events of an execution of any kind; made by `Client.follow_execution`. It only observes."""

    @property
    def result(self) -> Reasoning | TurnResult | Repair | None:
        """The result after the end of the execution; partial if it failed or was cancelled."""
        return self._progress.result


class RepairStream(EventStream[RepairStepsResponse]):
    """Events of a repair; made by `Client.repair_steps`."""

    @property
    def result(self) -> Repair | None:
        """The result after the end of the repair; partial if it failed or was cancelled."""
        return cast("Repair | None", self._progress.result)


def _events(open_call: OpenSyncCall[EventT], progress: Progress) -> Generator[EventT, None, None]:
    while True:
        call = progress.adopt(open_call(progress.next_request(), progress.remaining_s()))
        try:
            for event in _read(call):
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
