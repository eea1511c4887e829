"""What rooms report to telemetry, and the metric in which each report is counted.

Reports carry only numbers, bounded words and the public ids of API keys: no subject, no tenant, no text.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from reasond_server.types import BoundedContextMetrics, FinishReason, Savings, StrategyMetrics, Usage
from reasond_server.types.values import value

PROGRAM_OUTCOMES: Final = ("ok", "failed", "limited", "not_run")
TURN_EXITS: Final = ("done", "client_tools", "failed", "cancelled", "expired")
TRANSPORTS: Final = ("a2a", "anthropic", "grpc", "jsonrpc", "mcp", "openai", "rest")
"""The protocols that calls come by, as metrics, spans and logs name them."""
HANDOFF_OUTCOMES: Final = ("handed_off", "settled", "expired", "cancelled")
REENTRY_OUTCOMES: Final = ("accepted", "replayed")
WEBHOOK_OUTCOMES: Final = ("delivered", "failed", "given_up")
API_KEY_OUTCOMES: Final = ("accepted", "expired", "revoked")
_WITHOUT_RESULT: Final = frozenset({FinishReason.FAILED.value, FinishReason.CANCELLED.value})


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


class Observer:
    """The reports of all rooms. This class itself counts nothing; `Meters` gives `count` and its like a meaning.

    A report must be quick, must not raise and must not block. `transport` is one of TRANSPORTS, or "http" for a refusal
    by another HTTP page and for what a connection does.
    """

    def count(self, metric: str, *labels: str, by: float = 1) -> None:
        """Add `by` to the counter with these labels."""

    def change(self, metric: str, *labels: str, by: float) -> None:
        """Add `by`, which may be negative, to the gauge with these labels."""

    def measure(self, metric: str, *labels: str, value: float, is_traced: bool = False) -> None:
        """Put `value` into the histogram with these labels; with `is_traced` it may lead to the trace of the call."""

    def rpc_began(self, method: str) -> None:
        """Record the beginning of a call of gRPC."""
        self.count("reasond_rpcs_started", method)

    def call_ended(self, transport: str, method: str, code: str, duration_s: float) -> None:
        """Record a call that ended with the gRPC status `code`; a stream is recorded when it ends."""
        self.count("reasond_calls", transport, method, code)
        self.measure("reasond_call_duration_seconds", transport, method, code, value=duration_s, is_traced=True)

    def rpc_ended(self, method: str, code: str, *, received_bytes: int, sent_bytes: int) -> None:
        """Record the bytes of the messages of a call of gRPC that ended, in both directions."""
        self.measure("reasond_rpc_received_bytes", method, code, value=received_bytes)
        self.measure("reasond_rpc_sent_bytes", method, code, value=sent_bytes)

    def call_failed(self, transport: str, reason: str) -> None:
        """Record the reason of a failed call, as the table of errors names it; limits call `caller_refused`."""
        self.count("reasond_errors", transport, reason)

    def stream_opened(self, transport: str) -> None:
        """Record that a stream of events began."""
        self.change("reasond_streams_open", transport, by=1)

    def stream_closed(self, transport: str) -> None:
        """Record that an opened stream ended for any reason."""
        self.change("reasond_streams_open", transport, by=-1)

    def slow_consumer(self, transport: str) -> None:
        """Record a client that was disconnected because it did not read."""
        self.count("reasond_slow_consumers", transport)

    def http_answered(self, path: str, status: int) -> None:
        """Record an HTTP request to `path` that was answered with `status`."""
        self.count("reasond_http_requests", path, str(status))

    def spending(self, strategy: str, model: str) -> Callable[[Usage], None]:
        """Return a callback for the charged usage of each call that a run of `strategy` makes to `model`."""
        return partial(self._count_usage, strategy, model)

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
        if steps > 0:
            self.count("reasond_steps", strategy, by=steps)
        if not finish_reason:
            return
        self.count("reasond_executions", strategy, finish_reason)
        self.measure("reasond_execution_duration_seconds", strategy, value=duration_s)
        # A run without a result may have ended during a call that its metrics do not contain.
        if isinstance(metrics, BoundedContextMetrics) and finish_reason not in _WITHOUT_RESULT:
            for savings in (metrics.savings, metrics.reprompt_savings):
                self._count_savings(savings)

    def run_handed(self, reason: str) -> None:
        """Record that another process continues a run: it was "handed_over", or "lost" to that process.

        "fenced" means that another process may continue it, because this one could not reach the store for too long.
        """
        self.count("reasond_executions_left", reason)

    def run_recovered(self, outcome: str) -> None:
        """Record the recovery of a run after its process ended: "resumed" or "written_off"."""
        self.count("reasond_recoveries", outcome)

    def queue_left(self, outcome: str, waited_s: float) -> None:
        """Record the end of a wait for a place: "admitted", "timeout", "draining" or "gone"."""
        self.measure("reasond_queue_wait_seconds", outcome, value=waited_s)

    def commit_ended(self, entries: int, duration_s: float) -> None:
        """Record a commit of `entries` events and records, over all runs in it."""
        self.measure("reasond_store_commit_duration_seconds", value=duration_s)
        self.count("reasond_store_entries", by=entries)

    def commit_failed(self, reason: str) -> None:
        """Record a failed write, or a part of a write that the store refused."""
        self.count("reasond_store_failures", reason)

    def first_content(self, model: str, after_s: float) -> None:
        """Record the seconds until the first text, reasoning or tool call."""
        self.measure("reasond_model_first_content_seconds", model, value=after_s)

    def model_call_ended(self, model: str, outcome: str, duration_s: float) -> None:
        """Record how a call ended: a `ModelFinish`, a reason of the table of errors, or "closed" by its caller."""
        self.count("reasond_model_calls", model, outcome)
        self.measure("reasond_model_call_duration_seconds", model, outcome, value=duration_s, is_traced=True)

    def attempt_repeated(self, backend: str, reason: str) -> None:
        """Record that a call is repeated because of `reason`."""
        self.count("reasond_model_retries", backend, reason)

    def waited_for_room(self, backend: str, waited_s: float) -> None:
        """Record a wait until the backend had fewer open calls than `max_concurrency`."""
        self.measure("reasond_model_room_wait_seconds", backend, value=waited_s)

    def usage_corrected(self, backend: str, source: str) -> None:
        """Record a call with missing or wrong usage in the reply; its usage is "partial" or "estimated"."""
        self.count("reasond_model_usage_mended", backend, source)

    def watch_breaker(self, backend: str, state: Callable[[], str]) -> None:
        """Use `state` from now on to read the state of the circuit breaker: "closed", "half_open" or "open"."""

    def api_key_used(self, key_id: str, outcome: str) -> None:
        """Record that a call came with the whole API key `key_id`: it was "accepted", "expired" or "revoked"."""
        self.count("reasond_api_key_uses", key_id, outcome)

    def caller_refused(self, kind: str) -> None:
        """Record a refusal by the limits of a caller: "rate", "concurrency" or "budget"."""
        self.count("reasond_denials", kind)

    def tokens_reserved(self, tokens: int) -> None:
        """Record a reservation of tokens."""
        self.count("reasond_budget_tokens", "reserved", by=tokens)

    def tokens_settled(self, reserved: int, used: int) -> None:
        """Record the used tokens of a reservation."""
        self.count("reasond_budget_tokens", "settled", by=used)
        if used < reserved:
            self.count("reasond_budget_tokens", "refunded", by=reserved - used)
        elif used > reserved:
            self.count("reasond_budget_tokens", "overdrawn", by=used - reserved)

    def tool_called(self, tool: str, outcome: str, duration_s: float) -> None:
        """Record a call; `outcome` is "ok", or one word for the reason why it has no result."""
        self.count("reasond_tool_calls", tool, outcome)
        self.measure("reasond_tool_duration_seconds", tool, value=duration_s)

    def program_ended(self, outcome: str, duration_s: float) -> None:
        """Record a program of a task: "ok", "failed", "limited", or "not_run" by the sandbox (0 s)."""
        self.measure("reasond_program_duration_seconds", outcome, value=duration_s)

    def turn_exited(self, exit_: str) -> None:
        """Record an exit: "done", "client_tools", "failed", "cancelled" or "expired"."""
        self.count("reasond_turns", exit_)

    def handed_off(self, count: int) -> None:
        """Record a hand-off of `count` calls to the client."""
        self.count("reasond_handoffs", "handed_off")
        self.count("reasond_handoff_calls", by=count)

    def turn_reentered(self, outcome: str) -> None:
        """Record a re-entry: "accepted", "replayed", or the reason why it was refused."""
        self.count("reasond_reentries", outcome)

    def handoff_settled(self, outcome: str, wait_s: float) -> None:
        """Record the end of a hand-off after `wait_s` seconds: "settled", "expired" or "cancelled"."""
        self.count("reasond_handoffs", outcome)
        self.measure("reasond_handoff_wait_seconds", outcome, value=wait_s)

    def outcome_unknown(self) -> None:
        """Record a tool call whose outcome nobody knows."""
        self.count("reasond_tool_outcomes_unknown")

    def context_built(self, goal: str, rendering: str, tokens: int) -> None:
        """Record the tokens of results that appear as `rendering` in a prompt for `goal`."""
        self.count("reasond_context_tokens", goal, rendering, by=tokens)

    def iteration_ended(self) -> None:
        """Record the end of a round of a search for repairs."""
        self.count("reasond_repair_reflection_iterations")

    def candidates_changed(self, by: int) -> None:
        """Record that the searches of this process hold `by` candidates more; a negative number means fewer."""
        self.change("reasond_repair_candidates_active", by=by)

    def candidate_scored(self, score: float) -> None:
        """Record the score of a candidate, 0-100."""
        self.measure("reasond_repair_critic_score", value=score)

    def terminated_early(self) -> None:
        """Record a search that ended because a candidate passed the gate with the threshold."""
        self.count("reasond_repair_early_terminations")

    def check_ended(self, level: str, outcome: str, duration_s: float) -> None:
        """Record a check in a sandbox of `level`: "passed", "failed", "timed_out" or "unknown"."""
        self.measure("reasond_repair_check_duration_seconds", level, outcome, value=duration_s)

    def webhook_sent(self, outcome: str) -> None:
        """Record an attempt to send a webhook: "delivered", "failed" (it is sent again) or "given_up"."""
        self.count("reasond_webhooks", outcome)

    def _count_usage(self, strategy: str, model: str, usage: Usage) -> None:
        self.count("reasond_tokens", strategy, model, "input", by=usage.input_tokens)
        self.count("reasond_tokens", strategy, model, "output", by=usage.output_tokens)
        self.measure("reasond_model_call_tokens", model, "input", value=usage.input_tokens)
        self.measure("reasond_model_call_tokens", model, "output", value=usage.output_tokens)
        if usage.cached_input_tokens:
            self.count("reasond_tokens", strategy, model, "cached_input", by=usage.cached_input_tokens)
        if usage.reasoning_tokens:
            self.count("reasond_tokens", strategy, model, "reasoning", by=usage.reasoning_tokens)
        if usage.cost_usd:
            self.count("reasond_cost_usd", strategy, model, by=usage.cost_usd)

    def _count_savings(self, savings: Savings | None) -> None:
        if savings is None:
            return
        baseline = savings.baseline.value
        for measure, pct in (
            ("attention", savings.attention_pct),
            ("kv_read", savings.kv_read_pct),
            ("tokens", savings.tokens_pct),
        ):
            self.measure("reasond_compute_ratio", measure, baseline, value=1 - pct / 100)


UNOBSERVED: Final = Observer()
"""The observer of a server whose metrics nobody reads."""
