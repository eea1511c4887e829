"""What each tenant has in the store in memory."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reasond_server.eventlog.memory_log import KeptLog
    from reasond_server.eventlog.quotas import TenantQuota


@dataclass(slots=True)
class _TenantLogs:
    """The open executions of one tenant, their bytes, how many of each kind wait, and what has ended."""

    executions: int = 0
    open_bytes: int = 0
    ended_bytes: int = 0
    waiting: dict[str, int] = field(default_factory=dict)
    # In the order in which they ended.
    ended: OrderedDict[str, None] = field(default_factory=OrderedDict)


class TenantTable:
    """Counts what the tenants have; `quota` bounds what each has open.

    Attributes:
        size: the bytes of all logs, and of whatever else is added to it.
        ended: all executions that have ended, in that order.
    """

    def __init__(self, quota: TenantQuota) -> None:
        self.size = 0
        self.ended: OrderedDict[str, None] = OrderedDict()
        self._quota = quota
        self._tenants: dict[str, _TenantLogs] = {}
        # The tenants that have more than their quota, what has ended included: at most a few.
        self._hogs: dict[str, None] = {}

    @property
    def open_bytes(self) -> int:
        """The bytes of all open executions."""
        return sum(each.open_bytes for each in self._tenants.values())

    def require_room(self, tenant: str, kind: str) -> None:
        """See `StoreRoom.require`."""
        has = self._tenants.get(tenant)
        if has is not None:
            self._quota.require_room(
                kind=kind, executions=has.executions, waiting=has.waiting, open_bytes=has.open_bytes
            )

    def require_bytes(self, tenant: str, added: int) -> None:
        """Refuse `added` bytes to a tenant whose open executions have too many.

        Raises:
            TenantQuotaError: it has no room for them.
        """
        self._quota.require_bytes(self._tenants[tenant].open_bytes, added=added)

    def add(self, log: KeptLog) -> None:
        """Count an open log without bytes."""
        self._tenants.setdefault(log.execution.tenant, _TenantLogs()).executions += 1

    def grow(self, log: KeptLog, size: int) -> None:
        """Count `size` bytes more of an open log; fewer if it is below 0."""
        log.size += size
        self.size += size
        self._tenants[log.execution.tenant].open_bytes += size
        self._see_share(log.execution.tenant)

    def count_waiting(self, log: KeptLog, by: int) -> None:
        """Count `by` more suspended executions of the kind and the tenant of `log`."""
        waiting, kind = self._tenants[log.execution.tenant].waiting, log.execution.kind
        waiting[kind] = waiting.get(kind, 0) + by

    def end(self, log: KeptLog) -> None:
        """Count a log as ended."""
        name, has = log.execution.execution_id, self._tenants[log.execution.tenant]
        self.ended[name] = has.ended[name] = None
        has.executions -= 1
        has.open_bytes -= log.size
        has.ended_bytes += log.size

    def remove(self, log: KeptLog) -> None:
        """Count a log no more."""
        name, tenant = log.execution.execution_id, log.execution.tenant
        has = self._tenants[tenant]
        self.size -= log.size
        if log.execution.state.has_ended:
            del self.ended[name], has.ended[name]
            has.ended_bytes -= log.size
        else:
            has.executions -= 1
            has.open_bytes -= log.size
            if not log.is_running:
                self.count_waiting(log, -1)
        self._see_share(tenant)
        if not has.executions and not has.ended:
            del self._tenants[tenant]
            self._hogs.pop(tenant, None)

    def find_oldest_ended(self, *, sparing: str) -> str | None:
        """Return the ended execution that is to go first, but not `sparing`; None if there is none.

        Those of a tenant that has more than its quota go before those that ended longest ago.
        """
        return next((name for name in self._list_ended() if name != sparing), None)

    def _list_ended(self) -> Iterator[str]:
        for tenant in self._hogs:
            yield from self._tenants[tenant].ended
        yield from self.ended

    def _see_share(self, tenant: str) -> None:
        """Note whether the tenant has more than its quota."""
        has, quota = self._tenants[tenant], self._quota
        if (quota.executions is not None and has.executions + len(has.ended) > quota.executions) or (
            quota.max_bytes is not None and has.open_bytes + has.ended_bytes > quota.max_bytes
        ):
            self._hogs[tenant] = None
        else:
            self._hogs.pop(tenant, None)
