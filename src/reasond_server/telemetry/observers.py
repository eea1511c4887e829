"""The protocols by which packages report events to telemetry, one small protocol per package.

They carry only numbers, bounded words and the public ids of API keys: no subject, no tenant, no text. An implementation
must be quick, must not raise and must not block. A report that a subclass does not override records nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable

    from reasond_server.types import StrategyMetrics, Usage


PROGRAM_OUTCOMES: Final = ("ok", "failed", "limited", "not_run")
TURN_EXITS: Final = ("done", "client_tools", "failed", "cancelled", "expired")
TRANSPORTS: Final = ("a2a", "anthropic", "grpc", "jsonrpc", "mcp", "openai", "rest")
"""The protocols that calls come by, as metrics, spans and logs name them."""
HANDOFF_OUTCOMES: Final = ("handed_off", "settled", "expired", "cancelled")
REENTRY_OUTCOMES: Final = ("accepted", "replayed")
WEBHOOK_OUTCOMES: Final = ("delivered", "failed", "given_up")
API_KEY_OUTCOMES: Final = ("accepted", "expired", "revoked")


@value
class StoreFacts:
    """How full the store is, from 0 to 1, and by how many seconds its clock jumped without that counting yet."""

    fill: float = 0.0
    clock_jump_s: float = 0.0


UNSEEN_STORE: Final = StoreFacts()


@value
class ServerSnapshot:
    """The state of the server that is read for a sample instead of being reported with every change.

    It counts the open calls, the running and waiting executions and the places for them. The flags say whether the
    process accepts work, is draining, and cannot reach the store of the limits. `store` is how the store was last seen.
    """

    rpcs: int = 0
    http_requests: int = 0
    running: int = 0
    queued: int = 0
    places: int = 0
    is_ready: bool = False
    is_draining: bool = False
    is_limits_degraded: bool = False
    store: StoreFacts = UNSEEN_STORE


@value
class ProcessFacts:
    """CPU seconds, resident bytes, open files, most open files, start in seconds since 1970.

    A value is None if the system has no /proc.
    """

    cpu_s: float
    resident_bytes: int | None
    open_files: int | None
    most_files: int
    started_s: float


class CallObserver(Protocol):
    """Reports of the transports.

    `transport` is one of TRANSPORTS, or "http" for a refusal by another HTTP page and for what a connection does.
    """

    def rpc_began(self, method: str) -> None:
        """Record the beginning of a call of gRPC."""
        return

    def call_ended(self, transport: str, method: str, code: str, duration_s: float) -> None:
        """Record a call that ended with the gRPC status `code`; a stream is recorded when it ends."""
        return

    def call_failed(self, transport: str, reason: str) -> None:
        """Record the reason of a failed call, as the table of errors names it."""
        return

    def stream_opened(self, transport: str) -> None:
        """Record that a stream of events began."""
        return

    def stream_closed(self, transport: str) -> None:
        """Record that an opened stream ended for any reason."""
        return

    def slow_consumer(self, transport: str) -> None:
        """Record a client that was disconnected because it did not read."""
        return

    def http_answered(self, path: str, status: int) -> None:
        """Record an HTTP request to `path` that was answered with `status`."""
        return


class RunObserver(Protocol):
    """Reports of runs and of the store of their logs."""

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
        """Record that a run left this process after `steps` new steps; an empty reason means that it did not end."""
        return

    def run_handed(self, reason: str) -> None:
        """Record that another process continues a run: it was "handed_over", or "lost" to that process.

        "fenced" means that another process may continue it, because this one could not reach the store for too long.
        """
        return

    def run_recovered(self, outcome: str) -> None:
        """Record the recovery of a run after its process ended: "resumed" or "written_off"."""
        return

    def queue_left(self, outcome: str, waited_s: float) -> None:
        """Record the end of a wait for a place: "admitted", "timeout", "draining" or "gone"."""
        return

    def commit_ended(self, entries: int, duration_s: float) -> None:
        """Record a commit of `entries` events and records, over all runs in it."""
        return

    def commit_failed(self, reason: str) -> None:
        """Record a failed write, or a part of a write that the store refused."""
        return


class ModelObserver(Protocol):
    """Reports of calls of a language model."""

    def first_content(self, model: str, after_s: float) -> None:
        """Record the seconds until the first text, reasoning or tool call."""
        return

    def model_call_ended(self, model: str, outcome: str, duration_s: float) -> None:
        """Record how a call ended: a `ModelFinish`, a reason of the table of errors, or "closed" by its caller."""
        return


class WorkObserver(RunObserver, ModelObserver, Protocol):
    """Reports of runs and of their model calls."""


class BackendObserver(Protocol):
    """Reports of the adapter of one backend besides its calls."""

    def attempt_repeated(self, backend: str, reason: str) -> None:
        """Record that a call is repeated because of `reason`."""
        return

    def waited_for_room(self, backend: str, waited_s: float) -> None:
        """Record a wait until the backend had fewer open calls than `max_concurrency`."""
        return

    def usage_corrected(self, backend: str, source: str) -> None:
        """Record a call with missing or wrong usage in the reply; its usage is "partial" or "estimated"."""
        return

    def watch_breaker(self, backend: str, state: Callable[[], str]) -> None:
        """Use `state` from now on to read the state of the circuit breaker: "closed", "half_open" or "open"."""
        return


class AccessObserver(Protocol):
    """Reports of the verification of callers."""

    def api_key_used(self, key_id: str, outcome: str) -> None:
        """Record that a call came with the whole API key `key_id`: it was "accepted", "expired" or "revoked"."""
        return


class LimitObserver(Protocol):
    """Reports of the limits of callers."""

    def caller_refused(self, kind: str) -> None:
        """Record a refusal: "rate", "concurrency" or "budget"."""
        return

    def tokens_reserved(self, tokens: int) -> None:
        """Record a reservation of tokens."""
        return

    def tokens_settled(self, reserved: int, used: int) -> None:
        """Record the used tokens of a reservation."""
        return


class ToolObserver(Protocol):
    """Reports of the executor of tools."""

    def tool_called(self, tool: str, outcome: str, duration_s: float) -> None:
        """Record a call; `outcome` is "ok", or one word for the reason why it has no result."""
        return


class ProgramObserver(Protocol):
    """Reports of the programs of tasks."""

    def program_ended(self, outcome: str, duration_s: float) -> None:
        """Record a program: "ok", "failed", "limited", or "not_run" by the sandbox (0 s)."""
        return


class TurnObserver(Protocol):
    """Reports of turns."""

    def turn_exited(self, exit_: str) -> None:
        """Record an exit: "done", "client_tools", "failed", "cancelled" or "expired"."""
        return

    def handed_off(self, count: int) -> None:
        """Record a hand-off of `count` calls to the client."""
        return

    def turn_reentered(self, outcome: str) -> None:
        """Record a re-entry: "accepted", "replayed", or the reason why it was refused."""
        return

    def handoff_settled(self, outcome: str, wait_s: float) -> None:
        """Record the end of a hand-off after `wait_s` seconds: "settled", "expired" or "cancelled"."""
        return

    def outcome_unknown(self) -> None:
        """Record a tool call whose outcome nobody knows."""
        return

    def context_built(self, goal: str, rendering: str, tokens: int) -> None:
        """Record the tokens of results that appear as `rendering` in a prompt for `goal`."""
        return


class RepairObserver(Protocol):
    """Reports of repairs."""

    def iteration_ended(self) -> None:
        """Record the end of a round of a search."""
        return

    def candidates_changed(self, by: int) -> None:
        """Record that the searches of this process hold `by` candidates more; a negative number means fewer."""
        return

    def candidate_scored(self, score: float) -> None:
        """Record the score of a candidate, 0-100."""
        return

    def terminated_early(self) -> None:
        """Record a search that ended because a candidate passed the gate with the threshold."""
        return

    def check_ended(self, level: str, outcome: str, duration_s: float) -> None:
        """Record a check in a sandbox of `level`: "passed", "failed", "timed_out" or "unknown"."""
        return


class WebhookObserver(Protocol):
    """Reports of webhooks."""

    def webhook_sent(self, outcome: str) -> None:
        """Record an attempt: "delivered", "failed" (it is sent again) or "given_up"."""
        return


class Observer(
    CallObserver,
    AccessObserver,
    RunObserver,
    ModelObserver,
    BackendObserver,
    LimitObserver,
    ToolObserver,
    ProgramObserver,
    TurnObserver,
    RepairObserver,
    WebhookObserver,
    Protocol,
):
    """All observers in one."""


def _spend_unseen(usage: Usage) -> None:
    """Do nothing."""


class Unobserved(Observer):
    """Records nothing; a report costs only the call."""

    def spending(self, strategy: str, model: str) -> Callable[[Usage], None]:
        """See RunObserver."""
        return _spend_unseen


UNOBSERVED: Final = Unobserved()
