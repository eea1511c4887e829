"""Counts the reports of the observers for Prometheus; imported only if metrics are on."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Final

from reasond_server.errors.reasons import list_error_classes
from reasond_server.telemetry.catalogue import Registry, Vocabulary
from reasond_server.telemetry.observers import HANDOFF_OUTCOMES, TRANSPORTS, TURN_EXITS, WEBHOOK_OUTCOMES
from reasond_server.telemetry.scope import get_current_trace
from reasond_server.types import BoundedContextMetrics, FinishReason, Savings, StrategyMetrics, Usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry

    from reasond_server.telemetry.observers import ProcessFacts, ServerSnapshot


def find_trace() -> dict[str, str] | None:
    """Return the ids of the current trace, as labels of an exemplar; None if it is not sampled."""
    trace = get_current_trace()
    if trace is None or not trace.is_sampled:
        return None
    return {"trace_id": trace.trace_id, "span_id": trace.span_id}


def find_nothing() -> None:
    """Return None."""


class _Counting:
    """The series of all metrics, by the names of the catalogue."""

    def __init__(self, *, vocabulary: Vocabulary) -> None:
        self._registry = registry = Registry(vocabulary=vocabulary)
        self._counters, self._gauges, self._histograms = registry.counters, registry.gauges, registry.histograms


class RepairMeters(_Counting):
    """The `RepairObserver` that counts."""

    def iteration_ended(self) -> None:
        """See RepairObserver."""
        self._counters["reasond_repair_reflection_iterations"][()].inc()

    def candidates_changed(self, by: int) -> None:
        """See RepairObserver."""
        self._gauges["reasond_repair_candidates_active"][()].inc(by)

    def candidate_scored(self, score: float) -> None:
        """See RepairObserver."""
        self._histograms["reasond_repair_critic_score"][()].observe(score)

    def terminated_early(self) -> None:
        """See RepairObserver."""
        self._counters["reasond_repair_early_terminations"][()].inc()

    def check_ended(self, level: str, outcome: str, duration_s: float) -> None:
        """See RepairObserver."""
        self._histograms["reasond_repair_check_duration_seconds"][level, outcome].observe(duration_s)


class TurnMeters(_Counting):
    """The `TurnObserver` that counts."""

    def turn_exited(self, exit_: str) -> None:
        """See TurnObserver."""
        self._counters["reasond_turns"][exit_].inc()

    def handed_off(self, count: int) -> None:
        """See TurnObserver."""
        self._counters["reasond_handoffs"]["handed_off"].inc()
        self._counters["reasond_handoff_calls"][()].inc(count)

    def turn_reentered(self, outcome: str) -> None:
        """See TurnObserver."""
        self._counters["reasond_reentries"][outcome].inc()

    def handoff_settled(self, outcome: str, wait_s: float) -> None:
        """See TurnObserver."""
        self._counters["reasond_handoffs"][outcome].inc()
        self._histograms["reasond_handoff_wait_seconds"][outcome].observe(wait_s)

    def set_awaiting(self, count: int) -> None:
        """Set the number of turns in the store that wait for their clients."""
        self._gauges["reasond_turns_awaiting"][()].set(count)

    def outcome_unknown(self) -> None:
        """See TurnObserver."""
        self._counters["reasond_tool_outcomes_unknown"][()].inc()

    def context_built(self, goal: str, rendering: str, tokens: int) -> None:
        """See TurnObserver."""
        self._counters["reasond_context_tokens"][goal, rendering].inc(tokens)


BREAKER_STATES: Final = ("closed", "half_open", "open")
_WITHOUT_RESULT: Final = frozenset({FinishReason.FAILED.value, FinishReason.CANCELLED.value})


class Meters(TurnMeters, RepairMeters):
    """The `Observer` that counts; the counts can be read after the next `sample`.

    `vocabulary` bounds the labels with values from outside. One instance serves one event loop. With `has_exemplars`
    durations of calls lead to the trace of the last one, if it was sampled.
    """

    def __init__(self, *, vocabulary: Vocabulary, version: str, has_exemplars: bool = False) -> None:
        super().__init__(vocabulary=vocabulary)
        self._find_exemplar = find_trace if has_exemplars else find_nothing
        self._denial_of = {
            name: denial for name, kind in list_error_classes().items() if (denial := kind.declaration.denial)
        }
        self._cpu_seen_s = 0.0
        self._watched: dict[str, Callable[[], str]] = {}
        self._create_rare_series()
        self._gauges["reasond_build_info"][version, sys.version.partition(" ")[0]].set(1)
        self._gauges["reasond_processes"][()].set(1)

    @property
    def registry(self) -> CollectorRegistry:
        """The registry of all metrics."""
        return self._registry.collected

    def rpc_began(self, method: str) -> None:
        """See CallObserver."""
        self._counters["reasond_rpcs_started"][method].inc()

    def call_ended(self, transport: str, method: str, code: str, duration_s: float) -> None:
        """See CallObserver."""
        self._counters["reasond_calls"][transport, method, code].inc()
        durations = self._histograms["reasond_call_duration_seconds"][transport, method, code]
        durations.observe(duration_s, self._find_exemplar())

    def call_failed(self, transport: str, reason: str) -> None:
        """See CallObserver; refusals by the limits are counted in `caller_refused`."""
        self._counters["reasond_errors"][transport, reason].inc()
        kind = self._denial_of.get(reason)
        if kind is not None:
            self._counters["reasond_denials"][kind].inc()

    def api_key_used(self, key_id: str, outcome: str) -> None:
        """See AccessObserver."""
        self._counters["reasond_api_key_uses"][key_id, outcome].inc()

    def stream_opened(self, transport: str) -> None:
        """See CallObserver."""
        self._gauges["reasond_streams_open"][transport].inc()

    def stream_closed(self, transport: str) -> None:
        """See CallObserver."""
        self._gauges["reasond_streams_open"][transport].dec()

    def slow_consumer(self, transport: str) -> None:
        """See CallObserver."""
        self._counters["reasond_slow_consumers"][transport].inc()

    def http_answered(self, path: str, status: int) -> None:
        """See CallObserver."""
        self._counters["reasond_http_requests"][path, str(status)].inc()

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
            self._counters["reasond_steps"][strategy].inc(steps)
        if not finish_reason:
            return
        self._counters["reasond_executions"][strategy, finish_reason].inc()
        self._histograms["reasond_execution_duration_seconds"][strategy].observe(duration_s)
        # A run without a result may have ended during a call that its metrics do not contain.
        if isinstance(metrics, BoundedContextMetrics) and finish_reason not in _WITHOUT_RESULT:
            for savings in (metrics.savings, metrics.reprompt_savings):
                self._count_savings(savings)

    def run_handed(self, reason: str) -> None:
        """See RunObserver."""
        self._counters["reasond_executions_left"][reason].inc()

    def run_recovered(self, outcome: str) -> None:
        """See RunObserver."""
        self._counters["reasond_recoveries"][outcome].inc()

    def queue_left(self, outcome: str, waited_s: float) -> None:
        """See RunObserver."""
        self._histograms["reasond_queue_wait_seconds"][outcome].observe(waited_s)

    def commit_ended(self, entries: int, duration_s: float) -> None:
        """See RunObserver."""
        self._histograms["reasond_store_commit_duration_seconds"][()].observe(duration_s)
        self._counters["reasond_store_entries"][()].inc(entries)

    def commit_failed(self, reason: str) -> None:
        """See RunObserver."""
        self._counters["reasond_store_failures"][reason].inc()

    def first_content(self, model: str, after_s: float) -> None:
        """See ModelObserver."""
        self._histograms["reasond_model_first_content_seconds"][model].observe(after_s)

    def model_call_ended(self, model: str, outcome: str, duration_s: float) -> None:
        """See ModelObserver."""
        self._counters["reasond_model_calls"][model, outcome].inc()
        durations = self._histograms["reasond_model_call_duration_seconds"][model, outcome]
        durations.observe(duration_s, self._find_exemplar())

    def attempt_repeated(self, backend: str, reason: str) -> None:
        """See BackendObserver."""
        self._counters["reasond_model_retries"][backend, reason].inc()

    def waited_for_room(self, backend: str, waited_s: float) -> None:
        """See BackendObserver."""
        self._histograms["reasond_model_room_wait_seconds"][backend].observe(waited_s)

    def usage_corrected(self, backend: str, source: str) -> None:
        """See BackendObserver."""
        self._counters["reasond_model_usage_mended"][backend, source].inc()

    def watch_breaker(self, backend: str, state: Callable[[], str]) -> None:
        """See BackendObserver; `state` is called in every sample."""
        self._watched[backend] = state

    def caller_refused(self, kind: str) -> None:
        """See LimitObserver."""
        self._counters["reasond_denials"][kind].inc()

    def tokens_reserved(self, tokens: int) -> None:
        """See LimitObserver."""
        self._counters["reasond_budget_tokens"]["reserved"].inc(tokens)

    def tokens_settled(self, reserved: int, used: int) -> None:
        """See LimitObserver."""
        self._counters["reasond_budget_tokens"]["settled"].inc(used)
        if used < reserved:
            self._counters["reasond_budget_tokens"]["refunded"].inc(reserved - used)
        elif used > reserved:
            self._counters["reasond_budget_tokens"]["overdrawn"].inc(used - reserved)

    def tool_called(self, tool: str, outcome: str, duration_s: float) -> None:
        """See ToolObserver."""
        self._counters["reasond_tool_calls"][tool, outcome].inc()
        self._histograms["reasond_tool_duration_seconds"][tool].observe(duration_s)

    def program_ended(self, outcome: str, duration_s: float) -> None:
        """See ProgramObserver."""
        self._histograms["reasond_program_duration_seconds"][outcome].observe(duration_s)

    def webhook_sent(self, outcome: str) -> None:
        """See WebhookObserver."""
        self._counters["reasond_webhooks"][outcome].inc()

    def loop_lagged(self, lag_s: float) -> None:
        """Record the delay of the event loop in seconds."""
        self._histograms["reasond_event_loop_lag_seconds"][()].observe(lag_s)

    def sample(self, seen: ServerSnapshot) -> None:
        """Flush the counts, and set the gauges that are read instead of reported, such as states of breakers."""
        self._registry.flush()
        self._gauges["reasond_calls_in_flight"]["grpc"].set(seen.rpcs)
        self._gauges["reasond_calls_in_flight"]["http"].set(seen.http_requests)
        self._gauges["reasond_executions_running"][()].set(seen.running)
        self._gauges["reasond_executions_queued"][()].set(seen.queued)
        self._gauges["reasond_execution_places"][()].set(seen.places)
        self._gauges["reasond_ready"][()].set(seen.is_ready)
        self._gauges["reasond_draining"][()].set(seen.is_draining)
        self._gauges["reasond_limits_degraded"][()].set(seen.is_limits_degraded)
        self._gauges["reasond_store_fill_ratio"][()].set(seen.store.fill)
        self._gauges["reasond_store_clock_jump_seconds"][()].set(seen.store.clock_jump_s)
        for backend, state in self._watched.items():
            now = state()
            for each in BREAKER_STATES:
                self._gauges["reasond_model_breaker_state"][backend, each].set(each == now)

    def sample_process(self, facts: ProcessFacts) -> None:
        """Set the gauges of the process."""
        self._counters["process_cpu_seconds"][()].inc(max(0.0, facts.cpu_s - self._cpu_seen_s))
        self._cpu_seen_s = max(facts.cpu_s, self._cpu_seen_s)
        if facts.resident_bytes is not None:
            self._gauges["process_resident_memory_bytes"][()].set(facts.resident_bytes)
        if facts.open_files is not None:
            self._gauges["process_open_fds"][()].set(facts.open_files)
        self._gauges["process_max_fds"][()].set(facts.most_files)
        self._gauges["process_start_time_seconds"][()].set(facts.started_s)

    def _create_rare_series(self) -> None:
        """Create the series of rare events with 0, because `rate` misses the first value of a new series."""
        rare = {
            "reasond_denials": sorted({*self._denial_of.values(), "rate", "concurrency", "budget"}),
            "reasond_slow_consumers": ("grpc", "http"),
            "reasond_budget_tokens": ("reserved", "settled", "refunded", "overdrawn"),
            "reasond_store_failures": ("STORE_UNAVAILABLE", "STORE_FULL"),
            "reasond_recoveries": ("resumed", "written_off"),
            "reasond_executions_left": ("handed_over", "lost", "fenced"),
            "reasond_turns": TURN_EXITS,
            "reasond_handoffs": HANDOFF_OUTCOMES,
            "reasond_webhooks": WEBHOOK_OUTCOMES,
        }
        for name, values in rare.items():
            for label in values:
                self._counters[name][label]
        for transport in TRANSPORTS:
            self._gauges["reasond_streams_open"][transport]

    def _count_usage(self, strategy: str, model: str, usage: Usage) -> None:
        tokens = self._counters["reasond_tokens"]
        tokens[strategy, model, "input"].inc(usage.input_tokens)
        tokens[strategy, model, "output"].inc(usage.output_tokens)
        each_call = self._histograms["reasond_model_call_tokens"]
        each_call[model, "input"].observe(usage.input_tokens)
        each_call[model, "output"].observe(usage.output_tokens)
        if usage.cached_input_tokens:
            tokens[strategy, model, "cached_input"].inc(usage.cached_input_tokens)
        if usage.reasoning_tokens:
            tokens[strategy, model, "reasoning"].inc(usage.reasoning_tokens)
        if usage.cost_usd:
            self._counters["reasond_cost_usd"][strategy, model].inc(usage.cost_usd)

    def _count_savings(self, savings: Savings | None) -> None:
        if savings is None:
            return
        baseline = savings.baseline.value
        for measure, pct in (
            ("attention", savings.attention_pct),
            ("kv_read", savings.kv_read_pct),
            ("tokens", savings.tokens_pct),
        ):
            self._histograms["reasond_compute_ratio"][measure, baseline].observe(1 - pct / 100)
