"""Counts the reports of the rooms for Prometheus; imported only if metrics are on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from reasond_server.errors.reasons import list_error_classes
from reasond_server.telemetry.catalogue import Registry, Vocabulary
from reasond_server.telemetry.observers import (
    HANDOFF_OUTCOMES,
    TRANSPORTS,
    TURN_EXITS,
    WEBHOOK_OUTCOMES,
    Observer,
    ProcessFacts,
    ServerSnapshot,
)
from reasond_server.telemetry.scope import get_current_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry


def _find_trace() -> dict[str, str] | None:
    """Return the ids of the current trace, as labels of an exemplar; None if it is not sampled."""
    trace = get_current_trace()
    if trace is None or not trace.is_sampled:
        return None
    return {"trace_id": trace.trace_id, "span_id": trace.span_id}


BREAKER_STATES: Final = ("closed", "half_open", "open")


class Meters(Observer):
    """The `Observer` that counts; the counts can be read after the next `sample`.

    `vocabulary` bounds the labels with values from outside. One instance serves one event loop. With `has_exemplars`
    durations of calls lead to the trace of the last one, if it was sampled.
    """

    def __init__(self, *, vocabulary: Vocabulary, version: str, has_exemplars: bool = False) -> None:
        self._registry = registry = Registry(vocabulary=vocabulary)
        self._counters, self._gauges, self._histograms = registry.counters, registry.gauges, registry.histograms
        self._has_exemplars = has_exemplars
        self._denial_of = {
            name: denial for name, kind in list_error_classes().items() if (denial := kind.declaration.denial)
        }
        self._cpu_seen_s = 0.0
        self._watched: dict[str, Callable[[], str]] = {}
        self._create_rare_series()
        self._set("reasond_build_info", version, sys.version.partition(" ")[0], to=1)
        self._set("reasond_processes", to=1)

    @property
    def registry(self) -> CollectorRegistry:
        """The registry of all metrics."""
        return self._registry.collected

    def count(self, metric: str, *labels: str, by: float = 1) -> None:
        """See Observer."""
        self._counters[metric][labels].inc(by)

    def change(self, metric: str, *labels: str, by: float) -> None:
        """See Observer."""
        self._gauges[metric][labels].inc(by)

    def measure(self, metric: str, *labels: str, value: float, is_traced: bool = False) -> None:
        """See Observer."""
        exemplar = _find_trace() if is_traced and self._has_exemplars else None
        self._histograms[metric][labels].observe(value, exemplar)

    def call_failed(self, transport: str, reason: str) -> None:
        """See Observer."""
        super().call_failed(transport, reason)
        kind = self._denial_of.get(reason)
        if kind is not None:
            self.count("reasond_denials", kind)

    def watch_breaker(self, backend: str, state: Callable[[], str]) -> None:
        """See Observer; `state` is called in every sample."""
        self._watched[backend] = state

    def set_awaiting(self, count: int) -> None:
        """Set the number of turns in the store that wait for their clients."""
        self._set("reasond_turns_awaiting", to=count)

    def loop_lagged(self, lag_s: float) -> None:
        """Record the delay of the event loop in seconds."""
        self.measure("reasond_event_loop_lag_seconds", value=lag_s)

    def sample(self, seen: ServerSnapshot) -> None:
        """Flush the counts, and set the gauges that are read instead of reported, such as states of breakers."""
        self._registry.flush()
        self._set("reasond_calls_in_flight", "grpc", to=seen.rpcs)
        self._set("reasond_calls_in_flight", "http", to=seen.http_requests)
        self._set("reasond_executions_running", to=seen.running)
        self._set("reasond_executions_queued", to=seen.queued)
        self._set("reasond_execution_places", to=seen.places)
        self._set("reasond_ready", to=seen.is_ready)
        self._set("reasond_draining", to=seen.is_draining)
        self._set("reasond_limits_degraded", to=seen.is_limits_degraded)
        self._set("reasond_store_fill_ratio", to=seen.store.fill)
        self._set("reasond_store_clock_jump_seconds", to=seen.store.clock_jump_s)
        for backend, state in self._watched.items():
            now = state()
            for each in BREAKER_STATES:
                self._set("reasond_model_breaker_state", backend, each, to=each == now)

    def sample_process(self, facts: ProcessFacts) -> None:
        """Set the gauges of the process."""
        self.count("process_cpu_seconds", by=max(0.0, facts.cpu_s - self._cpu_seen_s))
        self._cpu_seen_s = max(facts.cpu_s, self._cpu_seen_s)
        if facts.resident_bytes is not None:
            self._set("process_resident_memory_bytes", to=facts.resident_bytes)
        if facts.open_files is not None:
            self._set("process_open_fds", to=facts.open_files)
        self._set("process_max_fds", to=facts.most_files)
        self._set("process_start_time_seconds", to=facts.started_s)

    def _set(self, metric: str, *labels: str, to: float) -> None:
        self._gauges[metric][labels].set(to)

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
                self.count(name, label, by=0)
        for transport in TRANSPORTS:
            self.change("reasond_streams_open", transport, by=0)
