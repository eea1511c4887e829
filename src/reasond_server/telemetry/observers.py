"""The protocols by which rooms report what happens in them, one small protocol for each room.

They carry numbers and bounded words only: no subject, no tenant, no text. An implementation must be quick, must not
raise and must not wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from reasond_server.types import StrategyMetrics, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What is read from the server when a sample is taken, instead of being told with every change.

    Calls at work, executions that run or wait and places for them; whether the process takes work, is shutting down,
    or cannot reach the store of the limits.
    """

    rpcs: int = 0
    http_requests: int = 0
    running: int = 0
    queued: int = 0
    places: int = 0
    is_ready: bool = False
    is_draining: bool = False
    is_limits_degraded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """CPU seconds, resident bytes, open files, how many may be, start in seconds since 1970.

    None where the system has no /proc.
    """

    cpu_s: float
    resident_bytes: int | None
    open_files: int | None
    most_files: int
    started_s: float


class CallObserver(Protocol):
    """What the transports report; `transport` is "grpc" or "jsonrpc", and "http" where another page refuses."""

    def call_ended(self, transport: str, method: str, code: str, duration_s: float) -> None:
        """Note a call that ended with the status `code`, named as gRPC does; streams count when they end."""
        ...

    def call_failed(self, transport: str, reason: str) -> None:
        """Note the reason, of the table of errors, for which a call failed."""
        ...

    def stream_opened(self, transport: str) -> None:
        """Note that events begin to be sent."""
        ...

    def stream_closed(self, transport: str) -> None:
        """Note that a stream that was opened is over, however that came."""
        ...

    def slow_consumer(self, transport: str) -> None:
        """Note a client that was cut off because it did not read."""
        ...

    def http_answered(self, path: str, status: int) -> None:
        """Note an HTTP request to `path` that was answered with `status`."""
        ...


class RunObserver(Protocol):
    """What runs report, and the store that keeps them."""

    def spending(self, strategy: str, model: str) -> Callable[[Usage], None]:
        """Return a callback for the charged usage of each call that a run of `strategy` makes to `model`."""
        ...

    def run_left(
        self,
        strategy: str,
        finish_reason: str,
        *,
        steps: int,
        duration_s: float = 0.0,
        metrics: StrategyMetrics | None = None,
    ) -> None:
        """Note that a run is over in this process, after `steps` new steps; an empty reason: it has no end here."""
        ...

    def run_handed(self, reason: str) -> None:
        """Note that another process goes on: the run was "handed_over", or "lost" to it.

        "fenced": it may, because this one was out of touch with the store for too long to know.
        """
        ...

    def run_recovered(self, outcome: str) -> None:
        """Note what became of a run that a process left behind: "resumed" or "written_off"."""
        ...

    def queue_left(self, outcome: str, waited_s: float) -> None:
        """Note that a wait for a place is over: "admitted", "timeout", "draining" or "gone"."""
        ...

    def commit_ended(self, entries: int, duration_s: float) -> None:
        """Note a commit of `entries` events and records, of all runs that had any."""
        ...

    def commit_failed(self, reason: str) -> None:
        """Note an attempt to write that the store did not take, or a part that it refused."""
        ...


class ModelObserver(Protocol):
    """What calls of a language model report."""

    def first_content(self, model: str, after_s: float) -> None:
        """Note when the first text, reasoning or tool call came."""
        ...

    def model_call_ended(self, model: str, outcome: str, duration_s: float) -> None:
        """Note how a call ended: a `ModelFinish`, a reason of the table of errors, or "closed" by its caller."""
        ...


class WorkObserver(RunObserver, ModelObserver, Protocol):
    """What runs report, and the model calls that they make."""


class BackendObserver(Protocol):
    """What the adapter of one backend reports beside its calls."""

    def attempt_repeated(self, backend: str, reason: str) -> None:
        """Note that a call is made again, because of `reason`."""
        ...

    def waited_for_room(self, backend: str, waited_s: float) -> None:
        """Note a wait until the backend worked on fewer calls than `max_concurrency`."""
        ...

    def usage_mended(self, backend: str, source: str) -> None:
        """Note a call whose usage the server did not tell, or told wrong: "partial" or "estimated"."""
        ...

    def watch_breaker(self, backend: str, state: Callable[[], str]) -> None:
        """Ask `state` from now on how the circuit breaker is: "closed", "half_open" or "open"."""
        ...


class LimitObserver(Protocol):
    """What the limits of callers report."""

    def caller_refused(self, kind: str) -> None:
        """Note a refusal: "rate", "concurrency" or "budget"."""
        ...

    def tokens_reserved(self, tokens: int) -> None:
        """Note tokens that were set aside."""
        ...

    def tokens_settled(self, reserved: int, used: int) -> None:
        """Note what was used of tokens that were set aside."""
        ...


class ToolObserver(Protocol):
    """What the executor of tools reports."""

    def tool_called(self, tool: str, outcome: str, duration_s: float) -> None:
        """Note a call: "ok", or in one word why it has no result."""
        ...


class Observer(CallObserver, RunObserver, ModelObserver, BackendObserver, LimitObserver, ToolObserver, Protocol):
    """All of them."""


def _spend_unseen(usage: Usage) -> None:
    """Note nothing."""


class Unobserved:
    """Notes nothing, and costs no more than the call."""

    def call_ended(self, transport: str, method: str, code: str, duration_s: float) -> None:
        """See CallObserver."""

    def call_failed(self, transport: str, reason: str) -> None:
        """See CallObserver."""

    def stream_opened(self, transport: str) -> None:
        """See CallObserver."""

    def stream_closed(self, transport: str) -> None:
        """See CallObserver."""

    def slow_consumer(self, transport: str) -> None:
        """See CallObserver."""

    def http_answered(self, path: str, status: int) -> None:
        """See CallObserver."""

    def spending(self, strategy: str, model: str) -> Callable[[Usage], None]:  # noqa: ARG002 - the protocol gives it
        """See RunObserver."""
        return _spend_unseen

    def run_left(
        self,
        strategy: str,
        finish_reason: str,
        *,
        steps: int,
        duration_s: float = 0.0,
        metrics: StrategyMetrics | None = None,
    ) -> None:
        """See RunObserver."""

    def run_handed(self, reason: str) -> None:
        """See RunObserver."""

    def run_recovered(self, outcome: str) -> None:
        """See RunObserver."""

    def queue_left(self, outcome: str, waited_s: float) -> None:
        """See RunObserver."""

    def commit_ended(self, entries: int, duration_s: float) -> None:
        """See RunObserver."""

    def commit_failed(self, reason: str) -> None:
        """See RunObserver."""

    def first_content(self, model: str, after_s: float) -> None:
        """See ModelObserver."""

    def model_call_ended(self, model: str, outcome: str, duration_s: float) -> None:
        """See ModelObserver."""

    def attempt_repeated(self, backend: str, reason: str) -> None:
        """See BackendObserver."""

    def waited_for_room(self, backend: str, waited_s: float) -> None:
        """See BackendObserver."""

    def usage_mended(self, backend: str, source: str) -> None:
        """See BackendObserver."""

    def watch_breaker(self, backend: str, state: Callable[[], str]) -> None:
        """See BackendObserver."""

    def caller_refused(self, kind: str) -> None:
        """See LimitObserver."""

    def tokens_reserved(self, tokens: int) -> None:
        """See LimitObserver."""

    def tokens_settled(self, reserved: int, used: int) -> None:
        """See LimitObserver."""

    def tool_called(self, tool: str, outcome: str, duration_s: float) -> None:
        """See ToolObserver."""


UNOBSERVED: Final = Unobserved()
