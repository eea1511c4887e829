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

    Attributes:
        max_concurrent: how many executions run at once.
        max_queued: how many wait for a place, each for `queue_timeout_s` at most.
        retention_s: how long what ended is kept, unless `tenant_retention_s` says otherwise for its tenant.
        lease_s: how long a lease lasts.
        reattach_s: how long a run that was taken over and that nobody asked to keep waits for somebody to come back;
            so does one whose calls are not on record and whose caller may ask again.
        unwinding_s: how long a strategy may take to clean up once it is stopped.
        records_content: whether texts are kept.
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
