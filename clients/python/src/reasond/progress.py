"""How far a stream of events has come, and when and how it is taken up again after a cut."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

import grpc

from reasond.errors import call_cancelled
from reasond.requests import resume_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from reasond.errors import ReasondError
    from reasond.v1.execution_pb2 import Reasoning
    from reasond.v1.reasoning_service_pb2 import ReasonIterationsRequest, ReasonIterationsResponse

_LONGEST_WAIT_S = 60.0

CallT = TypeVar("CallT", bound="Cancellable")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconnectPolicy:
    """How often and after which waits a cut stream is taken up again.

    `max_attempts` counts attempts in a row that brought no event. The wait doubles from
    `initial_backoff_s` up to `max_backoff_s`, less up to a half of it by `jitter` (0.0-1.0); a longer
    wait that the server asks for is kept, up to a minute.
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
    """A call, as far as leaving it needs to know it."""

    def cancel(self) -> bool:
        """Cancel the call; return whether it still ran."""


@dataclass(slots=True)
class Progress:
    """What a stream has shown so far; shared by the stream and the generator that feeds it."""

    start: ReasonIterationsRequest
    policy: ReconnectPolicy | None
    timeout_s: float | None
    execution_id: str = ""
    last_sequence: int = 0
    result: Reasoning | None = None
    failures: int = 0
    call: Cancellable | None = None
    deadline: float | None = None
    is_closed: bool = False

    def __post_init__(self) -> None:
        self.execution_id = self.start.resume.execution_id
        self.last_sequence = self.start.resume.after_sequence

    def close(self) -> None:
        """End the stream: cancel its call, and let no other begin."""
        self.is_closed = True
        if self.call is not None:
            self.call.cancel()

    def adopt(self, call: CallT) -> CallT:
        """Take over the next call of the stream; one that comes after the end is cancelled."""
        self.call = call
        if self.is_closed:
            call.cancel()
        return call

    def note(self, event: ReasonIterationsResponse) -> None:
        """Take over what `event` says."""
        self.failures = 0
        self.execution_id = event.execution_id or self.execution_id
        self.last_sequence = max(self.last_sequence, event.sequence)
        if event.HasField("completed"):
            self.result = event.completed

    def remaining_s(self) -> float | None:
        """Return the seconds until the deadline; its time starts to run when this is first asked."""
        if self.timeout_s is None:
            return None
        if self.deadline is None:
            self.deadline = time.monotonic() + self.timeout_s
        return self.deadline - time.monotonic()

    def next_request(self) -> ReasonIterationsRequest:
        """Return what to send now: the start until an event came, afterwards the place that was reached.

        Raises:
            CallCancelledError: The stream was closed.
        """
        if self.is_closed:
            raise call_cancelled()
        if not self.execution_id:
            return self.start
        return resume_request(
            self.execution_id,
            after_sequence=self.last_sequence,
            include_deltas=self.start.include_deltas,
            keep_running=self.start.keep_running,
        )

    def wait_before_retry(self, error: ReasondError) -> float | None:
        """Return the seconds to wait before taking the stream up again after `error`, None to give up."""
        error.execution_id = error.execution_id or self.execution_id or None
        is_cut = error.code is grpc.StatusCode.UNAVAILABLE or error.reason == "SLOW_CONSUMER"
        if self.policy is None or self.result is not None or not is_cut or self.failures >= self.policy.max_attempts:
            return None
        wait_s = self.policy.wait_s(self.failures, error.retry_after)
        remaining_s = self.remaining_s()
        if remaining_s is not None and remaining_s <= wait_s:
            return None
        self.failures += 1
        return wait_s


def policy_of(reconnect: bool | ReconnectPolicy) -> ReconnectPolicy | None:  # noqa: FBT001 - a flag or its details
    """Return the policy that `reconnect` stands for."""
    if isinstance(reconnect, bool):
        return ReconnectPolicy() if reconnect else None
    return reconnect
