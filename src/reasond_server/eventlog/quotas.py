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

    Beside others it may have less: `share` of what their open executions leave of the store, so that no number of
    tenants fills it.

    Attributes:
        executions: open executions, that is, running and suspended ones.
        waiting: suspended executions of one kind of work.
        max_bytes: bytes of the logs of open executions.
        share: the share of what others leave, at most 1.
        store_executions: the executions that the store takes of all tenants.
        store_bytes: the bytes that it takes.
    """

    executions: int | None = None
    waiting: int | None = None
    max_bytes: int | None = None
    share: float = 1.0
    store_executions: int | None = None
    store_bytes: int | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether there is any bound."""
        return not self.executions is self.waiting is self.max_bytes is None

    def beside(self, *, executions: int, open_bytes: int) -> TenantQuota:
        """Return the quota of a tenant beside others that have so many open executions and bytes in them."""
        left = self._take_share(self.store_executions, executions)
        left_bytes = self._take_share(self.store_bytes, open_bytes)
        waiting = None if left is None else max(1, left * _WAITING_PERCENT // 100)
        return TenantQuota(
            executions=_find_least(self.executions, left),
            waiting=_find_least(self.waiting, waiting),
            max_bytes=_find_least(self.max_bytes, left_bytes),
            share=self.share,
            store_executions=self.store_executions,
            store_bytes=self.store_bytes,
        )

    def _take_share(self, bound: int | None, taken: int) -> int | None:
        return None if bound is None or self.share >= 1 else max(1, int((bound - taken) * self.share))

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


def _find_least(own: int | None, left: int | None) -> int | None:
    return own if left is None or (own is not None and own < left) else left


UNBOUNDED = TenantQuota()


@value
class TenantShare:
    """What an operator allows one tenant of any store.

    Attributes:
        share: the largest share that its open executions may take of what those of other tenants leave of the bounds
            of a store; 1 sets no bound.
        waiting: most suspended executions of a kind; 0 sets no bound.
        max_bytes: most bytes in open executions; 0 sets no bound.
    """

    share: float = 1.0
    waiting: int = 0
    max_bytes: int = 0

    def build_quota(self, *, max_executions: int | None = None, max_bytes: int | None = None) -> TenantQuota:
        """Return the quota of a tenant in a store with these bounds; None: it has none."""
        own = TenantQuota(
            waiting=self.waiting or None,
            max_bytes=self.max_bytes or None,
            share=self.share,
            store_executions=max_executions,
            store_bytes=max_bytes,
        )
        return own.beside(executions=0, open_bytes=0)


NO_SHARE = TenantShare()


def _build_error(what: str, value: int, limit: int, *, keys: str) -> TenantQuotaError:
    return TenantQuotaError(
        f"Your tenant has {value} {what}, and the store keeps {limit} of one tenant at most",
        remedy=f"Finish or cancel some of them, wait until others have, or have the operator raise [store] {keys}.",
        metadata={"tenant_quota": what, "value": str(value), "limit": str(limit)},
    )
