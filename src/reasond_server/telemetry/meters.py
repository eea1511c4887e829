"""Counts the reports of the observers for Prometheus; imported only if metrics are on."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Final

from reasond_server.errors.reasons import list_error_classes
from reasond_server.telemetry.observers import HANDOFF_OUTCOMES, TURN_EXITS
from reasond_server.telemetry.series import Registry, Vocabulary
from reasond_server.types import BoundedContextMetrics, FinishReason

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry

    from reasond_server.telemetry.observers import ProcessFacts, ServerSnapshot
    from reasond_server.types import Savings, StrategyMetrics, Usage


class RepairMeters:
    """The `RepairObserver` that counts."""

    def __init__(self, registry: Registry) -> None:
        self._iterations = registry.counter("reasond_repair_reflection_iterations")
        self._candidates = registry.gauge("reasond_repair_candidates_active")
        self._scores = registry.histogram("reasond_repair_critic_score")
        self._early_terminations = registry.counter("reasond_repair_early_terminations")
        self._check_seconds = registry.histogram("reasond_repair_check_duration_seconds")
        # Created with 0, because `rate` misses the first value of a new series.
        for series in (self._iterations, self._candidates, self._scores, self._early_terminations):
            series[()]

    def iteration_ended(self) -> None:
        """See RepairObserver."""
        self._iterations[()].inc()

    def candidates_changed(self, by: int) -> None:
        """See RepairObserver."""
        self._candidates[()].inc(by)

    def candidate_scored(self, score: float) -> None:
        """See RepairObserver."""
        self._scores[()].observe(score)

    def terminated_early(self) -> None:
        """See RepairObserver."""
        self._early_terminations[()].inc()

    def check_ended(self, level: str, outcome: str, duration_s: float) -> None:
        """See RepairObserver."""
        self._check_seconds[level, outcome].observe(duration_s)


class TurnMeters:
    """The `TurnObserver` that counts."""

    def __init__(self, registry: Registry) -> None:
        self._turns = registry.counter("reasond_turns")
        self._turns_awaiting = registry.gauge("reasond_turns_awaiting")
        self._handoffs = registry.counter("reasond_handoffs")
        self._handoff_calls = registry.counter("reasond_handoff_calls")
        self._handoff_seconds = registry.histogram("reasond_handoff_wait_seconds")
        self._reentries = registry.counter("reasond_reentries")
        self._unknown_outcomes = registry.counter("reasond_tool_outcomes_unknown")
        self._context_tokens = registry.counter("reasond_context_tokens")
        # Created with 0, because `rate` misses the first value of a new series.
        for exit_ in TURN_EXITS:
            self._turns[exit_]
        for outcome in HANDOFF_OUTCOMES:
            self._handoffs[outcome]
        self._unknown_outcomes[()]

    def turn_exited(self, exit_: str) -> None:
        """See TurnObserver."""
        self._turns[exit_].inc()

    def handed_off(self, count: int) -> None:
        """See TurnObserver."""
        self._handoffs["handed_off"].inc()
        self._handoff_calls[()].inc(count)

    def turn_reentered(self, outcome: str) -> None:
        """See TurnObserver."""
        self._reentries[outcome].inc()

    def handoff_settled(self, outcome: str, wait_s: float) -> None:
        """See TurnObserver."""
        self._handoffs[outcome].inc()
        self._handoff_seconds[outcome].observe(wait_s)

    def set_awaiting(self, count: int) -> None:
        """Set the number of turns in the store that wait for their clients."""
        self._turns_awaiting[()].set(count)

    def outcome_unknown(self) -> None:
        """See TurnObserver."""
        self._unknown_outcomes[()].inc()

    def context_built(self, goal: str, rendering: str, tokens: int) -> None:
        """See TurnObserver."""
        self._context_tokens[goal, rendering].inc(tokens)


BREAKER_STATES: Final = ("closed", "half_open", "open")
_WITHOUT_RESULT: Final = frozenset({FinishReason.FAILED.value, FinishReason.CANCELLED.value})


class Meters(TurnMeters, RepairMeters):
    """The `Observer` that counts; the counts can be read after the next `sample`.

    `vocabulary` bounds the labels with values from outside. One instance serves one event loop.
    """

    def __init__(self, *, vocabulary: Vocabulary, version: str) -> None:
        registry = Registry(vocabulary=vocabulary)
        TurnMeters.__init__(self, registry)
        RepairMeters.__init__(self, registry)
        counter, gauge, histogram = registry.counter, registry.gauge, registry.histogram
        self._registry = registry
        self._calls = counter("reasond_calls")
        self._call_seconds = histogram("reasond_call_duration_seconds")
        self._in_flight = gauge("reasond_calls_in_flight")
        self._streams = gauge("reasond_streams_open")
        self._errors = counter("reasond_errors")
        self._denials, self._api_key_uses = counter("reasond_denials"), counter("reasond_api_key_uses")
        self._denial_of = {
            name: denial for name, kind in list_error_classes().items() if (denial := kind.declaration.denial)
        }
        self._slow_consumers = counter("reasond_slow_consumers")
        self._http_requests = counter("reasond_http_requests")
        self._executions = counter("reasond_executions")
        self._execution_seconds = histogram("reasond_execution_duration_seconds")
        self._steps = counter("reasond_steps")
        self._tokens, self._cost = counter("reasond_tokens"), counter("reasond_cost_usd")
        self._compute_ratio = histogram("reasond_compute_ratio")
        self._running, self._queued = gauge("reasond_executions_running"), gauge("reasond_executions_queued")
        self._places = gauge("reasond_execution_places")
        self._queue_seconds = histogram("reasond_queue_wait_seconds")
        self._recoveries = counter("reasond_recoveries")
        self._left = counter("reasond_executions_left")
        self._model_calls = counter("reasond_model_calls")
        self._model_seconds = histogram("reasond_model_call_duration_seconds")
        self._first_content_seconds = histogram("reasond_model_first_content_seconds")
        self._retries = counter("reasond_model_retries")
        self._room_seconds = histogram("reasond_model_room_wait_seconds")
        self._breakers = gauge("reasond_model_breaker_state")
        self._usage_mended = counter("reasond_model_usage_mended")
        self._budget_tokens = counter("reasond_budget_tokens")
        self._limits_degraded = gauge("reasond_limits_degraded")
        self._tool_calls = counter("reasond_tool_calls")
        self._tool_seconds = histogram("reasond_tool_duration_seconds")
        self._program_seconds = histogram("reasond_program_duration_seconds")
        self._commit_seconds = histogram("reasond_store_commit_duration_seconds")
        self._entries, self._store_failures = counter("reasond_store_entries"), counter("reasond_store_failures")
        self._store_fill, self._clock_jump = (
            gauge("reasond_store_fill_ratio"),
            gauge("reasond_store_clock_jump_seconds"),
        )
        self._ready, self._draining = gauge("reasond_ready"), gauge("reasond_draining")
        self._lag_seconds = histogram("reasond_event_loop_lag_seconds")
        self._cpu_seconds = counter("process_cpu_seconds")
        self._resident = gauge("process_resident_memory_bytes")
        self._open_fds, self._max_fds = gauge("process_open_fds"), gauge("process_max_fds")
        self._started = gauge("process_start_time_seconds")
        self._cpu_seen_s = 0.0
        self._watched: dict[str, Callable[[], str]] = {}
        self._create_rare_series()
        gauge("reasond_build_info")[version, sys.version.partition(" ")[0]].set(1)
        gauge("reasond_processes")[()].set(1)

    @property
    def registry(self) -> CollectorRegistry:
        """The registry of all metrics."""
        return self._registry.collected

    def call_ended(self, transport: str, method: str, code: str, duration_s: float) -> None:
        """See CallObserver."""
        self._calls[transport, method, code].inc()
        self._call_seconds[transport, method].observe(duration_s)

    def call_failed(self, transport: str, reason: str) -> None:
        """See CallObserver; refusals by the limits are counted in `caller_refused`."""
        self._errors[transport, reason].inc()
        kind = self._denial_of.get(reason)
        if kind is not None:
            self._denials[kind].inc()

    def api_key_used(self, key_id: str, outcome: str) -> None:
        """See AccessObserver."""
        self._api_key_uses[key_id, outcome].inc()

    def stream_opened(self, transport: str) -> None:
        """See CallObserver."""
        self._streams[transport].inc()

    def stream_closed(self, transport: str) -> None:
        """See CallObserver."""
        self._streams[transport].dec()

    def slow_consumer(self, transport: str) -> None:
        """See CallObserver."""
        self._slow_consumers[transport].inc()

    def http_answered(self, path: str, status: int) -> None:
        """See CallObserver."""
        self._http_requests[path, str(status)].inc()

    def spending(self, strategy: str, model: str) -> Callable[[Usage], None]:
        """See RunObserver."""
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
        """See RunObserver."""
        if steps > 0:
            self._steps[strategy].inc(steps)
        if not finish_reason:
            return
        self._executions[strategy, finish_reason].inc()
        self._execution_seconds[strategy].observe(duration_s)
        # A run without a result may have ended during a call that its metrics do not contain.
        if isinstance(metrics, BoundedContextMetrics) and finish_reason not in _WITHOUT_RESULT:
            for savings in (metrics.savings, metrics.reprompt_savings):
                self._count_savings(savings)

    def run_handed(self, reason: str) -> None:
        """See RunObserver."""
        self._left[reason].inc()

    def run_recovered(self, outcome: str) -> None:
        """See RunObserver."""
        self._recoveries[outcome].inc()

    def queue_left(self, outcome: str, waited_s: float) -> None:
        """See RunObserver."""
        self._queue_seconds[outcome].observe(waited_s)

    def commit_ended(self, entries: int, duration_s: float) -> None:
        """See RunObserver."""
        self._commit_seconds[()].observe(duration_s)
        self._entries[()].inc(entries)

    def commit_failed(self, reason: str) -> None:
        """See RunObserver."""
        self._store_failures[reason].inc()

    def first_content(self, model: str, after_s: float) -> None:
        """See ModelObserver."""
        self._first_content_seconds[model].observe(after_s)

    def model_call_ended(self, model: str, outcome: str, duration_s: float) -> None:
        """See ModelObserver."""
        self._model_calls[model, outcome].inc()
        self._model_seconds[model].observe(duration_s)

    def attempt_repeated(self, backend: str, reason: str) -> None:
        """See BackendObserver."""
        self._retries[backend, reason].inc()

    def waited_for_room(self, backend: str, waited_s: float) -> None:
        """See BackendObserver."""
        self._room_seconds[backend].observe(waited_s)

    def usage_corrected(self, backend: str, source: str) -> None:
        """See BackendObserver."""
        self._usage_mended[backend, source].inc()

    def watch_breaker(self, backend: str, state: Callable[[], str]) -> None:
        """See BackendObserver; `state` is called in every sample."""
        self._watched[backend] = state

    def caller_refused(self, kind: str) -> None:
        """See LimitObserver."""
        self._denials[kind].inc()

    def tokens_reserved(self, tokens: int) -> None:
        """See LimitObserver."""
        self._budget_tokens["reserved"].inc(tokens)

    def tokens_settled(self, reserved: int, used: int) -> None:
        """See LimitObserver."""
        self._budget_tokens["settled"].inc(used)
        if used < reserved:
            self._budget_tokens["refunded"].inc(reserved - used)
        elif used > reserved:
            self._budget_tokens["overdrawn"].inc(used - reserved)

    def tool_called(self, tool: str, outcome: str, duration_s: float) -> None:
        """See ToolObserver."""
        self._tool_calls[tool, outcome].inc()
        self._tool_seconds[tool].observe(duration_s)

    def program_ended(self, outcome: str, duration_s: float) -> None:
        """See ProgramObserver."""
        self._program_seconds[outcome].observe(duration_s)

    def loop_lagged(self, lag_s: float) -> None:
        """Record the delay of the event loop in seconds."""
        self._lag_seconds[()].observe(lag_s)

    def sample(self, seen: ServerSnapshot) -> None:
        """Flush the counts, and set the gauges that are read instead of reported, such as states of breakers."""
        self._registry.flush()
        self._in_flight["grpc"].set(seen.rpcs)
        self._in_flight["http"].set(seen.http_requests)
        self._running[()].set(seen.running)
        self._queued[()].set(seen.queued)
        self._places[()].set(seen.places)
        self._ready[()].set(seen.is_ready)
        self._draining[()].set(seen.is_draining)
        self._limits_degraded[()].set(seen.is_limits_degraded)
        self._store_fill[()].set(seen.store.fill)
        self._clock_jump[()].set(seen.store.clock_jump_s)
        for backend, state in self._watched.items():
            now = state()
            for each in BREAKER_STATES:
                self._breakers[backend, each].set(each == now)

    def sample_process(self, facts: ProcessFacts) -> None:
        """Set the gauges of the process."""
        self._cpu_seconds[()].inc(max(0.0, facts.cpu_s - self._cpu_seen_s))
        self._cpu_seen_s = max(facts.cpu_s, self._cpu_seen_s)
        if facts.resident_bytes is not None:
            self._resident[()].set(facts.resident_bytes)
        if facts.open_files is not None:
            self._open_fds[()].set(facts.open_files)
        self._max_fds[()].set(facts.most_files)
        self._started[()].set(facts.started_s)

    def _create_rare_series(self) -> None:
        """Create the series of rare events with 0, because `rate` misses the first value of a new series."""
        for kind in sorted({*self._denial_of.values(), "rate", "concurrency", "budget"}):
            self._denials[kind]
        for transport in ("grpc", "jsonrpc", "openai"):
            self._slow_consumers[transport]
            self._streams[transport]
        for event in ("reserved", "settled", "refunded", "overdrawn"):
            self._budget_tokens[event]
        for reason in ("STORE_UNAVAILABLE", "STORE_FULL"):
            self._store_failures[reason]
        for outcome in ("resumed", "written_off"):
            self._recoveries[outcome]
        for reason in ("handed_over", "lost", "fenced"):
            self._left[reason]

    def _count_usage(self, strategy: str, model: str, usage: Usage) -> None:
        tokens = self._tokens
        tokens[strategy, model, "input"].inc(usage.input_tokens)
        tokens[strategy, model, "output"].inc(usage.output_tokens)
        if usage.cached_input_tokens:
            tokens[strategy, model, "cached_input"].inc(usage.cached_input_tokens)
        if usage.reasoning_tokens:
            tokens[strategy, model, "reasoning"].inc(usage.reasoning_tokens)
        if usage.cost_usd:
            self._cost[strategy, model].inc(usage.cost_usd)

    def _count_savings(self, savings: Savings | None) -> None:
        if savings is None:
            return
        baseline = savings.baseline.value
        for measure, pct in (
            ("attention", savings.attention_pct),
            ("kv_read", savings.kv_read_pct),
            ("tokens", savings.tokens_pct),
        ):
            self._compute_ratio[measure, baseline].observe(1 - pct / 100)
