"""Counts the reports of turns for Prometheus; imported only if metrics are on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.telemetry.observers import HANDOFF_OUTCOMES, TURN_EXITS

if TYPE_CHECKING:
    from reasond_server.telemetry.series import Registry


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
