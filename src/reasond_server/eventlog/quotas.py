"""Quotas of tenants in a store: no tenant can fill it for all others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reasond_server.errors.limits import StoreFullError
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping


# The rest is for executions that run, so that who waits for a tenant can still go on.
_WAITING_PERCENT: Final = 80


class TenantQuotaError(StoreFullError):
    """One tenant has as much in the store as it may have; the store takes what other tenants write."""


@value
class TenantQuota:
    """The most that one tenant may have in a store; None sets no bound.

    Attributes:
        executions: open executions, that is, running and suspended ones.
        waiting: suspended executions of one kind of work.
        max_bytes: bytes of the logs of open executions.
    """

    executions: int | None = None
    waiting: int | None = None
    max_bytes: int | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether there is any bound."""
        return not self.executions is self.waiting is self.max_bytes is None

    def require_room(self, *, kind: str, executions: int, waiting: Mapping[str, int], open_bytes: int) -> None:
        """Refuse another execution of `kind` to a tenant that has so much already; `waiting` is by kind.

        Raises:
            TenantQuotaError: a bound is reached.
        """
        if self.executions is not None and executions >= self.executions:
            raise _build_error("open executions", executions, self.executions, keys="tenant_share or max_executions")
        if self.waiting is not None and waiting.get(kind, 0) >= self.waiting:
            what = f"suspended executions of the kind {kind}"
            raise _build_error(what, waiting[kind], self.waiting, keys="tenant_waiting or tenant_share")
        self.require_bytes(open_bytes)

    def require_bytes(self, open_bytes: int, *, added: int = 0) -> None:
        """Refuse `added` bytes to a tenant whose open executions have `open_bytes`.

        Raises:
            TenantQuotaError: it has no room for them.
        """
        if self.max_bytes is not None and open_bytes + max(added, 1) > self.max_bytes:
            raise _build_error(
                "bytes in open executions", open_bytes, self.max_bytes, keys="tenant_bytes, tenant_share or its bound"
            )


UNBOUNDED = TenantQuota()


@value
class TenantShare:
    """What an operator allows one tenant of any store.

    Attributes:
        share: the largest share of the bounds of a store that its open executions may take; 1 sets no bound.
        waiting: most suspended executions of a kind; 0 sets no bound.
        max_bytes: most bytes in open executions; 0 sets no bound.
    """

    share: float = 1.0
    waiting: int = 0
    max_bytes: int = 0

    def build_quota(self, *, max_executions: int | None = None, max_bytes: int | None = None) -> TenantQuota:
        """Return the quota of a tenant in a store with these bounds; None: it has none."""
        executions = self._share_of(max_executions)
        waiting = [self.waiting or None, None if executions is None else max(1, executions * _WAITING_PERCENT // 100)]
        return TenantQuota(
            executions=executions,
            waiting=min((each for each in waiting if each is not None), default=None),
            max_bytes=min(
                (each for each in (self.max_bytes or None, self._share_of(max_bytes)) if each is not None), default=None
            ),
        )

    def _share_of(self, bound: int | None) -> int | None:
        return None if bound is None or self.share >= 1 else max(1, int(bound * self.share))


NO_SHARE = TenantShare()


def _build_error(what: str, value: int, limit: int, *, keys: str) -> TenantQuotaError:
    return TenantQuotaError(
        f"Your tenant has {value} {what}, and the store keeps {limit} of one tenant at most",
        remedy=f"Finish or cancel some of them, or have the operator raise [store] {keys}.",
        metadata={"tenant_quota": what, "value": str(value), "limit": str(limit)},
    )
