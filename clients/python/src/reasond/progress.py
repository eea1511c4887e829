"""The progress of an event stream, and its resumption after a broken connection."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

import grpc

from reasond.errors import call_cancelled, is_token_expired
from reasond.v1.execution_pb2 import ExecutionCursor
from reasond.v1.execution_service_pb2 import FollowExecutionRequest, FollowExecutionResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from reasond.errors import ReasondError
    from reasond.v1.execution_pb2 import Reasoning
    from reasond.v1.reasoning_service_pb2 import ReasonIterationsRequest, ReasonIterationsResponse
    from reasond.v1.repair_service_pb2 import RepairStepsRequest, RepairStepsResponse
    from reasond.v1.repairs_pb2 import Repair
    from reasond.v1.turn_service_pb2 import ExecuteTurnResponse
    from reasond.v1.turns_pb2 import TurnResult

StreamRequest: TypeAlias = "ReasonIterationsRequest | RepairStepsRequest | FollowExecutionRequest"
StreamEvent: TypeAlias = "ReasonIterationsResponse | RepairStepsResponse | FollowExecutionResponse"
_LONGEST_WAIT_S = 60.0
_CODES_OF_PROXIES: Final = frozenset({grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN})

CallT = TypeVar("CallT", bound="Cancellable")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconnectPolicy:
    """The number of attempts to resume a broken stream, and the waits between them.

    `max_attempts` limits consecutive attempts without an event. The wait doubles from `initial_backoff_s` up to
    `max_backoff_s` (seconds); `jitter` (0.0-1.0) shortens it by up to a half. A longer wait that the server
    requests is used, up to a minute.
    """

    max_attempts: int = 6
    initial_backoff_s: float = 0.2
    max_backoff_s: float = 5.0
    jitter: Callable[[], float] = field(default=random.random, repr=False)

    def wait_s(self, attempt: int, retry_after: float | None) -> float:
        """Return the seconds to wait before attempt number `attempt`, counted from 0."""
        backoff = min(self.max_backoff_s, self.initial_backoff_s * 2.0**attempt)
        return max(backoff * (1 - self.jitter() / 2), min(retry_after or 0.0, _LONGEST_WAIT_S))


class Cancellable(Protocol):
    """A call that can be cancelled."""

    def cancel(self) -> bool:
        """Cancel the call; return whether it still ran."""


@dataclass(slots=True)
class Progress:
    """The state of a stream; shared by the stream and its generator."""

    start: StreamRequest
    policy: ReconnectPolicy | None
    timeout_s: float | None
    has_token_provider: bool = False
    execution_id: str = ""
    last_sequence: int = 0
    result: Reasoning | Repair | TurnResult | None = None
    failures: int = 0
    is_token_renewed: bool = False
    call: Cancellable | None = None
    deadline: float | None = None
    is_closed: bool = False

    def __post_init__(self) -> None:
        cursor = self.start if isinstance(self.start, FollowExecutionRequest) else self.start.resume
        self.execution_id = cursor.execution_id
        self.last_sequence = cursor.after_sequence

    def close(self) -> None:
        """End the stream: cancel its call and allow no other."""
        self.is_closed = True
        if self.call is not None:
            self.call.cancel()

    def adopt(self, call: CallT) -> CallT:
        """Set the current call of the stream; a call after the end is cancelled."""
        self.call = call
        if self.is_closed:
            call.cancel()
        return call

    def note(self, event: StreamEvent) -> None:
        """Update the state from `event`."""
        self.failures = 0
        self.is_token_renewed = False
        told = event_of(event) if isinstance(event, FollowExecutionResponse) else event
        if not isinstance(event, FollowExecutionResponse):
            self.execution_id = event.execution_id or self.execution_id
        self.last_sequence = max(self.last_sequence, told.sequence)
        if told.HasField("completed"):
            self.result = told.completed

    def remaining_s(self) -> float | None:
        """Return the seconds until the deadline; the time starts with the first call of this method."""
        if self.timeout_s is None:
            return None
        if self.deadline is None:
            self.deadline = time.monotonic() + self.timeout_s
        return self.deadline - time.monotonic()

    def next_request(self) -> StreamRequest:
        """Return the next request: the start request before the first event, then a request to resume.

        Raises:
            CallCancelledError: The stream was closed.
        """
        if self.is_closed:
            raise call_cancelled()
        if not self.execution_id:
            return self.start
        if isinstance(self.start, FollowExecutionRequest):
            return FollowExecutionRequest(
                execution_id=self.execution_id,
                after_sequence=self.last_sequence,
                include_deltas=self.start.include_deltas,
            )
        return type(self.start)(
            resume=ExecutionCursor(execution_id=self.execution_id, after_sequence=self.last_sequence),
            include_deltas=self.start.include_deltas,
            keep_running=self.start.keep_running,
        )

    def wait_before_retry(self, error: ReasondError) -> float | None:
        """Return the seconds to wait before resuming the stream after `error`, None to give up."""
        error.execution_id = error.execution_id or self.execution_id or None
        if self.has_token_provider and not self.is_token_renewed and is_token_expired(error):
            self.is_token_renewed = True
            return 0.0
        if self.policy is None or not is_cut(error) or (self.result is not None and is_told_by_server(error)):
            return None
        if self.failures >= self.policy.max_attempts:
            return None
        wait_s = self.policy.wait_s(self.failures, error.retry_after)
        remaining_s = self.remaining_s()
        if remaining_s is not None and remaining_s <= wait_s:
            return None
        self.failures += 1
        return wait_s


def event_of(
    response: FollowExecutionResponse,
) -> ReasonIterationsResponse | ExecuteTurnResponse | RepairStepsResponse:
    """Return the event in a response of FollowExecution, whatever the kind of its execution."""
    if response.HasField("turn"):
        return response.turn
    return response.repair if response.HasField("repair") else response.reasoning


def is_cut(error: ReasondError) -> bool:
    """Return whether `error` says that the stream was cut, so that the execution may continue.

    A proxy that loses its server ends the stream with INTERNAL or UNKNOWN. An error of the server itself, in contrast,
    has the id of the request.
    """
    if error.code in _CODES_OF_PROXIES:
        return not is_told_by_server(error)
    return error.code is grpc.StatusCode.UNAVAILABLE or error.reason == "SLOW_CONSUMER"


def is_told_by_server(error: ReasondError) -> bool:
    """Return whether the server ended the call with `error`: after the result of an execution, it is how that failed.

    Without the status, the result may be that of a failure, which the stream resumed after its last event tells.
    """
    return "request_id" in error.metadata


def policy_of(reconnect: bool | ReconnectPolicy) -> ReconnectPolicy | None:  # noqa: FBT001 - a flag or its details
    """Return the policy for `reconnect`."""
    if isinstance(reconnect, bool):
        return ReconnectPolicy() if reconnect else None
    return reconnect
