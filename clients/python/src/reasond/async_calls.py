"""The calls of the asynchronous client: its channel, the token and response of each call, and event streams."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

import grpc

from reasond.connection import authorization
from reasond.errors import ReasondError, call_cancelled, error_from, error_of, is_token_expired
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
    from reasond.v1.agent_service_pb2_grpc import AgentServiceAsyncStub
    from reasond.v1.execution_pb2 import Reasoning
    from reasond.v1.execution_service_pb2 import FollowExecutionRequest
    from reasond.v1.execution_service_pb2_grpc import ExecutionServiceAsyncStub
    from reasond.v1.reasoning_service_pb2 import ReasonIterationsRequest
    from reasond.v1.reasoning_service_pb2_grpc import ReasoningServiceAsyncStub
    from reasond.v1.repair_service_pb2 import RepairStepsRequest
    from reasond.v1.repair_service_pb2_grpc import RepairServiceAsyncStub
    from reasond.v1.repairs_pb2 import Repair
    from reasond.v1.turn_service_pb2 import ExecuteTurnRequest, ExecuteTurnResponse
    from reasond.v1.turn_service_pb2_grpc import TurnServiceAsyncStub
    from reasond.v1.turns_pb2 import PendingCall, TurnResult

EventT = TypeVar("EventT", ReasonIterationsResponse, RepairStepsResponse, FollowExecutionResponse)
OpenAsyncCall: TypeAlias = Callable[[Any, float | None], Awaitable[grpc.aio.UnaryStreamCall[Any, EventT]]]
AsyncToken: TypeAlias = str | Callable[[], str | Awaitable[str]]
RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
ArgumentT = TypeVar("ArgumentT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bound:
    """A channel, its stubs, and their event loop."""

    loop: asyncio.AbstractEventLoop
    channel: grpc.aio.Channel
    reasoning: ReasoningServiceAsyncStub
    executions: ExecutionServiceAsyncStub
    agents: AgentServiceAsyncStub
    turns: TurnServiceAsyncStub
    repairs: RepairServiceAsyncStub


class AsyncLink:
    """Makes the calls of one `AsyncClient`."""

    def __init__(self, connection: Connection, token: AsyncToken | None) -> None:
        self.connection = connection
        self._token = token
        self._bound: _Bound | None = None
        self._is_closed = False

    @property
    def has_token_provider(self) -> bool:
        """Whether the token comes from a function, which is asked once more where a token has expired."""
        return callable(self._token)

    @property
    def reasoning(self) -> ReasoningServiceAsyncStub:
        """The stub of the reasoning service; raises RuntimeError in another event loop or after closing."""
        return self._connect().reasoning

    @property
    def executions(self) -> ExecutionServiceAsyncStub:
        """The stub of the execution service; raises RuntimeError in another event loop or after closing."""
        return self._connect().executions

    @property
    def agents(self) -> AgentServiceAsyncStub:
        """The stub of the agent service; raises RuntimeError in another event loop or after closing."""
        return self._connect().agents

    @property
    def turns(self) -> TurnServiceAsyncStub:
        """The stub of the turn service; raises RuntimeError in another event loop or after closing."""
        return self._connect().turns

    @property
    def repairs(self) -> RepairServiceAsyncStub:
        """The stub of the repair service; raises RuntimeError in another event loop or after closing."""
        return self._connect().repairs

    async def close(self) -> None:
        """Cancel the calls that still run and close the channel."""
        self._is_closed = True
        bound, self._bound = self._bound, None
        if bound is not None:
            await bound.channel.close()

    async def answer(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT],
        request: RequestT,
        timeout_s: float | None,
    ) -> ResponseT:
        """Call `method` and return its response; raises ReasondError if the call fails."""
        seconds = self.connection.deadline_s(timeout_s)
        may_renew = self.has_token_provider
        while True:
            metadata = await self._metadata()
            try:
                return await method(request, timeout=seconds, metadata=metadata)
            except grpc.aio.AioRpcError as failure:
                error = error_from(failure)
            except asyncio.CancelledError:
                raise_if_only_the_call_was_cancelled()
                raise
            if not (may_renew and is_token_expired(error)):
                raise error
            may_renew = False

    async def run(self, function: Callable[[ArgumentT], ResultT], argument: ArgumentT) -> ResultT:
        """Return what a function returns that reads files, and for which the event loop must not wait."""
        return await asyncio.to_thread(function, argument)

    async def open_events(
        self, request: ReasonIterationsRequest, seconds: float | None
    ) -> grpc.aio.UnaryStreamCall[ReasonIterationsRequest, ReasonIterationsResponse]:
        """Start a call of ReasonIterations with a deadline in `seconds`."""
        metadata = await self._metadata()
        return self.reasoning.ReasonIterations(request, timeout=seconds, metadata=metadata)

    async def open_repair(
        self, request: RepairStepsRequest, seconds: float | None
    ) -> grpc.aio.UnaryStreamCall[RepairStepsRequest, RepairStepsResponse]:
        """Start a call of RepairSteps with a deadline in `seconds`."""
        metadata = await self._metadata()
        return self.repairs.RepairSteps(request, timeout=seconds, metadata=metadata)

    async def open_observation(
        self, request: FollowExecutionRequest, seconds: float | None
    ) -> grpc.aio.UnaryStreamCall[FollowExecutionRequest, FollowExecutionResponse]:
        """Start a call of FollowExecution with a deadline in `seconds`."""
        metadata = await self._metadata()
        return self.executions.FollowExecution(request, timeout=seconds, metadata=metadata)

    async def open_turn(
        self, request: ExecuteTurnRequest, timeout_s: float | None
    ) -> AsyncGenerator[ExecuteTurnResponse, None]:
        """Call ExecuteTurn and yield its events; raises ReasondError if the call fails."""
        seconds = self.connection.deadline_s(timeout_s)
        may_renew = self.has_token_provider
        while True:
            call = self.turns.ExecuteTurn(request, timeout=seconds, metadata=await self._metadata())
            try:
                async for event in call:
                    yield event
            except grpc.aio.AioRpcError as failure:
                error = await _read_error(call, failure)
            except asyncio.CancelledError:
                raise_if_only_the_call_was_cancelled()
                raise
            else:
                return
            finally:
                call.cancel()
            if not (may_renew and is_token_expired(error)):
                raise error
            may_renew = False

    async def run_tool(self, tool: ClientFunction[..., Any], arguments: Mapping[str, Any]) -> object:
        """Run a client tool, a plain function in a thread of its own."""
        if tool.is_async:
            return await tool.function(**arguments)
        return await asyncio.to_thread(tool.function, **arguments)

    async def ask(self, callback: Callable[[PendingCall], Any] | None, pending: PendingCall) -> Any:  # noqa: ANN401 - what the callback returns
        """Return what a plain or asynchronous callback says of a pending call; False if there is none."""
        said = callback(pending) if callback is not None else False
        return await said if inspect.isawaitable(said) else said

    async def pause(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    def _connect(self) -> _Bound:
        if self._is_closed:
            raise RuntimeError("the client is closed")
        loop = asyncio.get_running_loop()
        if self._bound is None:
            # created on first use, because a channel belongs to the event loop that runs at its creation
            channel = self._channel()
            self._bound = _Bound(
                loop=loop,
                channel=channel,
                reasoning=cast("ReasoningServiceAsyncStub", ReasoningServiceStub(channel)),
                executions=cast("ExecutionServiceAsyncStub", ExecutionServiceStub(channel)),
                agents=cast("AgentServiceAsyncStub", AgentServiceStub(channel)),
                turns=cast("TurnServiceAsyncStub", TurnServiceStub(channel)),
                repairs=cast("RepairServiceAsyncStub", RepairServiceStub(channel)),
            )
        if self._bound.loop is not loop:
            raise RuntimeError("the client belongs to another event loop; make one client for each")
        return self._bound

    def _channel(self) -> grpc.aio.Channel:
        target, arguments = self.connection.target, self.connection.channel_arguments()
        credentials = self.connection.credentials()
        if credentials is None:
            return grpc.aio.insecure_channel(target, options=arguments)
        return grpc.aio.secure_channel(target, credentials, options=arguments)

    async def _metadata(self) -> tuple[tuple[str, str], ...]:
        token = self._token() if callable(self._token) else self._token
        return authorization((await token if inspect.isawaitable(token) else token) or "")


class AsyncEventStream(AsyncIterator[EventT], Generic[EventT]):
    """Events of one execution.

    The call starts when the first event is requested. There are two ways to use it::

        async for event in client.reason_iterations("..."):
            ...

        async with client.reason_iterations("...") as events:
            async for event in events:
                ...

    The first cancels the call when the loop ends, for any reason. The second cancels it at the end of the
    block; until then the loop may be left and entered again. Cancelling the call cancels the execution,
    unless it was started with `keep_running`, or the stream only observes it.
    """

    def __init__(self, open_call: OpenAsyncCall[EventT], progress: Progress) -> None:
        self._progress = progress
        # The generator refers to the progress, never to this object: without a reference cycle, an abandoned
        # stream is finalized and its call cancelled at once, not at the next garbage collection.
        self._events: AsyncGenerator[EventT, None] = _events(open_call, progress)
        self._is_entered = False

    @property
    def execution_id(self) -> str:
        """The id of the execution; empty until the first event."""
        return self._progress.execution_id

    @property
    def last_sequence(self) -> int:
        """The last sequence number that was received, for `resume`."""
        return self._progress.last_sequence

    async def __aenter__(self) -> Self:
        self._is_entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[EventT]:  # noqa: PYI034 - a guard, see the class
        return self if self._is_entered else self._until_left()

    async def __anext__(self) -> EventT:
        return await anext(self._events)

    async def _until_left(self) -> AsyncGenerator[EventT, None]:
        try:
            async for event in self._events:
                yield event
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Cancel the call, if it still runs; another task that waits for an event gets CallCancelledError."""
        self._progress.close()
        with contextlib.suppress(RuntimeError):  # another task waits inside; the cancelled call ends its wait
            await self._events.aclose()


