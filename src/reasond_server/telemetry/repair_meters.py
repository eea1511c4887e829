"""Counts the reports of repairs for Prometheus; imported only if metrics are on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reasond_server.telemetry.series import Registry


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
