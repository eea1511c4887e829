"""How much a runner does at once, for how long, and how busy it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerLimits:
    """How much a runner does at once, and how long what it leaves is kept or waited for.

    `max_concurrent` executions run and `max_queued` wait, `queue_timeout_s` at most. A lease lasts `lease_s`; a run
    that was taken over and that nobody asked to keep is given `reattach_s` for somebody to come back, and so is one
    whose calls are not on record and whose caller may ask again. What ended is
    kept for `retention_s`, or what `tenant_retention_s` says. Without `records_content` no text is kept.
    """

    max_concurrent: int
    retention_s: float
    tenant_retention_s: Mapping[str, float] = field(default_factory=dict)
    max_queued: int = 0
    queue_timeout_s: float = 0.0
    lease_s: float = 15.0
    reattach_s: float = 30.0
    unwinding_s: float = 2.0
    records_content: bool = True

    def retention_of(self, tenant: str) -> timedelta:
        """Return how long executions of `tenant` are kept after their end."""
        return timedelta(seconds=self.tenant_retention_s.get(tenant, self.retention_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Executions that hold a place, those that wait for one, and how many places there are."""

    running: int
    queued: int
    places: int