class AsyncReasoningStream(AsyncEventStream[ReasonIterationsResponse]):
    """Events of a task; made by `AsyncClient.reason_iterations` and `AsyncClient.resume`."""

    @property
    def result(self) -> Reasoning | None:
        """The result after the end of the execution; partial if it failed or was cancelled."""
        return cast("Reasoning | None", self._progress.result)


class AsyncExecutionStream(AsyncEventStream[FollowExecutionResponse]):
    """Events of an execution of any kind; made by `AsyncClient.follow_execution`. It only observes."""

    @property
    def result(self) -> Reasoning | TurnResult | Repair | None:
        """The result after the end of the execution; partial if it failed or was cancelled."""
        return self._progress.result


class AsyncRepairStream(AsyncEventStream[RepairStepsResponse]):
    """Events of a repair; made by `AsyncClient.repair_steps`."""

    @property
    def result(self) -> Repair | None:
        """The result after the end of the repair; partial if it failed or was cancelled."""
        return cast("Repair | None", self._progress.result)


async def _events(open_call: OpenAsyncCall[EventT], progress: Progress) -> AsyncGenerator[EventT, None]:
    while True:
        call = progress.adopt(await open_call(progress.next_request(), progress.remaining_s()))
        try:
            async for event in call:
                progress.note(event)
                yield event
        except grpc.aio.AioRpcError as failure:
            error = await _read_error(call, failure)
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


async def _read_error(call: grpc.aio.Call, failure: grpc.aio.AioRpcError) -> ReasondError:
    """Return the error for the call's own status: the status of `failure` may be a placeholder without details."""
    error = error_of(await call.code(), await call.details(), await call.trailing_metadata())
    error.__cause__ = failure
    return error


def raise_if_only_the_call_was_cancelled() -> None:
    """Raise CallCancelledError if the call was cancelled, but not the task that waits for it."""
    task = asyncio.current_task()
    if task is not None and not task.cancelling():
        raise call_cancelled() from None
